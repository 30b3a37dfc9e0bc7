#include "bundle/archive.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "utf8.hpp"

namespace txport::core {

namespace {

constexpr std::uint64_t kPage =
    4096;  // members start at multiples of this, so tensors keep their alignment in the file
constexpr std::uint64_t kInZip64 = 0xFFFFFFFF;  // marks a number that is in the zip64 extra field
constexpr std::uint64_t kZip64 = 1;
constexpr std::uint64_t kAlignment = 0xD935;  // extra field for padding, as Android's zipalign writes it
constexpr std::uint64_t kUtf8 = 0x0800;
constexpr std::uint64_t kFirstDay = 0x21;  // 1980-01-01
constexpr std::uint64_t kUnix = 3U << 8U;
constexpr std::uint64_t kUnixFile = std::uint64_t{0100644} << 16U;
constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{16} << 20U;
constexpr std::size_t kLocalSize = 30;
constexpr std::size_t kCentralSize = 46;
constexpr std::size_t kEndSize = 22;
constexpr std::size_t kZip64EndSize = 76;  // zip64 end record and its locator

// A member, as listed in the central directory.
struct Entry {
  std::string_view name;
  std::uint64_t size = 0;
  std::uint64_t crc = 0;
};

// Return a little-endian number of `bytes` bytes.
std::uint64_t number(std::string_view data, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(data[at + i])} << 8 * i;
  }
  return value;
}

// Builder of a record of little-endian numbers and bytes.
struct Record {
  std::string bytes;

  Record& add(std::size_t count, std::uint64_t value) {
    for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> 8 * i & 0xFFU));
    return *this;
  }
  Record& add(std::string_view more) {
    bytes += more;
    return *this;
  }
};

// Return the zip64 extra field with the values that need more than 32 bits; empty if there are none.
std::string zip64_field(const std::vector<std::uint64_t>& values) {
  Record numbers;
  for (const std::uint64_t value : values) {
    if (value >= kInZip64) numbers.add(8, value);
  }
  if (numbers.bytes.empty()) return "";
  return Record().add(2, kZip64).add(2, numbers.bytes.size()).add(numbers.bytes).bytes;
}

std::uint64_t version_of(const std::string& zip64) { return zip64.empty() ? 20 : 45; }

// Return the part that both headers of a member have in common. `extra` is the size of the extra fields.
std::string common(const Entry& entry, std::uint64_t version, std::size_t extra) {
  const std::uint64_t size = std::min(entry.size, kInZip64);
  return Record()
      .add(2, version)
      .add(2, kUtf8)
      .add(2, 0)  // not compressed
      .add(2, 0)  // midnight
      .add(2, kFirstDay)
      .add(4, entry.crc)
      .add(4, size)
      .add(4, size)
      .add(2, entry.name.size())
      .add(2, extra)
      .bytes;
}

// Return the local header of a member at byte `start` of the archive, padded so that the data starts at a page.
std::string local_header(const Entry& entry, std::uint64_t start) {
  const std::string zip64 = zip64_field({entry.size, entry.size});
  const std::uint64_t unpadded = start + kLocalSize + entry.name.size() + zip64.size() + 6;
  const std::size_t padding = (kPage - unpadded % kPage) % kPage;
  const std::string extra =
      Record().add(zip64).add(2, kAlignment).add(2, 2 + padding).add(2, kPage).add(std::string(padding, '\0')).bytes;
  return Record().add("PK\3\4").add(common(entry, version_of(zip64), extra.size())).add(entry.name).add(extra).bytes;
}

// Return the header of a member in the central directory. `start` is the position of its local header.
std::string central_header(const Entry& entry, std::uint64_t start) {
  const std::string extra = zip64_field({entry.size, entry.size, start});
  const std::uint64_t version = version_of(extra);
  return Record()
      .add("PK\1\2")
      .add(2, kUnix | version)
      .add(common(entry, version, extra.size()))
      .add(6, 0)  // no comment, the first disk, no text
      .add(4, kUnixFile)
      .add(4, std::min(start, kInZip64))
      .add(entry.name)
      .add(extra)
      .bytes;
}

// Return all bytes after the last member: the central directory, which begins at `start`, and the end records.
std::string tail_of(const std::string& central, std::uint64_t count, std::uint64_t start) {
  Record tail;
  tail.add(central);
  if (start >= kInZip64) {
    tail.add("PK\6\6").add(8, kZip64EndSize - 20 - 12).add(2, kUnix | 45U).add(2, 45).add(8, 0);
    tail.add(8, count).add(8, count).add(8, central.size()).add(8, start);
    tail.add("PK\6\7").add(4, 0).add(8, start + central.size()).add(4, 1);
  }
  tail.add("PK\5\6").add(4, 0).add(2, count).add(2, count).add(4, central.size()).add(4, std::min(start, kInZip64));
  return tail.add(2, 0).bytes;
}

class Reader {
 public:
  Reader(std::string_view data, const std::string& file) : data_(data), file_(file) {}

  std::map<std::string, std::string_view> members() const {
    const std::vector<Entry> entries = directory();
    std::map<std::string, std::string_view> result;
    std::string central;
    std::uint64_t at = 0;
    for (const Entry& entry : entries) {
      central += central_header(entry, at);
      const std::string local = local_header(entry, at);
      if (at > data_.size() || data_.substr(at, local.size()) != local) {
        refuse("a member's header differs from the directory");
      }
      at += local.size();
      if (entry.size > data_.size() - at) refuse("a member is larger than the archive");
      result.emplace(entry.name, data_.substr(at, entry.size));
      at += entry.size;
    }
    if (data_.substr(at) != tail_of(central, entries.size(), at)) refuse("its directory does not fit its members");
    return result;
  }

 private:
  std::string_view data_;
  const std::string& file_;

  [[noreturn]] void refuse(const std::string& reason) const {
    throw BundleError(file_ + " is not a valid file of tx-pack, " + reason + ": copy it or pack it again");
  }

  // Read names, sizes and checksums from the central directory. Other fields are ignored here.
  std::vector<Entry> directory() const {
    if (data_.size() < kEndSize || data_.substr(data_.size() - kEndSize, 4) != "PK\5\6") {
      throw BundleError(file_ + " is not a bundle: give a directory of tx-export or a file of tx-pack");
    }
    const std::size_t end = data_.size() - kEndSize;
    const std::uint64_t count = number(data_, end + 8, 2);
    const std::uint64_t size = number(data_, end + 12, 4);
    std::uint64_t start = number(data_, end + 16, 4);
    if (start == kInZip64 && end >= kZip64EndSize) start = number(data_, end - kZip64EndSize + 48, 8);
    if (size > kMaxDirectoryBytes || start > end || size > end - start) refuse("its directory is outside the file");
    std::string_view rest = data_.substr(start, size);
    std::vector<Entry> entries;
    for (std::uint64_t i = 0; i < count; ++i) {
      entries.push_back(take_entry(rest));
      if (i > 0 && entries[i - 1].name >= entries[i].name) refuse("its names are not in ascending order");
    }
    return entries;
  }

  // Take the first remaining entry of the directory.
  Entry take_entry(std::string_view& rest) const {
    if (rest.size() < kCentralSize) refuse("its directory is too short");
    const std::size_t name_size = number(rest, 28, 2);
    const std::size_t extra_size = number(rest, 30, 2);
    Entry entry{{}, number(rest, 24, 4), number(rest, 16, 4)};
    if (name_size + extra_size > rest.size() - kCentralSize) refuse("its directory is too short");
    entry.name = rest.substr(kCentralSize, name_size);
    const std::string_view extra = rest.substr(kCentralSize + name_size, extra_size);
    if (entry.size == kInZip64 && extra.size() >= 12) entry.size = number(extra, 4, 8);
    if (utf8_fault(entry.name) || !is_inside(entry.name)) refuse("a name is not a plain path inside the bundle");
    rest.remove_prefix(kCentralSize + name_size + extra_size);
    return entry;
  }
};

}  // namespace

std::map<std::string, std::string_view> read_archive(std::string_view data, const std::string& file) {
  return Reader(data, file).members();
}

bool is_inside(std::string_view name) {
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    const std::string_view part = name.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") return false;
    start = end + 1;
  }
  return std::none_of(name.begin(), name.end(), [](char c) { return c == '\\' || static_cast<unsigned char>(c) < 32; });
}

}  // namespace txport::core
