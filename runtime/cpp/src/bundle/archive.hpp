// A bundle in one file: an uncompressed zip archive (PKWARE APPNOTE 6.3), of which members are mapped, not unpacked.
//
// txport.runtime.bundle.archive writes it, and reads it by the same rules: there is one archive of given files, byte
// for byte.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace txport::core {

// The members of an archive, by name: their bytes. `file` is its name in messages. Of the bytes of members nothing is
// read: a bundle has hashes of its own.
// Throws BundleError: it is not an archive as tx-pack writes it.
std::map<std::string, std::string_view> read_archive(std::string_view data, const std::string& file);

// Whether a name is a plain path inside a bundle: relative, without empty, '.' or '..' parts, backslashes or control
// characters.
bool is_inside(std::string_view name);

}  // namespace txport::core
