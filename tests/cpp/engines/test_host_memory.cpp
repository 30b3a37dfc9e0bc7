// Memory that is kept for the next batch: used again, and never more than was in use at once.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "engines/host_memory.hpp"

using namespace txport::core;

TEST_CASE("a returned block is taken again, with what was left in it") {
  HostMemory memory;
  const HostMemory::Block first = memory.take(kLarge);
  CHECK(first.zero);
  CHECK(first.bytes >= kLarge);
  CHECK(first.data[first.bytes - 1] == std::byte{0});
  std::memset(first.data, 7, first.bytes);
  const HostMemory::Block second = memory.take(kLarge);
  CHECK(second.data != first.data);
  CHECK(second.zero);
  memory.give_back(first);
  const HostMemory::Block again = memory.take(kLarge);
  CHECK(again.data == first.data);
  CHECK_FALSE(again.zero);
  CHECK(again.data[0] == std::byte{7});
  memory.give_back(again);
  memory.give_back(second);
}

TEST_CASE("a large block is not kept beside a small one if both were never in use at once") {
  HostMemory memory;
  memory.give_back(memory.take(5 * kLarge));
  const HostMemory::Block small = memory.take(kLarge);  // less than half of what is kept: that would be a waste
  CHECK(small.zero);
  const HostMemory::Block large = memory.take(4 * kLarge);
  CHECK(large.zero);
  memory.give_back(small);
  memory.give_back(large);
}

TEST_CASE("the last pointer gives a block back; little memory is malloc's") {
  const auto memory = std::make_shared<HostMemory>();
  const SharedBlock little = share_block(memory, 100);
  CHECK(little.zero);
  SharedBlock first = share_block(memory, kLarge);
  const std::byte* data = first.data.get();
  std::shared_ptr<std::byte> other = first.data;
  first.data.reset();
  CHECK(share_block(memory, kLarge).data.get() != data);
  other.reset();
  const std::byte* one = share_block(memory, kLarge).data.get();
  const SharedBlock two = share_block(memory, kLarge);
  CHECK_FALSE(two.zero);
  CHECK((one == data || two.data.get() == data));
}

TEST_CASE("more than there is") {
  HostMemory memory;
  CHECK_THROWS_AS(memory.take(SIZE_MAX), std::bad_alloc);
  CHECK_THROWS_AS(memory.take(std::size_t{1} << 62), std::bad_alloc);
}
