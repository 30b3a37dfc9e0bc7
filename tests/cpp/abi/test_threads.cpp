// Many threads on one translator: each gets what one alone gets.

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "repository.hpp"
#include "txport/txport.hpp"

TEST_CASE("eight threads on one translator") {
  txport::TranslatorOptions how;
  how.threads = 1;
  const txport::Translator translator(kToyBundle.string(), how);
  const std::vector<std::string> texts{"the cat sees a bird", "one", "a big red dog", "",
                                       "a small blue bird and a tree"};
  const auto expected = translator.translate(texts);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 20; ++i) {
        const auto results = translator.translate(texts);
        for (std::size_t k = 0; k < texts.size(); ++k) wrong += results[k].ids != expected[k].ids;
        std::string text;
        translator.stream(texts[static_cast<std::size_t>(thread) % texts.size()], [&](const txport::Piece& piece) {
          text += piece.text;
          return true;
        });
        wrong += text != expected[static_cast<std::size_t>(thread) % texts.size()].text;
        try {
          translator.translate("\xFF");
          ++wrong;
        } catch (const txport::InputError& error) {
          wrong += std::string(error.what()).find("sentence 1") != 0;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a translator is closed while streams of it are read in other threads") {
  const std::string expected = txport::Translator(kToyBundle.string()).translate("the cat sees a bird").text;
  std::vector<txport::Stream> streams;
  {
    txport::TranslatorOptions how;
    how.threads = 1;
    const txport::Translator translator(kToyBundle.string(), how);
    for (int i = 0; i < 4; ++i) streams.push_back(translator.stream("the cat sees a bird"));
  }
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (txport::Stream& stream : streams) {
    threads.emplace_back([&] {
      std::string text;
      while (const auto piece = stream.next()) text += piece->text;
      right += text == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 4);
}
