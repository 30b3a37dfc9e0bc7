#include "engines.hpp"

#include <algorithm>
#include <array>

#include "errors.hpp"

#ifdef TXPORT_WITH_ORT
#include "ort.hpp"
#endif

namespace txport::core {

namespace {

constexpr std::array kDevices{"auto", "cpu", "cuda"};
constexpr std::array kLowerings{"ort", "scatter", "tensorscatter"};

template <typename Names>
bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename Names>
std::string joined(const Names& names) {
  std::string result;
  for (const auto& name : names) result += (result.empty() ? "" : ", ") + std::string(name);
  return result;
}

}  // namespace

Choice choose(const Manifest& manifest, const std::string& device, const std::string& lowering) {
  if (!contains(kDevices, device)) {
    throw InputError("device " + quote(device) + " is not supported by this version of txport: use " +
                     joined(kDevices));
  }
  std::vector<std::string> here;
  for (const char* name : kLowerings) {
    if (manifest.graph("decoder_step", name) != nullptr) here.emplace_back(name);
  }
  const std::string place = device == "cuda" ? "cuda" : "cpu";
  if (lowering.empty()) return {"ort", place, here};
  if (!contains(kLowerings, lowering)) {
    throw InputError("lowering " + quote(lowering) + " is unknown: use " + joined(kLowerings));
  }
  if (!contains(here, lowering)) {
    throw BundleError("the bundle has no lowering " + quote(lowering) + ", only " + joined(here) +
                      ": choose one of these");
  }
  return {"ort", place, {lowering}};
}

std::unique_ptr<Engine> open_engine(const std::filesystem::path& directory, const Manifest& manifest,
                                    const Choice& choice, int threads) {
#ifdef TXPORT_WITH_ORT
  return open_ort(directory, manifest, choice, threads);
#else
  (void)directory, (void)manifest, (void)choice, (void)threads;
  throw InputError("this build of txport has no engine: configure it with -DTXPORT_WITH_ORT=ON");
#endif
}

}  // namespace txport::core
