/* txport: one engine, for programs that bring their own search. The C ABI.
 *
 * Encode sentences, then step a fixed set of rows whose buffers the engine owns: ids in, ids out, no text. Python's
 * runtime drives the fused engine through this. Applications that translate want txport.h. Beam search, whose choice
 * of tokens a fast engine would wait for, is here as well: txport_state_search.
 *
 * libtxport has all of it, if it was built with the fused engine. libtxport_engine, which needs nothing but a C
 * library, has the fused engine alone and opens no bundle: all but txport_engine_open.
 *
 * Result codes, txport_message() and lifetimes are as in txport.h. Threads: any number may use an engine at once; a
 * state belongs to one thread at a time. States and memories may outlive their engine's handle.
 */
#ifndef TXPORT_ENGINE_H
#define TXPORT_ENGINE_H

#include <txport/txport.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct txport_engine_handle txport_engine_handle;
typedef struct txport_engine_memory txport_engine_memory; /* what the encoder made of some sentences */
typedef struct txport_engine_state txport_engine_state;   /* the rows of a batch, and their buffers */

/* One tensor of a model, as a view of the file of weights. */
typedef struct txport_parameter {
  const char* name;   /* as in the table `parameters` of a manifest */
  const char* dtype;  /* "float32", "float16" or "int8" */
  int64_t offset;     /* of the first element, in bytes */
  int64_t scales;     /* of int8: the offset in bytes of float32 [shape[0]]; otherwise -1 */
  int64_t dimensions; /* 1 or 2 */
  int64_t shape[2];
  int64_t strides[2]; /* in elements */
} txport_parameter;

/* A model and its weights, as manifest.json describes them. Begin with TXPORT_MODEL_INIT. New fields come at the end of
 * this struct and of txport_parameter. */
typedef struct txport_model {
  size_t struct_size;    /* sizeof(txport_model) */
  size_t parameter_size; /* sizeof(txport_parameter) */
  const char* weights;   /* the path of the file of weights; the name for messages, with `weights_data` */
  int64_t weights_bytes; /* its size */
  const char* precision; /* of the weights: "float32", "float16" or "int8" */
  int64_t encoder_layers, decoder_layers, d_model, heads, head_dim, source_vocabulary, target_vocabulary;
  int64_t batch, source, target; /* most rows; most source and target tokens of a row, eos included */
  int64_t pad, unk, bos, eos;    /* padding, unknown, decoder start, end of sequence */
  const char* norm;              /* "post", "pre" or "post_final" */
  const char* activation;        /* "relu", "gelu" (by erf), "gelu_tanh" or "silu"; of gates, if there are some */
  double embedding_scale;
  double layer_norm_epsilon;
  const txport_parameter* parameters;
  int64_t parameter_count;
  const char* norm_kind;    /* "layer" or NULL: LayerNorm; "rms": RMSNorm, which has no bias */
  int64_t encoder_heads;    /* 0: as many as `heads`, which are the decoder's */
  const void* weights_data; /* the bytes of the file, if they are in memory, from a multiple of 4 on; NULL: no */
  int64_t feature_size;     /* numbers of a feature vector, if the model reads vectors; 0: it reads ids */
} txport_model;

#define TXPORT_MODEL_INIT                                                                                             \
  {                                                                                                                   \
    sizeof(txport_model), sizeof(txport_parameter), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0                                                                                                 \
  }

/* How to open an engine. Begin with TXPORT_ENGINE_OPTIONS_INIT: every zero is the default. New fields come at the end,
 * and `struct_size` defines which ones the application has. */
typedef struct txport_engine_options {
  size_t struct_size; /* sizeof(txport_engine_options) */
  const char* device; /* these three as in txport_translator_options */
  const char* engine;
  const char* lowering;
  int32_t threads;        /* of each operator on the CPU; 0: as many as there are cores */
  int32_t many;           /* not 0: several threads will call at once; each then works for itself */
  txport_warning warning; /* NULL: warnings go nowhere */
  void* warning_user;     /* passed to `warning` */
} txport_engine_options;

#define TXPORT_ENGINE_OPTIONS_INIT \
  { sizeof(txport_engine_options), 0, 0, 0, 0, 0, 0, 0 }

/* How large a batch may be, and ids with a meaning. Begin with TXPORT_ENGINE_FACTS_INIT. */
typedef struct txport_engine_facts {
  size_t struct_size;            /* sizeof(txport_engine_facts) */
  int64_t batch, source, target; /* most rows; most source and target tokens of a row, eos included */
  int64_t pad, unk, bos, eos;    /* padding, unknown, decoder start, end of sequence */
  int64_t vocabulary;            /* target ids, and logits of a row */
  int64_t poll;                  /* steps that are worth making in one call before the host looks */
  int64_t recomputes_logits;     /* not 0: logits can be read of states that were allocated without */
} txport_engine_facts;

#define TXPORT_ENGINE_FACTS_INIT \
  { sizeof(txport_engine_facts), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Make the fused engine of a model. All that `model` points to is read before this returns, and checked: a table whose
 * views leave the file, or that is not the model's, is TXPORT_BUNDLE_ERROR. Whether the file is the one that was
 * exported is known to the caller. Of `options`, which may be NULL, only `threads` and `many` are used. On success,
 * close *engine at the end. */
TXPORT_API txport_code txport_engine_create(const txport_model* model, const txport_engine_options* options,
                                            txport_engine_handle** engine) TXPORT_NOEXCEPT;

/* Open a bundle with any engine; in libtxport alone. `options` may be NULL. On success, close *engine at the end. */
TXPORT_API txport_code txport_engine_open(const char* bundle, const txport_engine_options* options,
                                          txport_engine_handle** engine) TXPORT_NOEXCEPT;
TXPORT_API void txport_engine_close(txport_engine_handle* engine) TXPORT_NOEXCEPT;

/* A name for reports, as "fused cpu (AVX3, int8 weights)"; gone when the engine is closed. */
TXPORT_API txport_code txport_engine_name(const txport_engine_handle* engine, const char** name) TXPORT_NOEXCEPT;
TXPORT_API txport_code txport_engine_get_facts(const txport_engine_handle* engine,
                                               txport_engine_facts* facts) TXPORT_NOEXCEPT;

/* The length of the first caches of a batch of sources of up to `source` tokens, or of the longest that can be; 0 after
 * an error. */
TXPORT_API int64_t txport_engine_first_target(const txport_engine_handle* engine, int64_t source) TXPORT_NOEXCEPT;

/* Run the encoder on `input_ids` [batch, source], of which row i has `lengths[i]` tokens; the rest of it is ignored. */
TXPORT_API txport_code txport_engine_encode(const txport_engine_handle* engine, const int64_t* input_ids,
                                            const int64_t* lengths, int64_t batch, int64_t source,
                                            txport_engine_memory** memory) TXPORT_NOEXCEPT;

/* The same on vectors of a model that reads these: `features` [batch, source, feature_size]. */
TXPORT_API txport_code txport_engine_encode_features(const txport_engine_handle* engine, const float* features,
                                                     const int64_t* lengths, int64_t batch, int64_t source,
                                                     txport_engine_memory** memory) TXPORT_NOEXCEPT;
TXPORT_API void txport_engine_memory_free(txport_engine_memory* memory) TXPORT_NOEXCEPT;

/* Buffers for `rows` sentences of up to `source` tokens with caches of `target` tokens, all rows finished. Not 0 in
 * `logits`: the last step's are stored, to be read. `top`: the most candidates of a row that txport_state_top is asked
 * for, from 0, which is none, to the target vocabulary. */
TXPORT_API txport_code txport_engine_allocate(const txport_engine_handle* engine, int64_t rows, int64_t source,
                                              int64_t target, int32_t logits, int64_t top,
                                              txport_engine_state** state) TXPORT_NOEXCEPT;
TXPORT_API void txport_state_free(txport_engine_state* state) TXPORT_NOEXCEPT;

/* Start `count` sentences, no more than there are rows: row `rows[i]` gets row `memory_rows[i]` of `memory`, bos at
 * position 0, not finished, and ends after `target_limits[i]` tokens. */
TXPORT_API txport_code txport_state_place(txport_engine_state* state, int64_t count, const int64_t* rows,
                                          const txport_engine_memory* memory, const int64_t* memory_rows,
                                          const int64_t* target_limits) TXPORT_NOEXCEPT;

/* Let these rows, which were placed and not stepped since, choose among words of their own only: `words` has those of
 * one row after the other, ascending ids, at least one, and `ends` [count] are the ends of the rows. Other words'
 * logits are -INFINITY, and all probabilities are over a row's words. Copies of a row have its words, until it is
 * placed again. For engines that can do so, as the fused one. */
TXPORT_API txport_code txport_state_restrict(txport_engine_state* state, int64_t count, const int64_t* rows,
                                             const int64_t* ends, const int64_t* words) TXPORT_NOEXCEPT;

/* Advance every unfinished row by up to `count` tokens, from 1 to 64, of which no row may pass the end of its cache. */
TXPORT_API txport_code txport_state_step(txport_engine_state* state, int64_t count) TXPORT_NOEXCEPT;

/* The first call of step that was not read yet: `token_ids` [steps, rows], pad for rows that had finished, and
 * `finished` [rows] after its last step. `capacity` is the most steps that there is room for: all of that call. `steps`
 * is 0, and nothing else is written, if all was read. */
TXPORT_API txport_code txport_state_read(txport_engine_state* state, int64_t* token_ids, int64_t capacity,
                                         int64_t* steps, uint8_t* finished) TXPORT_NOEXCEPT;

/* Replace the last token of these rows (forced prefix, suppressed eos) and their flag. Taking back `finished` lets a
 * row continue after that token; one that has made all of its tokens, or was never placed, stays finished. */
TXPORT_API txport_code txport_state_override(txport_engine_state* state, int64_t count, const int64_t* rows,
                                             const int64_t* token_ids, const uint8_t* finished) TXPORT_NOEXCEPT;

/* `logits` [count, vocabulary] of these rows after the last step of this state, which was allocated with logits, or is
 * of an engine that recomputes them. */
TXPORT_API txport_code txport_state_logits(txport_engine_state* state, int64_t count, const int64_t* rows,
                                           float* logits) TXPORT_NOEXCEPT;

/* The natural logarithm of the probability of `token_ids[i]` in row `rows[i]`, by these logits; `log_probabilities` has
 * room for `count`. */
TXPORT_API txport_code txport_state_log_probabilities(txport_engine_state* state, int64_t count, const int64_t* rows,
                                                      const int64_t* token_ids,
                                                      double* log_probabilities) TXPORT_NOEXCEPT;

/* The likeliest tokens of each row after the last step of this state, by descending logit, equal ones by ascending id:
 * `token_ids` and `logits` [rows, k], and `normaliser` [rows], the natural logarithm of the sum of e^x over all logits
 * of the row. `k` is from 1 to the `top` of its allocation. Undefined for rows that the step did not advance. */
TXPORT_API txport_code txport_state_top(txport_engine_state* state, int64_t k, int64_t* token_ids, float* logits,
                                        double* normaliser) TXPORT_NOEXCEPT;

/* Rearrange the rows in place: row i continues row `rows[i]`, which may be named more than once; `count` is
 * the number of rows. All steps must have been read; logits and candidates are undefined until the next one. */
TXPORT_API txport_code txport_state_reorder(txport_engine_state* state, int64_t count,
                                            const int64_t* rows) TXPORT_NOEXCEPT;

/* A new state of `count` rows with caches of `target` tokens: row i continues row `rows[i]`, which may be named
 * more than once. All steps must have been read. The old state is invalid afterwards, and still to be freed. */
TXPORT_API txport_code txport_state_moved(txport_engine_state* state, int64_t count, const int64_t* rows,
                                          int64_t target, txport_engine_state** moved) TXPORT_NOEXCEPT;

typedef struct txport_beam_search txport_beam_search; /* the settings of a search */
typedef struct txport_hypotheses txport_hypotheses;   /* those of one sentence */

/* What a beam search is like; each as the option of its name in txport_options. Begin with TXPORT_BEAM_SETTINGS_INIT,
 * which is a beam of 1 without rules. New fields come at the end. */
typedef struct txport_beam_settings {
  size_t struct_size; /* sizeof(txport_beam_settings) */
  int64_t beam, n_best;
  double length_penalty, patience;
  int64_t early_stopping; /* 0: false; 1: true; 2: "never" */
  double repetition_penalty;
  int64_t no_repeat_ngram;
  int64_t forced_end;  /* -1: none */
  int64_t renormalize; /* not 0: yes */
  const txport_ids* bad_words;
  size_t bad_word_count;
  txport_ids suppress, begin_suppress, end_ids;
} txport_beam_settings;

#define TXPORT_BEAM_SETTINGS_INIT                                                            \
  {                                                                                          \
    sizeof(txport_beam_settings), 1, 1, 1, 1, 0, 1, 0, -1, 0, 0, 0, {0, 0}, {0, 0}, { 0, 0 } \
  }

/* A sentence of a search. Begin with TXPORT_BEAM_SENTENCE_INIT. New fields come at the end. */
typedef struct txport_beam_sentence {
  size_t struct_size; /* sizeof(txport_beam_sentence) */
  int64_t limit;      /* the maximum number of tokens of an answer, as in `target_limits` of txport_state_place */
  int64_t min_length; /* tokens to make before an answer may end */
  txport_ids prefix;  /* what answers must begin with */
  int64_t forced;     /* how many ids of it the model itself forces: they count in the length of an answer */
} txport_beam_sentence;

#define TXPORT_BEAM_SENTENCE_INIT \
  { sizeof(txport_beam_sentence), 1, 0, {0, 0}, 0 }

/* A search by an engine's ids; it may outlive the engine. Free it at the end, after or before its sentences. */
TXPORT_API txport_code txport_beam_search_create(const txport_engine_handle* engine,
                                                 const txport_beam_settings* settings,
                                                 txport_beam_search** search) TXPORT_NOEXCEPT;
TXPORT_API void txport_beam_search_free(txport_beam_search* search) TXPORT_NOEXCEPT;

/* The hypotheses of a sentence that begins. */
TXPORT_API txport_code txport_hypotheses_create(const txport_beam_search* search, const txport_beam_sentence* sentence,
                                                txport_hypotheses** hypotheses) TXPORT_NOEXCEPT;
TXPORT_API void txport_hypotheses_free(txport_hypotheses* hypotheses) TXPORT_NOEXCEPT;

/* Choose the continuations of the rows after their last step, which was of one token and was read, and make up to
 * `more` steps likewise, as long as no sentence ends and there is room in the caches. Sentence i has the `beam` rows
 * from i * beam on, and was placed in the first of them; NULL: these rows are free. The state was allocated with `top`
 * of at least `beam` times one more than there are ids that end an answer, and one more again if rules change scores
 * (or the vocabulary), and with logits, if rules change scores, unless the engine recomputes them. Writes the number of
 * `steps` chosen, from 1 on, and for each sentence whether it is `done`. */
TXPORT_API txport_code txport_state_search(txport_engine_state* state, const txport_beam_search* search, int64_t count,
                                           txport_hypotheses* const* sentences, int64_t more, int64_t* steps,
                                           uint8_t* done) TXPORT_NOEXCEPT;

/* Answer `index` of a sentence that is done, the best first: `ids`, the natural logarithm of the probability of each in
 * `scores`, how many they are, and the `score` that it was ranked by. Valid until the sentence is freed; `count` is 0
 * if there are no more answers. */
TXPORT_API txport_code txport_hypotheses_answer(const txport_hypotheses* hypotheses, int64_t index, const int64_t** ids,
                                                const double** scores, int64_t* count, double* score) TXPORT_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* TXPORT_ENGINE_H */
