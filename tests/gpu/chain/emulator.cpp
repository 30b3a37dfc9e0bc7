// The chain of kernels as a library for Python: one function that launches a kernel, and the sizes as variables.
#include "emulator.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "chain.cu"

namespace {

template <class Arguments, void (*kernel)(Arguments)>
void body(const void* arguments) {
  kernel(*static_cast<const Arguments*>(arguments));
}

struct Kernel {
  const char* name;
  Fibers::Body body;
  size_t bytes;
};

#define ENTRY(name, Arguments) \
  { #name, &body < Arguments, name>, sizeof(Arguments) }
const Kernel kKernels[] = {
    ENTRY(embed, Embedding),        ENTRY(project_self, Product),
    ENTRY(attend, Attention),       ENTRY(project_context, Product),
    ENTRY(project_cross, Product),  ENTRY(project_inner, Product),
    ENTRY(project_outer, Product),  ENTRY(normalise, Product),
    ENTRY(project_logits, Product), ENTRY(mix, Mixture),
    ENTRY(choose, Choice),
};

const Kernel* find(const std::string& name) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

#define SIZE(name) \
  { #name, &name }
const std::map<std::string, int*> kSizes = {
    SIZE(ROWS),     SIZE(D_MODEL), SIZE(HEADS),  SIZE(HEAD_DIM),    SIZE(FFN),  SIZE(VOCABULARY), SIZE(CACHE),
    SIZE(PRE_NORM), SIZE(GATED),   SIZE(ROTARY), SIZE(HALF_CACHES), SIZE(NORM), SIZE(ACTIVATION),
};

}  // namespace

// Sizes as lines of "NAME=value".
extern "C" void set_sizes(const char* text) {
  std::istringstream lines(text);
  for (std::string name, value; std::getline(std::getline(lines, name, '='), value);) {
    if (name == "EPSILON") {
      EPSILON = std::stof(value);
    } else if (kSizes.count(name)) {
      *kSizes.at(name) = std::stoi(value);
    } else {
      FAIL("there is no size %s", name.c_str());
    }
  }
}

// Bytes of the arguments of a kernel; 0 if there is none of this name.
extern "C" size_t argument_bytes(const char* name) {
  const Kernel* kernel = find(name);
  return kernel ? kernel->bytes : 0;
}

// Runs each block of a kernel so often, in an order of the seed's; 0 is their own order. Ends the process on an error.
extern "C" void launch(const char* name, int blocks, const void* arguments, size_t bytes, int times, unsigned seed) {
  const Kernel* kernel = find(name);
  if (!kernel) FAIL("there is no kernel %s", name);
  if (kernel->bytes != bytes) FAIL("%s takes %zu bytes of arguments, not %zu", name, kernel->bytes, bytes);
  std::vector<int> order(static_cast<size_t>(blocks) * times);
  for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<int>(i % blocks);
  std::mt19937 random(seed);
  if (seed) std::shuffle(order.begin(), order.end(), random);
  gridDim.x = blocks;
  for (int block : order) {
    blockIdx.x = block;
    shared_parts.clear();
    shared_parts.reserve(8);
    fibers.run(kernel->body, arguments, seed ? random() : 0);
  }
}
