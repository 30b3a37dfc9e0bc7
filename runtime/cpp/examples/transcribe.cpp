// Transcribe a WAV file of spoken digits with a bundle of the recipe `digits`: transcribe BUNDLE FILE.wav
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <txport/txport.hpp>

constexpr std::size_t kRate = 8000, kHop = 160, kWindow = 256, kMels = 40, kBins = kWindow / 2 + 1;
constexpr double kPi = 3.14159265358979323846;

// The samples of a file of 16 bits, one channel, 8 kHz, on a little-endian machine.
std::vector<double> read_wav(const char* name) {
  std::ifstream file(name, std::ios::binary);
  std::uint16_t format[18] = {};  // at 8 the size of the format, 10 its kind, 11 channels, 12 rate, 17 bits
  file.read(reinterpret_cast<char*>(format), sizeof format);
  if (format[8] != 16 || format[10] != 1 || format[11] != 1 || format[12] != kRate || format[17] != 16)
    throw std::invalid_argument(std::string(name) + " must have one channel of 16 bits at 8000 Hz");
  std::uint32_t chunk[2] = {};  // name and size; 0x61746164 is "data"
  while (file.read(reinterpret_cast<char*>(chunk), sizeof chunk) && chunk[0] != 0x61746164) file.ignore(chunk[1]);
  std::vector<double> samples;
  for (std::int16_t sample; samples.size() < chunk[1] / 2 && file.read(reinterpret_cast<char*>(&sample), 2);)
    samples.push_back(sample / 32768.0);
  return samples;
}

double edge(std::size_t i) { return 700 * (std::pow(1 + kRate / 1400.0, double(i) / (kMels + 1)) - 1); }

txport::Matrix log_mel(std::vector<double> samples) {
  const std::size_t count = std::max<std::size_t>(1, (samples.size() + kHop - 1) / kHop);
  samples.resize(count * kHop + kWindow);
  txport::Matrix frames{count, kMels, {}};
  for (std::size_t frame = 0; frame < count; ++frame) {
    std::vector<double> bands(kMels);
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      std::complex<double> sum;
      for (std::size_t i = 0; i < kWindow; ++i) {
        const double x = samples[frame * kHop + i] * (0.5 - 0.5 * std::cos(2 * kPi * double(i) / (kWindow - 1)));
        sum += x * std::polar(1.0, 2 * kPi * double(bin * i % kWindow) / kWindow);
      }
      const double hertz = kRate / 2.0 * double(bin) / (kBins - 1);
      for (std::size_t m = 0; m < kMels; ++m) {
        const double rising = (hertz - edge(m)) / (edge(m + 1) - edge(m));
        const double falling = (edge(m + 2) - hertz) / (edge(m + 2) - edge(m + 1));
        bands[m] += std::max(0.0, std::min(rising, falling)) * std::norm(sum);
      }
    }
    for (const double band : bands) frames.values.push_back(float((std::log10(std::max(band, 1e-4)) + 1) / 3));
  }
  return frames;
}

int main(int argc, char** argv) try {
  if (argc != 3) throw std::invalid_argument("usage: transcribe BUNDLE FILE.wav");
  std::cout << txport::Translator(argv[1]).translate_features({log_mel(read_wav(argv[2]))}).front().text << "\n";
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
