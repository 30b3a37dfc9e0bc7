#include "abi/guard.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>

#include "utf8.hpp"

namespace txport::abi {

namespace {

// The message has a fixed size, so that reporting "out of memory" does not allocate.
constexpr std::size_t kMessageBytes = 4096;
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): one per thread, like errno
thread_local std::array<char, kMessageBytes> message{};

void keep(std::string_view words) {
  const std::size_t size =
      words.size() < kMessageBytes ? words.size() : core::character_begin(words, kMessageBytes - 1);
  std::memcpy(message.data(), words.data(), size);
  message[size] = '\0';
}

}  // namespace

txport_code fail(txport_code code, const char* words) noexcept {
  try {
    keep(core::printable(words));
  } catch (const std::bad_alloc&) {
    keep(words);
  }
  return code;
}

txport_code fail_with_current_exception() noexcept {
  try {
    throw;
  } catch (const core::InputError& error) {
    return fail(TXPORT_INPUT_ERROR, error.what());
  } catch (const core::BundleError& error) {
    return fail(TXPORT_BUNDLE_ERROR, error.what());
  } catch (const core::CheckFailed& error) {
    return fail(TXPORT_CHECK_FAILED, error.what());
  } catch (const core::ResourceError& error) {
    return fail(TXPORT_RESOURCE_ERROR, error.what());
  } catch (const core::EngineError& error) {
    return fail(TXPORT_ENGINE_ERROR, error.what());
  } catch (const core::MissingLibrary& error) {
    return fail(TXPORT_MISSING_LIBRARY, error.what());
  } catch (const core::Cancelled& error) {
    return fail(TXPORT_CANCELLED, error.what());
  } catch (const core::DeadlineExceeded& error) {
    return fail(TXPORT_DEADLINE_EXCEEDED, error.what());
  } catch (const std::bad_alloc&) {
    return fail(TXPORT_RESOURCE_ERROR, "out of memory: use a smaller batch, or free some");
  } catch (const std::exception& error) {
    return fail(TXPORT_INTERNAL_ERROR, error.what());
  } catch (...) {
    return fail(TXPORT_INTERNAL_ERROR, "an exception of an unknown kind");
  }
}

}  // namespace txport::abi

const char* txport_version(void) noexcept { return TXPORT_VERSION; }

const char* txport_message(void) noexcept { return txport::abi::message.data(); }
