#include "bundle/external_data.hpp"

#include <charconv>
#include <cstdint>

#include "bundle/protobuf.hpp"
#include "errors.hpp"

namespace txport::core {

namespace {

constexpr const char* kFault = "a graph of the bundle is not an ONNX model: copy or export the bundle again";
// Fields of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.external_data, StringStringEntryProto.
constexpr std::uint64_t kGraph = 7;
constexpr std::uint64_t kInitializer = 5;
constexpr std::uint64_t kExternalData = 13;
constexpr std::uint64_t kKey = 1;
constexpr std::uint64_t kValue = 2;

struct Mover {
  const std::string& location;
  std::uint64_t start;

  static std::string entry(std::string_view key, std::string_view value) {
    return field_of(kExternalData, field_of(kKey, key) + field_of(kValue, value));
  }

  std::string tensor(std::string_view message) const {
    std::string result;
    std::uint64_t offset = 0;
    bool external = false;
    for (Fields fields(message, kFault); const auto field = fields.next();) {
      if (field->number != kExternalData) {
        result += field->whole;
        continue;
      }
      external = true;
      std::string_view key;
      std::string_view value;
      for (Fields pair(field->bytes, kFault); const auto part = pair.next();) {
        if (part->number == kKey) key = part->bytes;
        if (part->number == kValue) value = part->bytes;
      }
      if (key == "offset") {
        const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), offset);
        if (fault != std::errc() || end != value.data() + value.size()) throw BundleError(kFault);
      } else if (key != "location") {
        result += field->whole;
      }
    }
    if (external) result += entry("location", location) + entry("offset", std::to_string(start + offset));
    return result;
  }

  std::string graph(std::string_view message) const {
    std::string result;
    for (Fields fields(message, kFault); const auto field = fields.next();) {
      result +=
          field->number == kInitializer ? field_of(kInitializer, tensor(field->bytes)) : std::string(field->whole);
    }
    return result;
  }
};

}  // namespace

std::string moved_external_data(std::string_view model, const std::string& location, std::size_t start) {
  const Mover mover{location, start};
  std::string result;
  for (Fields fields(model, kFault); const auto field = fields.next();) {
    result += field->number == kGraph ? field_of(kGraph, mover.graph(field->bytes)) : std::string(field->whole);
  }
  return result;
}

}  // namespace txport::core
