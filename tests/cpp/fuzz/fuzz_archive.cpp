// Any bytes are an archive of tx-pack or are refused by a BundleError; nothing else. Of one that is taken, members lie
// in it, at pages, one after the other, and have names that stay inside of a directory. An even first byte: the rest
// are the bytes; an odd one: they change bytes of the toy bundle's archive, mostly where its directory is.

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "bundle/archive.hpp"
#include "bundle/external_data.hpp"
#include "choices.hpp"
#include "errors.hpp"
#include "repository.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

std::string changed(const std::string& archive, Choices choices) {
  std::string data = archive;
  while (choices.any()) {
    const bool at_end = choices.below(4) != 0;
    const std::size_t place = choices.below(at_end ? 1024 : 65536) % data.size();
    const std::size_t at = at_end ? data.size() - 1 - place : place;
    const std::size_t what = choices.below(8);
    if (what == 0) {
      data.resize(at + 1);
    } else if (what == 1) {
      data.insert(at, choices.below(64), static_cast<char>(choices.below(256)));
    } else {
      data[at] = static_cast<char>(choices.below(256));
    }
  }
  return data;
}

void read(std::string_view data) {
  std::map<std::string, std::string_view> members;
  try {
    members = txport::core::read_archive(data, "it");
  } catch (const txport::core::BundleError&) {
    return;
  }
  const char* end = data.data();
  for (const auto& [name, bytes] : members) {
    require(txport::core::is_inside(name));
    require(bytes.data() >= end && bytes.data() + bytes.size() <= data.data() + data.size());
    require((bytes.data() - data.data()) % 4096 == 0);
    end = bytes.data() + bytes.size();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  static const std::string archive = contents(kTests / "data" / "toy_bundle.txb");
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  if (bytes[0] % 2 == 1) {
    read(changed(archive, Choices(bytes + 1, size - 1)));
  } else {
    read(rest);
  }
  try {
    txport::core::moved_external_data(rest, "model.txb", 4096);
  } catch (const txport::core::BundleError&) {
  }
  return 0;
}
