#include "engines/directories.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <tuple>

#include "bundle/hash.hpp"
#include "errors.hpp"
#include "system/system.hpp"

namespace txport::core {

namespace {

namespace fs = std::filesystem;

bool version_fits(const BuildRecord& record, const LibraryVersion& library) {
  if (record.library.name != library.name) return false;
  auto built = record.library.numbers();
  auto installed = library.numbers();
  // In some releases, the version of the Python package has no build number.
  if (std::min(built.size(), installed.size()) == 3) {
    built.resize(3);
    installed.resize(3);
  }
  if (built == installed) return true;
  return record.version_compatible && !installed.empty() && built[0] == installed[0] && installed >= built;
}

// Return whether a GPU has the name and compute capability of the target. Its number of multiprocessors may differ.
bool has_name(const TargetGpu& target, const Gpu& gpu) {
  return target.name == gpu.name && target.compute_capabilities == std::vector{gpu.compute_capability};
}

bool gpu_fits(const TargetGpu& target, const Gpu& gpu) {
  if (target.compatibility == "exact") return has_name(target, gpu) && target.multiprocessors == gpu.multiprocessors;
  const auto& listed = target.compute_capabilities;
  if (target.compatibility == "ampere_plus") return std::stoi(gpu.compute_capability) >= 8;
  return std::find(listed.begin(), listed.end(), gpu.compute_capability) != listed.end();
}

// Return a message "is for ..., but this machine has ...".
std::string misfit(const TargetGpu& target, const Gpu& gpu) {
  const std::string capabilities = joined(target.compute_capabilities);
  std::string built_for =
      "compute capability " + (target.compatibility == "ampere_plus" ? "8.0 and later" : capabilities);
  std::string present = gpu.title();
  if (target.compatibility == "exact") built_for = *target.name + " (" + capabilities + ")";
  if (target.compatibility == "exact" && has_name(target, gpu)) {
    built_for += " of " + std::to_string(*target.multiprocessors) + " multiprocessors";
    present += " of " + std::to_string(gpu.multiprocessors);
  }
  return "is for " + built_for + ", but this machine has " + present;
}

// Return the reason why engines do not fit this machine; no value if they fit.
std::optional<std::string> misfit(const BuildRecord& record, const Manifest& manifest, const Gpu& gpu,
                                  const LibraryVersion& library) {
  for (const auto& [name, digest] : record.bundle) {
    const auto listed = manifest.files.find(name);
    if (listed == manifest.files.end() || listed->second.sha256 != digest) return "was built from another bundle";
  }
  if (!version_fits(record, library)) {
    return "needs " + record.library.title() + ", but " + library.title() + " is installed";
  }
  return gpu_fits(record.gpu, gpu) ? std::nullopt : std::optional(misfit(record.gpu, gpu));
}

std::int64_t largest_batch(const BuildRecord& record) {
  std::int64_t largest = 0;
  for (const EngineFile& engine : record.of_role("decoder_step")) {
    for (const Profile& profile : engine.profiles) largest = std::max(largest, profile.batch.max);
  }
  return largest;
}

// Return the sort key of engines: built for exactly this GPU first, then for exactly this library version, then the
// largest batch.
auto rank(const Built& built) {
  const BuildRecord& record = built.record;
  return std::tuple(record.gpu.compatibility != "exact", record.version_compatible, -largest_batch(record),
                    built.directory.filename().string());
}

// Return this user's cache directory. The Python twin is txport.runtime.bundle.names.
fs::path cache_directory() {
  if (const std::string named = variable("TXPORT_CACHE"); !named.empty()) return named;
  const std::string caches = variable("XDG_CACHE_HOME");
  return (caches.empty() ? fs::path(variable("HOME")) / ".cache" : fs::path(caches)) / "txport";
}

// Return whether only this user and root can write to a folder.
bool is_private(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return false;
  return (status.st_uid == 0 || status.st_uid == ::geteuid()) && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

fs::path user_engines(const Manifest& manifest) {
  const std::string folder = fs::path(kWeightsName).parent_path().string() + "/";
  std::string hashes;
  for (const auto& [name, entry] : manifest.files) {
    if (name.rfind(folder, 0) == 0) hashes += name + " " + entry.sha256 + "\n";
  }
  return cache_directory() / kEnginesName / sha256(hashes);
}

std::string untrusted(const fs::path& bundle) {
  return "the engines in " + (bundle / kEnginesName).string() +
         " are native code of a third party and are not used: run tx-build " + bundle.string() +
         ", or trust them with --trust-engines (trust_engines)";
}

std::vector<fs::path> usable_directories(const fs::path& bundle, const Manifest& manifest, bool trust_engines) {
  const fs::path user_directory = user_engines(manifest);
  std::vector<fs::path> directories = engine_directories(user_directory);
  if (!directories.empty() && !is_private(user_directory)) {
    throw BundleError("other users can write the TensorRT engines in " + user_directory.string() +
                      ": remove it, and run tx-build " + bundle.string());
  }
  if (trust_engines) {
    for (fs::path& each : engine_directories(bundle / kEnginesName)) directories.push_back(std::move(each));
  }
  return directories;
}

std::vector<fs::path> engine_directories(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code fault;
  for (fs::directory_iterator entry(folder, fault), end; !fault && entry != end; entry.increment(fault)) {
    std::error_code ignored;
    const bool hidden = entry->path().filename().string().front() == '.';
    if (!hidden && fs::exists(entry->path() / kBuildName, ignored)) found.push_back(entry->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

Candidates candidates(const fs::path& bundle, const Manifest& manifest, const Gpu& gpu, const LibraryVersion& library,
                      bool trust_engines) {
  Candidates result;
  for (const fs::path& directory : usable_directories(bundle, manifest, trust_engines)) {
    const std::string name = directory.filename().string();
    try {
      BuildRecord record = BuildRecord::load(directory);
      if (auto reason = misfit(record, manifest, gpu, library)) {
        result.refused.emplace_back(name, *reason);
      } else {
        result.fitting.push_back({directory, std::move(record)});
      }
    } catch (const BundleError& error) {
      const std::string start = directory.string() + "/";
      const std::string message = error.what();
      result.refused.emplace_back(name, message.rfind(start, 0) == 0 ? message.substr(start.size()) : message);
    }
  }
  std::sort(result.fitting.begin(), result.fitting.end(),
            [](const Built& first, const Built& second) { return rank(first) < rank(second); });
  return result;
}

Built best(const fs::path& bundle, const Manifest& manifest, const Gpu& gpu, const LibraryVersion& library,
           bool trust_engines) {
  Candidates checked = candidates(bundle, manifest, gpu, library, trust_engines);
  if (!checked.fitting.empty()) return std::move(checked.fitting.front());
  std::string reasons;
  for (const auto& [name, reason] : checked.refused) {
    reasons += (reasons.empty() ? "" : "; ") + std::string(kEnginesName) + "/" + name + ": " + reason;
  }
  if (reasons.empty()) reasons = "there is none";
  throw BundleError(
      "no TensorRT engine of " + bundle.string() + " fits this machine (" + gpu.name + ", compute capability " +
      gpu.compute_capability + ", " + library.title() + "): " + reasons + "; run tx-build " + bundle.string() +
      " here" + (trust_engines || engine_directories(bundle / kEnginesName).empty() ? "" : "; " + untrusted(bundle)));
}

}  // namespace txport::core
