// Transcribe a WAV file of spoken digits with a bundle of the recipe `digits`: transcribe BUNDLE FILE.wav
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <txport/txport.hpp>
#include <vector>

constexpr std::size_t kRate = 8000, kHop = 160, kWindow = 256, kMels = 40, kBins = kWindow / 2 + 1;
constexpr double kPi = 3.14159265358979323846;

// The samples of a file of 16 bits, one channel, 8 kHz, whose header has 44 bytes.
std::vector<double> read_wav(const char* name) {
  std::ifstream file(name, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<double> samples;
  for (std::size_t i = 44; i + 1 < bytes.size(); i += 2) {
    const int value = static_cast<std::uint8_t>(bytes[i]) | bytes[i + 1] * 256;
    samples.push_back(value / 32768.0);
  }
  return samples;
}

double mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double edge(std::size_t i) { return 700 * (std::pow(10, mel(kRate / 2.0) * double(i) / (kMels + 1) / 2595) - 1); }

txport::Matrix log_mel(std::vector<double> samples) {
  const std::size_t count = std::max<std::size_t>(1, (samples.size() + kHop - 1) / kHop);
  samples.resize(count * kHop + kWindow);
  txport::Matrix frames{count, kMels, {}};
  for (std::size_t frame = 0; frame < count; ++frame) {
    std::vector<double> bands(kMels);
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      double real = 0, imaginary = 0;
      for (std::size_t i = 0; i < kWindow; ++i) {
        const double x = samples[frame * kHop + i] * (0.5 - 0.5 * std::cos(2 * kPi * double(i) / (kWindow - 1)));
        real += x * std::cos(2 * kPi * double(bin * i % kWindow) / kWindow);
        imaginary += x * std::sin(2 * kPi * double(bin * i % kWindow) / kWindow);
      }
      const double hertz = kRate / 2.0 * double(bin) / (kBins - 1);
      for (std::size_t m = 0; m < kMels; ++m) {
        const double rising = (hertz - edge(m)) / (edge(m + 1) - edge(m));
        const double falling = (edge(m + 2) - hertz) / (edge(m + 2) - edge(m + 1));
        bands[m] += std::max(0.0, std::min(rising, falling)) * (real * real + imaginary * imaginary);
      }
    }
    for (const double band : bands) frames.values.push_back(float((std::log10(std::max(band, 1e-4)) + 1) / 3));
  }
  return frames;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const txport::Translator translator(argv[1]);
  std::cout << translator.translate_features({log_mel(read_wav(argv[2]))}).front().text << "\n";
}
