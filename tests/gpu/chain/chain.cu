// One step of greedy decoding as a chain of kernels. It follows ptx.cuh on a GPU and emulator.hpp on a CPU.
//
// A block reads nothing that another block of its kernel writes, so blocks need no order. Row-major arrays have rows
// of a multiple of 8 floats; the numbers after the last are 0. Sizes are constants on a GPU and variables in the
// emulator:
//   ROWS              maximum rows: 8, 16 or 32
//   D_MODEL, HEADS, HEAD_DIM, FFN, VOCABULARY, CACHE (length of caches)
//   PRE_NORM, GATED, HALF_CACHES (else float32)
//   NORM              of enum Norms;  ACTIVATION   of enum Activations
//   EPSILON           of norms
// Queries are scaled by their weights.

enum Norms { LAYER_NORM, RMS_NORM, AFFINE };
enum Activations { RELU, GELU, GELU_TANH, SILU };

// Memory of the state of all rows, each int32 [rows].
struct State {
  int *tokens, *positions, *finished;
};

// The largest values of some blocks and of each row, and their ids: [blocks, ROWS].
struct Largest {
  float* values;
  int* ids;
};

struct Embedding {
  State next, current;        // the host writes `next`; `current` is of this step
  const uint4* table;         // packed as the weights of a product, VOCABULARY outputs of D_MODEL inputs
  const float* positions;     // [CACHE, d_model], or null
  const float *gamma, *beta;  // of the norm, or null
  float* stream;
  int* error;
  float scale;
  int rows;
};

struct Product {
  const uint4* weights;  // float16 [tile of 8 outputs][chunk of 32 inputs][8 outputs][32 inputs]
  const float* bias;
  const float* stream;        // the residual stream [rows, d_model]
  const float *gamma, *beta;  // the norm of the stream, or null
  const float* input;         // [rows, inputs], unless the input is the stream
  float* output;
  void *keys, *values;  // self-attention: [rows, HEADS, CACHE, HEAD_DIM], else null
  const float* turns;   // rotary positions: cosines and sines [CACHE, HEAD_DIM / 2, 2], or null
  State state;
  Largest best;  // of the logits
  int rows;
};

struct Attention {
  const float* query;
  const void *keys, *values;  // [rows, HEADS, capacity, HEAD_DIM]
  const int* lengths;         // [rows], to which `more` is added
  const float* biases;        // of scores by distance, [HEADS, CACHE], or null
  float* weights;             // for copying: [rows, HEADS, capacity], or null
  float* context;
  int more, capacity;
};

// The copy mechanism, see models/copying.py. Its attention is the mean over `count` heads of some layers.
struct Mixture {
  const float* logits;             // [rows, VOCABULARY]
  Largest best;                    // of `blocks` blocks
  const float *state, *embedding;  // [rows, d_model]
  const float* context;            // [rows, HEADS * HEAD_DIM]
  const float* gate;               // weights of the three, then a bias
  const float* weights;            // of attention: [layers, rows, HEADS, capacity]
  const int* heads;                // [count], where each begins for row 0: (layer * rows * HEADS + head) * capacity
  const int *ids, *lengths;        // of the sources, [rows, capacity] and [rows]
  float* output;                   // log-probabilities [rows, VOCABULARY], or null
  Largest mixed;                   // of WARPS parts of the vocabulary
  int* error;
  int blocks, count, capacity;
};

struct Choice {
  Largest best;
  State current, next;
  const int* limits;
  int* history;  // tokens by position, [rows, CACHE]
  int* error;
  int blocks, rows, pad, eos;
};

#define ROW_TILES ((ROWS + 15) / 16)
constexpr int WARPS = 8;
constexpr float NONE = -3.402823466e38f;  // the lowest float: below all scores and logits
constexpr float NOTHING = 1e-30f;         // smaller probabilities of copying are treated as 0

DEVICE constexpr int padded(int count) { return (count + 7) / 8 * 8; }
DEVICE int lane() { return threadIdx.x % 32; }
DEVICE int warp() { return threadIdx.x / 32; }
DEVICE float half_at(const void* from, long long index) { return low(((const unsigned short*)from)[index]); }

// The sum of groups of lanes, in each lane.
DEVICE float lanes_sum(float x, int lanes) {
  UNROLLED (i, 5)
    if (1 << i < lanes) x += shuffle(x, 1 << i);
  return x;
}
DEVICE float warp_sum(float x) { return lanes_sum(x, 32); }

struct Eight {
  float at[8];
};

DEVICE Eight read_eight(const float* from) {
  const float4 a = *(const float4*)from, b = *((const float4*)from + 1);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

// The first `count` of 8 numbers of a cache, then zeros.
DEVICE Eight read_cache(const void* from, long long index, int count) {
  if (HALF_CACHES && HEAD_DIM % 8 == 0) {
    if (count <= 0) return {};
    const uint4 v = *((const uint4*)from + index / 8);
    return {{low(v.x), high(v.x), low(v.y), high(v.y), low(v.z), high(v.z), low(v.w), high(v.w)}};
  }
  Eight x;
  UNROLLED (i, 8) x.at[i] = i >= count ? 0 : HALF_CACHES ? half_at(from, index + i) : ((const float*)from)[index + i];
  return x;
}

// Mean and scale of a row of D_MODEL numbers, by a warp.
struct Statistics {
  float mean, scale;
  DEVICE float of(float x, float gamma, float beta) const { return (x - mean) * scale * gamma + beta; }
};

template <class Read>
DEVICE Statistics statistics(Read read) {
  if (NORM == AFFINE) return {0, 1};
  float mean = 0, squares = 0;
  if (NORM == LAYER_NORM) {
    for (int k = lane() * 2; k < D_MODEL; k += 64) mean += read(k) + read(k + 1);
    mean = warp_sum(mean) / D_MODEL;
  }
  for (int k = lane() * 2; k < D_MODEL; k += 64) {
    const float a = read(k) - mean, b = read(k + 1) - mean;
    squares += a * a + b * b;
  }
  return {mean, 1 / sqrtf(warp_sum(squares) / D_MODEL + EPSILON)};
}

// The first kernel of a step: embeddings of the tokens, a warp for each row.
KERNEL void embed(Embedding p) {
  wait_for_inputs();
  const int row = blockIdx.x * WARPS + warp();
  if (row >= p.rows) return;
  int token = p.next.tokens[row], position = p.next.positions[row];
  if (token < 0 || token >= VOCABULARY || position < 0 || position >= CACHE) {
    *p.error = 1;
    token = position = 0;
  }
  if (lane() == 0) {
    p.current.tokens[row] = token;
    p.current.positions[row] = position;
    p.current.finished[row] = p.next.finished[row];
  }
  constexpr_size int chunks = (D_MODEL + 31) / 32;
  const auto read = [&](int k) {
    const float x = p.scale * half_at(p.table, ((token / 8LL * chunks + k / 32) * 8 + token % 8) * 32 + k % 32);
    return p.positions ? x + p.positions[position * padded(D_MODEL) + k] : x;
  };
  float* to = p.stream + row * padded(D_MODEL);
  const Statistics norm = p.gamma ? statistics(read) : Statistics{0, 1};
  for (int k = lane(); k < padded(D_MODEL); k += 32) {
    float x = k < D_MODEL ? read(k) : 0;
    if (p.gamma) x = norm.of(x, p.gamma[k], p.beta[k]);
    to[k] = x;
  }
}

DEVICE uint4 packed(const Eight& x) {
  return {pack(x.at[0], x.at[1]), pack(x.at[2], x.at[3]), pack(x.at[4], x.at[5]), pack(x.at[6], x.at[7])};
}

DEVICE Eight remainder(const Eight& x, const uint4& of) {
  return {{x.at[0] - low(of.x), x.at[1] - high(of.x), x.at[2] - low(of.y), x.at[3] - high(of.y), x.at[4] - low(of.z),
           x.at[5] - high(of.z), x.at[6] - low(of.w), x.at[7] - high(of.w)}};
}

// A product reads its weights once. Warps share the inputs in chunks of 32, blocks the outputs in tiles of 8.
template <int HELD, bool NORMED>
struct Multiplier {
  const Product& p;
  const int inputs, outputs, chunks = (inputs + 31) / 32, tiles = (outputs + 7) / 8;
  const int first = (int)(blockIdx.x * (long long)tiles / gridDim.x);
  const int last = (int)((blockIdx.x + 1LL) * tiles / gridDim.x);
  Statistics* norms;
  uint4 weights[HELD];
  // Of the first operands of two mma: 32 inputs of 16 rows, or of 8 rows in two float16 numbers each, high + low.
  uint4 fragments[HELD][MAX_ROW_TILES][2];

  DEVICE Multiplier(const Product& p, int inputs, int outputs) : p(p), inputs(inputs), outputs(outputs) {}

  DEVICE int chunk(int index) const { return warp() + index * WARPS; }

  DEVICE uint4 fetch(int tile, int index) const {
    if (tile >= last || chunk(index) >= chunks) return {0, 0, 0, 0};
    return read_weights(p.weights + ((long long)tile * chunks + chunk(index)) * 32 + lane());
  }

  // 8 inputs of a row, normalised.
  DEVICE Eight read_inputs(int row, int k) const {
    if (row >= p.rows || k >= padded(inputs)) return {};
    Eight x = read_eight((NORMED ? p.stream : p.input) + row * padded(inputs) + k);
    if (!NORMED || !p.gamma) return x;
    const Eight gamma = read_eight(p.gamma + k), beta = read_eight(p.beta + k);
    UNROLLED (i, 8) x.at[i] = norms[row].of(x.at[i], gamma.at[i], beta.at[i]);
    return x;
  }

  DEVICE void read_fragments(int base) {
    UNROLLED (i, HELD) {
      const int k = chunk(base + i) * 32 + lane() % 4 * 8, row = lane() / 4;
      UNROLLED (tile, ROW_TILES) {
        const Eight x = read_inputs(tile * 16 + row, k);
        const uint4 a = packed(x);
        fragments[i][tile][0] = a;
        fragments[i][tile][1] = packed(ROWS <= 8 ? remainder(x, a) : read_inputs(tile * 16 + 8 + row, k));
      }
    }
  }

  // This warp's part of a tile, to `parts` [ROWS, 8]. Then `weights` are the first of the next tile.
  DEVICE void multiply(int tile, float* parts) {
    const int mine = (chunks + WARPS - 1) / WARPS;
    warp_barrier();  // mma needs all lanes
    float sums[MAX_ROW_TILES][2][4] = {};
    for (int base = 0; base < mine; base += HELD) {
      if (mine > HELD) read_fragments(base);
      const bool more = base + HELD < mine;
      UNROLLED (i, HELD) {
        const uint4 w = weights[i];
        weights[i] = fetch(tile + !more, more ? base + HELD + i : i);
        if (chunk(base + i) >= chunks) continue;
        UNROLLED (part, ROW_TILES) {
          const uint4 a = fragments[i][part][0], b = fragments[i][part][1];
          mma(sums[part][0], a.x, b.x, a.y, b.y, w.x, w.y);
          mma(sums[part][1], a.z, b.z, a.w, b.w, w.z, w.w);
        }
      }
    }
    UNROLLED (part, ROW_TILES) {
      float sum[4];
      UNROLLED (i, 4) sum[i] = sums[part][0][i] + sums[part][1][i];
      float2* to = (float2*)parts + (part * 16 + lane() / 4) * 4 + lane() % 4;
      if (ROWS <= 8) {
        *to = {sum[0] + sum[2], sum[1] + sum[3]};
      } else {
        to[0] = {sum[0], sum[1]};
        to[32] = {sum[2], sum[3]};
      }
    }
  }

  // store(row, output, y[output], y[output + 1]) for each pair of outputs and each row.
  template <class Store>
  DEVICE void run(Store store) {
    SHARED_ARRAY(Statistics, statistics_of_rows, ROWS);
    SHARED_ARRAY(float, parts, 2 * WARPS * ROWS * 8);
    norms = statistics_of_rows;
    UNROLLED (i, HELD) weights[i] = fetch(first, i);
    wait_for_inputs();
    if (p.gamma && (NORMED || !PRE_NORM)) {
      for (int row = warp(); row < p.rows; row += WARPS) {
        const float* x = p.stream + row * padded(D_MODEL);
        norms[row] = statistics([&](int k) { return x[k]; });
      }
    }
    block_barrier();
    if (chunks <= HELD * WARPS) read_fragments(0);
    for (int tile = first; tile < last; tile++) {
      float* tile_parts = parts + (tile & 1) * WARPS * ROWS * 8;
      multiply(tile, tile_parts + warp() * ROWS * 8);
      block_barrier();
      const int row = threadIdx.x / 4, output = tile * 8 + threadIdx.x % 4 * 2;
      if (row >= p.rows) continue;
      float a = p.bias[output], b = p.bias[output + 1];
      UNROLLED (part, WARPS) {
        const float2 y = *((const float2*)(tile_parts + (part * ROWS + row) * 8) + threadIdx.x % 4);
        a += y.x;
        b += y.y;
      }
      store(row, output, a, b);
    }
  }
};

// Queries of attention. For self-attention, also keys and values, in the caches at the positions of the rows.
KERNEL void project_heads(Product p) {
  constexpr_size int width = HEADS * HEAD_DIM;
  const int outputs = p.keys ? 3 * width : width;
  const auto store = [&](int row, int output, float value) {
    const int section = output / width, n = output % width;
    if (section == 0) p.output[row * padded(width) + n] = value;
    if (section == 0 || output >= outputs || p.state.finished[row]) return;
    const long long line = (long long)(row * HEADS + n / HEAD_DIM) * CACHE + p.state.positions[row];
    void* cache = section == 1 ? p.keys : p.values;
    if (HALF_CACHES)
      ((unsigned short*)cache)[line * HEAD_DIM + n % HEAD_DIM] = (unsigned short)pack(value, 0);
    else
      ((float*)cache)[line * HEAD_DIM + n % HEAD_DIM] = value;
  };
  Multiplier<HELD_CHUNKS(D_MODEL), true>(p, D_MODEL, outputs).run([&](int row, int output, float a, float b) {
    if (p.turns && output < 2 * width) {
      const float* turn = p.turns + p.state.positions[row] * HEAD_DIM + output % HEAD_DIM;
      const float cosine = turn[0], sine = turn[1], x = a;
      a = x * cosine - b * sine;
      b = b * cosine + x * sine;
    }
    store(row, output, a);
    store(row, output + 1, b);
  });
}

// The end of a sublayer: its result added to the stream, or to the norm of the stream.
template <int HELD>
DEVICE void add_to_stream(const Product& p, int inputs) {
  Multiplier<HELD, false> product(p, inputs, D_MODEL);
  product.run([&](int row, int output, float a, float b) {
    float2 x = *(const float2*)(p.stream + row * padded(D_MODEL) + output);
    if (!PRE_NORM && p.gamma) {
      const Statistics norm = product.norms[row];
      x = {norm.of(x.x, p.gamma[output], p.beta[output]), norm.of(x.y, p.gamma[output + 1], p.beta[output + 1])};
    }
    *(float2*)(p.output + row * padded(D_MODEL) + output) = {x.x + a, x.y + b};
  });
}

KERNEL void project_context(Product p) { add_to_stream<HELD_CHUNKS(HEADS * HEAD_DIM)>(p, HEADS * HEAD_DIM); }

KERNEL void project_outer(Product p) { add_to_stream<HELD_CHUNKS(FFN)>(p, FFN); }

DEVICE float activated(float x) {
  if (ACTIVATION == RELU) return fmaxf(x, 0);
  if (ACTIVATION == GELU) return 0.5f * x * (1 + erff(x * 0.70710678f));
  if (ACTIVATION == GELU_TANH) return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
  return x / (1 + expf(-x));
}

// The inner layer of the feed-forward network. With GATED, outputs are gates and inner values in turns.
KERNEL void project_inner(Product p) {
  Multiplier<HELD_CHUNKS(D_MODEL), true>(p, D_MODEL, GATED ? 2 * FFN : FFN)
      .run([&](int row, int output, float a, float b) {
        float* to = p.output + row * padded(FFN);
        if (GATED) {
          to[output / 2] = activated(a) * b;
        } else {
          *(float2*)(to + output) = {activated(a), activated(b)};
        }
      });
}

struct Best {
  float value;
  int id;
};

// The larger value, of equal ones the smaller id.
DEVICE Best larger(Best a, Best b) { return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a; }

// The largest of groups of lanes, in each lane.
DEVICE Best lanes_best(Best best, int lanes) {
  UNROLLED (i, 5)
    if (1 << i < lanes) best = larger(best, {shuffle(best.value, 1 << i), shuffle(best.id, 1 << i)});
  return best;
}

// Logits [rows, VOCABULARY], unless `output` is null, and the largest of each block.
KERNEL void project_logits(Product p) {
  Best best = {NONE, VOCABULARY};
  Multiplier<HELD_CHUNKS(D_MODEL), true>(p, D_MODEL, VOCABULARY).run([&](int row, int output, float a, float b) {
    const auto take = [&](int id, float value) {
      if (id >= VOCABULARY) return;
      best = larger(best, {value, id});
      if (p.output) p.output[(long long)row * VOCABULARY + id] = value;
    };
    take(output, a);
    take(output + 1, b);
  });
  best = lanes_best(best, 4);  // these lanes have the outputs of one row
  const int row = threadIdx.x / 4;
  if (row >= p.rows) return;
  p.best.values[blockIdx.x * ROWS + row] = best.value;
  p.best.ids[blockIdx.x * ROWS + row] = best.id;
}

// Attention of one row and head, a block for each. Groups of lanes take keys in turns; then their sums are joined.
KERNEL void attend(Attention p) {
  constexpr_size int lanes = HEAD_DIM <= 8 ? 1 : HEAD_DIM <= 16 ? 2 : HEAD_DIM <= 32 ? 4 : HEAD_DIM <= 64 ? 8 : 16;
  constexpr_size int groups = WARPS * 32 / lanes;
  constexpr int AHEAD = 4;  // keys that a group reads at once
  wait_for_inputs();
  const int row = blockIdx.x / HEADS, head = blockIdx.x % HEADS, group = threadIdx.x / lanes;
  const int dim = lane() % lanes * 8;
  const int length = min(p.lengths[row] + p.more, p.capacity);
  const long long line = (long long)blockIdx.x * p.capacity;
  Eight query;
  UNROLLED (i, 8)
    query.at[i] = dim + i < HEAD_DIM ? p.query[row * padded(HEADS * HEAD_DIM) + head * HEAD_DIM + dim + i] : 0;
  float most = NONE, total = 0;
  Eight sum = {};
  for (int base = 0; base < length; base += groups * AHEAD) {
    Eight keys[AHEAD], values[AHEAD];
    float scores[AHEAD], reached = most;
    UNROLLED (i, AHEAD) {
      const int key = base + i * groups + group;
      keys[i] = key < length ? read_cache(p.keys, (line + key) * HEAD_DIM + dim, HEAD_DIM - dim) : Eight{};
      values[i] = key < length ? read_cache(p.values, (line + key) * HEAD_DIM + dim, HEAD_DIM - dim) : Eight{};
    }
    UNROLLED (i, AHEAD) {
      const int key = base + i * groups + group;
      float score = 0;
      UNROLLED (j, 8) score += query.at[j] * keys[i].at[j];
      score = lanes_sum(score, lanes);
      if (p.biases && key < length) score += p.biases[head * CACHE + length - 1 - key];
      scores[i] = key < length ? score : NONE;
      if (p.weights && dim == 0 && key < length) p.weights[line + key] = score;
      reached = fmaxf(reached, scores[i]);
    }
    const float before = expf(most - reached);
    most = reached;
    total *= before;
    UNROLLED (j, 8) sum.at[j] *= before;
    UNROLLED (i, AHEAD) {
      const float weight = base + i * groups + group < length ? expf(scores[i] - most) : 0;
      total += weight;
      UNROLLED (j, 8) sum.at[j] += weight * values[i].at[j];
    }
  }
  SHARED_ARRAY(float, maxima, groups);
  SHARED_ARRAY(float, totals, groups);
  SHARED_ARRAY(float, sums, groups*((HEAD_DIM + 7) / 8 * 8));
  if (dim == 0) {
    maxima[group] = most;
    totals[group] = total;
  }
  UNROLLED (j, 8)
    if (dim + j < HEAD_DIM) sums[group * padded(HEAD_DIM) + dim + j] = sum.at[j];
  block_barrier();
  const int i = threadIdx.x;
  float* context = p.context + row * padded(HEADS * HEAD_DIM) + head * HEAD_DIM;
  if (head == HEADS - 1 && i < padded(HEADS * HEAD_DIM) - HEADS * HEAD_DIM) context[HEAD_DIM + i] = 0;
  float above = 0, below = 0;
  for (int k = 0; k < groups; k++) most = k ? fmaxf(most, maxima[k]) : maxima[0];
  for (int k = 0; k < groups; k++) {
    const float weight = expf(maxima[k] - most);
    if (i < HEAD_DIM) above += weight * sums[k * padded(HEAD_DIM) + i];
    below += weight * totals[k];
  }
  if (i < HEAD_DIM) context[i] = below == 0 ? 0 : above / below;  // 0 for a row without keys
  for (int key = i; p.weights && key < length; key += 256) {
    float* weight = p.weights + line + key;  // this block has written the score
    *weight = expf(*weight - most) / below;
  }
}

// The norm of the stream as a stream, for stacks that end in two norms.
KERNEL void normalise(Product p) {
  wait_for_inputs();
  const int row = blockIdx.x * WARPS + warp();
  if (row >= p.rows) return;
  const float* x = p.stream + row * padded(D_MODEL);
  const Statistics norm = statistics([&](int k) { return x[k]; });
  for (int k = lane(); k < padded(D_MODEL); k += 32)
    p.output[row * padded(D_MODEL) + k] = norm.of(x[k], p.gamma[k], p.beta[k]);
}

// The largest of a row's logits, of all blocks of their product.
DEVICE Best best_of_blocks(const Largest& from, int blocks, int row) {
  Best best = {NONE, VOCABULARY};
  for (int i = lane(); i < blocks; i += 32)
    best = larger(best, {from.values[i * ROWS + row], from.ids[i * ROWS + row]});
  return lanes_best(best, 32);
}

DEVICE float block_sum(float x, float* parts) {
  x = warp_sum(x);
  if (lane() == 0) parts[warp()] = x;
  block_barrier();
  x = 0;
  for (int i = 0; i < WARPS; i++) x += parts[i];
  return x;
}

// Logits of a row become log-probabilities of the mixture of its vocabulary and the words of its source. A block for
// each row; positions of one word write the same number.
KERNEL void mix(Mixture p) {
  wait_for_inputs();
  SHARED_ARRAY(float, gates, WARPS);
  SHARED_ARRAY(float, totals, WARPS);
  const int row = blockIdx.x, width = HEADS * HEAD_DIM, length = min(p.lengths[row], p.capacity);
  const long long line = (long long)row * VOCABULARY;
  const int* ids = p.ids + row * p.capacity;
  const Best generated = best_of_blocks(p.best, p.blocks, row);
  float gate = 0, total = 0;
  for (int k = threadIdx.x; k < D_MODEL; k += 256) {
    gate += p.state[row * padded(D_MODEL) + k] * p.gate[k];
    gate += p.embedding[row * padded(D_MODEL) + k] * p.gate[D_MODEL + k];
  }
  for (int k = threadIdx.x; k < width; k += 256) gate += p.context[row * padded(width) + k] * p.gate[2 * D_MODEL + k];
  gate = block_sum(gate, gates) + p.gate[2 * D_MODEL + width];
  for (int id = threadIdx.x; id < VOCABULARY; id += 256) total += expf(p.logits[line + id] - generated.value);
  // The logarithms of the sum of exponentials, and of the probability of not copying.
  const float shift = generated.value + logf(block_sum(total, totals)) - fminf(gate, 0) + log1pf(expf(-fabsf(gate)));
  for (int id = threadIdx.x; p.output && id < VOCABULARY; id += 256) p.output[line + id] = p.logits[line + id] - shift;
  block_barrier();
  Best best = {generated.value - shift, generated.id};
  for (int key = threadIdx.x; key < length; key += 256) {
    const int id = ids[key];
    if (id < 0 || id >= VOCABULARY) {
      *p.error = 1;
      continue;
    }
    float copied = 0;
    for (int other = 0; other < length; other++)
      for (int i = 0; i < p.count && ids[other] == id; i++)
        copied += p.weights[p.heads[i] + row * HEADS * p.capacity + other];
    copied = copied / p.count / (1 + expf(gate)) - NOTHING;
    float value = p.logits[line + id] - shift;
    if (copied > 0) value = fmaxf(value, logf(expf(value) + copied));
    best = larger(best, {value, id});
    if (p.output) p.output[line + id] = value;
  }
  best = lanes_best(best, 32);
  p.mixed.values[warp() * ROWS + row] = best.value;
  p.mixed.ids[warp() * ROWS + row] = best.id;
}

// The last kernel of a step, one block: the next token, position and end of each row.
KERNEL void choose(Choice p) {
  wait_for_inputs();
  for (int row = warp(); row < p.rows; row += WARPS) {
    const Best best = best_of_blocks(p.best, p.blocks, row);
    if (lane()) continue;
    const bool finished = p.current.finished[row], failed = best.id >= VOCABULARY;
    const int position = p.current.positions[row], token = finished || failed ? p.pad : best.id;
    if (failed) *p.error = 2;
    const bool ended = finished || failed || token == p.eos || position + 1 >= p.limits[row];
    p.next.tokens[row] = token;
    p.next.finished[row] = ended;
    p.next.positions[row] = ended ? position : position + 1;
    if (!finished) p.history[row * CACHE + position] = token;
  }
}
