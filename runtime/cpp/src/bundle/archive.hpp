// A bundle in one file: an uncompressed zip archive (PKWARE APPNOTE 6.3). Members are mapped, not unpacked.
//
// txport.runtime.bundle.archive writes archives and reads them with the same rules. Given files have exactly one valid
// archive, byte for byte.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace txport::core {

// Return the bytes of each member of an archive, by name. `file` is its name in messages. Contents of members are not
// read; the manifest has their hashes. Throws BundleError: it is not an archive of tx-pack.
std::map<std::string, std::string_view> read_archive(std::string_view data, const std::string& file);

// Return whether a name is a plain path inside a bundle: relative, without empty, '.' or '..' parts, backslashes or
// control characters.
bool is_inside(std::string_view name);

}  // namespace txport::core
