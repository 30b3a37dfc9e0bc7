// Many threads on one translator: each gets what one alone gets, also while others open and close.

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

TEST_CASE("a translator is closed while others use it") {
  txport_translator_options how = TXPORT_TRANSLATOR_OPTIONS_INIT;
  how.threads = 1;
  for (int round = 0; round < 5; ++round) {
    txport_translator* translator = nullptr;
    REQUIRE(txport_open(kToyBundle.c_str(), &how, &translator) == TXPORT_OK);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        const char* texts[] = {"the cat sees a bird"};
        for (int i = 0; i < 50; ++i) {
          txport_result* result = nullptr;
          const txport_code code = txport_translate(translator, texts, nullptr, 1, nullptr, &result);
          wrong += code != TXPORT_OK && code != TXPORT_INPUT_ERROR;
          if (code == TXPORT_OK) wrong += std::string(txport_result_text(result, 0, nullptr)).empty();
          txport_result_free(result);
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    txport_close(translator);
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}
