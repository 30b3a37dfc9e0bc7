// Memory for packed weights: blocks are apart, aligned, and given back.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "engines/packed_memory.hpp"

using namespace txport::core;

namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

std::size_t resident() {
  std::ifstream facts("/proc/self/statm");
  std::size_t size = 0;
  std::size_t pages = 0;
  facts >> size >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

struct Block {
  unsigned char* data;
  std::size_t bytes;
  unsigned char mark;

  bool is_whole() const {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (data[i] != mark) return false;
    }
    return true;
  }
};

Block marked(std::size_t bytes, unsigned char mark) {
  const Block block{static_cast<unsigned char*>(packed_allocate(bytes)), bytes, mark};
  std::memset(block.data, mark, bytes);
  return block;
}

}  // namespace

TEST_CASE("blocks are apart and aligned, in any thread") {
  const auto work = [](unsigned char mark, bool& whole) {
    std::vector<Block> blocks;
    for (const std::size_t bytes : {1UL, 100UL, 65536UL, 100001UL, kMegabyte, 3 * kMegabyte + 5}) {
      blocks.push_back(marked(bytes, mark));
      whole = whole && reinterpret_cast<std::uintptr_t>(blocks.back().data) % 64 == 0;
      if (blocks.size() % 2 == 0) {
        whole = whole && blocks.front().is_whole();
        packed_free(blocks.front().data);
        blocks.erase(blocks.begin());
      }
    }
    for (const Block& block : blocks) {
      whole = whole && block.is_whole();
      packed_free(block.data);
    }
  };
  std::vector<std::thread> threads;
  bool whole[4] = {true, true, true, true};
  for (unsigned char i = 0; i < 4; ++i)
    threads.emplace_back(work, static_cast<unsigned char>(i + 1), std::ref(whole[i]));
  for (std::thread& thread : threads) thread.join();
  for (const bool one : whole) CHECK(one);
}

TEST_CASE("memory goes back to the system with its block, not only with its mapping") {
  const Block stays = marked(kMegabyte, 1);
  const std::size_t before = resident();
  const Block large = marked(300 * kMegabyte, 2);  // larger than a mapping
  const Block small = marked(32 * kMegabyte, 3);
  CHECK(resident() >= before + 330 * kMegabyte);
  packed_free(large.data);
  packed_free(small.data);
  CHECK(resident() <= before + 8 * kMegabyte);
  CHECK(stays.is_whole());
  packed_free(stays.data);
}

TEST_CASE("what cannot be given") {
  CHECK(packed_allocate(PTRDIFF_MAX) == nullptr);
  CHECK(plain_allocate(SIZE_MAX) == nullptr);
  packed_free(nullptr);
}
