// Where the shared fixtures are.
#pragma once

#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "bundle/files.hpp"
#include "bundle/hash.hpp"

inline const std::filesystem::path kTests = std::filesystem::path(TXPORT_REPOSITORY) / "tests";
inline const std::filesystem::path kToyBundle = kTests / "data" / "toy_bundle";
inline const std::filesystem::path kFeatureBundle = kTests / "data" / "feature_bundle";

inline std::string contents(const std::filesystem::path& path) {
  return txport::core::read_file(path, std::size_t{1} << 30);
}

// The manifest with its own hash made right: of the last field "sha256" in it, if it has one.
inline std::string sign(std::string manifest) {
  const std::string field = "\"sha256\"";
  const auto start = manifest.rfind(field);
  if (start == std::string::npos) return manifest;
  const auto quote = manifest.find('"', start + field.size());
  if (quote == std::string::npos || manifest.size() - quote < 66) return manifest;
  manifest.replace(quote + 1, 64, std::string(64, '0'));
  return manifest.replace(quote + 1, 64, txport::core::sha256(manifest));
}

// The message of the error that a body throws, or "accepted".
template <typename Error>
std::string fault_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// A directory of its own that goes with its scope.
class Scratch {
 public:
  Scratch() {
    std::random_device random;
    do {
      path_ = std::filesystem::temp_directory_path() / ("txport-" + std::to_string(random()));
    } while (!std::filesystem::create_directory(path_));
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // A copy of the toy bundle that can be changed.
  std::filesystem::path bundle() const {
    const auto copy = path_ / "bundle";
    std::filesystem::copy(kToyBundle, copy, std::filesystem::copy_options::recursive);
    return copy;
  }

 private:
  std::filesystem::path path_;
};
