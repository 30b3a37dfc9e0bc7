// Translate lines with a bundle: c++ -std=c++17 translate.cpp -ltxport, then ./a.out BUNDLE < lines.txt
#include <iostream>
#include <string>
#include <txport/txport.hpp>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " BUNDLE\n";
    return 2;
  }
  try {
    txport::TranslatorOptions settings;
    settings.warning = [](const std::string& message) { std::cerr << "warning: " << message << "\n"; };
    const txport::Translator translator(argv[1], settings);
    std::cerr << "txport " << txport::version() << ", " << translator.engine() << "\n";

    std::vector<std::string> sentences;
    for (std::string line; std::getline(std::cin, line);) sentences.push_back(line);

    // Many sentences at once: they are sorted by length and run in batches.
    txport::Options options;
    options.scores = true;
    for (const txport::Translation& result : translator.translate(sentences, options)) {
      double sum = 0;
      for (const double score : result.scores) sum += score;
      std::cout << result.text << "\t" << sum << "\n";
    }

    // One sentence, token by token, for interactive use. Return false to stop.
    if (sentences.empty()) return 0;
    translator.stream(sentences.front(), [](const txport::Piece& piece) {
      std::cout << piece.text << std::flush;
      return true;
    });
    std::cout << "\n";
  } catch (const txport::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
