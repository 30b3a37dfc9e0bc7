#include "bundle/hash.hpp"

#include <sha2.h>

#include <array>
#include <cstddef>
#include <limits>

#include "bundle/files.hpp"

namespace txport::core {

namespace {

void update(SHA2_CTX& context, std::string_view data) {
  SHA256Update(&context, reinterpret_cast<const unsigned char*>(data.data()), data.size());
}

std::string hexadecimal(SHA2_CTX& context) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256Final(digest.data(), &context);
  std::string result;
  for (const unsigned char byte : digest) {
    result += "0123456789abcdef"[byte >> 4];
    result += "0123456789abcdef"[byte & 15];
  }
  return result;
}

}  // namespace

std::string sha256(std::string_view data) {
  SHA2_CTX context;
  SHA256Init(&context);
  update(context, data);
  return hexadecimal(context);
}

std::string sha256_of(const std::filesystem::path& path) {
  SHA2_CTX context;
  SHA256Init(&context);
  read_chunks(path, std::numeric_limits<std::size_t>::max(), [&](std::string_view chunk) { update(context, chunk); });
  return hexadecimal(context);
}

}  // namespace txport::core
