// 100,000 translations in one process, whole, streamed and submitted, with errors among them: resident memory must not
// grow. Prints what it was after a warm-up and at the end; exits with 1 if it grew by more than 5 MB.

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "txport/txport.hpp"

namespace {

constexpr int kTranslations = 100'000;
constexpr long kMost = 5'000'000;

long resident_bytes() {
  std::ifstream facts("/proc/self/statm");
  long size = 0;
  long resident = 0;
  facts >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

void translate(const txport::Translator& translator, int number) {
  static const std::vector<std::string> texts{"the cat sees a bird", "one", "a small blue bird and a big red dog", ""};
  txport::Options options;
  options.max_length = 1 + number % 8;
  options.scores = number % 5 == 0;
  const std::string& text = texts[static_cast<std::size_t>(number) % texts.size()];
  if (number % 7 == 0) {
    translator.stream(
        text, [](const txport::Piece&) { return false; }, options);
  } else if (number % 13 == 0) {
    txport::Pending pending = translator.submit(text, options);
    if (number % 2 == 0) pending.cancel();
    pending.wait();
  } else if (number % 11 == 0) {
    try {
      translator.translate("\xFF");
    } catch (const txport::InputError&) {
    }
  } else {
    translator.translate(text, options);
  }
}

}  // namespace

int main() {
  txport::TranslatorOptions how;
  how.threads = 1;
  const txport::Translator translator(TXPORT_REPOSITORY "/tests/data/toy_bundle", how);
  for (int i = 0; i < kTranslations / 20; ++i) translate(translator, i);
  const long before = resident_bytes();
  for (int i = 0; i < kTranslations; ++i) translate(translator, i);
  const long grown = resident_bytes() - before;
  std::cout << "after a warm-up " << before << " bytes, after " << kTranslations << " translations " << grown
            << " more\n";
  return grown <= kMost ? EXIT_SUCCESS : EXIT_FAILURE;
}
