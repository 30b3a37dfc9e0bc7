// The chain of kernels as a library for Python: one function that launches a kernel, and the sizes as variables.
#include "emulator.hpp"

#include <algorithm>
#include <random>
#include <sstream>
#include <string>

#include "chain.cu"

struct Kernel {
  void (*body)(const void*);
  size_t bytes;  // of its arguments
};

template <class Arguments, void (*kernel)(Arguments)>
void call(const void* arguments) {
  kernel(*static_cast<const Arguments*>(arguments));
}

#define ENTRY(kernel, Arguments) std::pair(#kernel, Kernel{&call<Arguments, kernel>, sizeof(Arguments)})
static const std::map<std::string, Kernel> kernels = {
    ENTRY(embed, Embedding),         ENTRY(project_heads, Product),  ENTRY(attend, Attention),
    ENTRY(project_context, Product), ENTRY(project_inner, Product),  ENTRY(project_outer, Product),
    ENTRY(normalise, Product),       ENTRY(project_logits, Product), ENTRY(mix, Mixture),
    ENTRY(choose, Choice),
};

#define SIZE(name) \
  { #name, &name }
static const std::map<std::string, int*> sizes = {
    SIZE(ROWS),  SIZE(D_MODEL),  SIZE(HEADS), SIZE(HEAD_DIM),    SIZE(FFN),  SIZE(VOCABULARY),
    SIZE(CACHE), SIZE(PRE_NORM), SIZE(GATED), SIZE(HALF_CACHES), SIZE(NORM), SIZE(ACTIVATION),
};

// Sizes as lines of "NAME=value".
extern "C" void set_sizes(const char* text) {
  std::istringstream lines(text);
  for (std::string name, value; std::getline(std::getline(lines, name, '='), value);)
    if (name == "EPSILON")
      EPSILON = std::stof(value);
    else
      *sizes.at(name) = std::stoi(value);
}

// Bytes of the arguments of a kernel; 0 if there is none of this name.
extern "C" size_t argument_bytes(const char* name) { return kernels.count(name) ? kernels.at(name).bytes : 0; }

// Runs each block of a kernel so often, in an order of the seed's; 0 is their own order. Ends the process on an error.
extern "C" void launch(const char* name, int blocks, const void* arguments, size_t bytes, int times, unsigned seed) {
  if (!bytes || argument_bytes(name) != bytes) FAIL("there is no kernel %s of %zu bytes of arguments", name, bytes);
  body = kernels.at(name).body;
  body_arguments = arguments;
  std::vector<int> order(static_cast<size_t>(blocks) * times);
  for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<int>(i % blocks);
  std::mt19937 random(seed);
  if (seed) std::shuffle(order.begin(), order.end(), random);
  gridDim.x = blocks;
  for (int block : order) {
    blockIdx.x = block;
    run_block(seed ? random() : 0);
  }
}
