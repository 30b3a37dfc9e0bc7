/* txport: the C ABI of a single engine, for programs that control decoding themselves.
 *
 * The engine encodes sentences and then decodes a fixed set of rows, step by step, in buffers that it owns. Input and
 * output are ids, not text. The Python runtime uses this ABI for the fused engine. To translate, use txport.h instead.
 * Programs can choose tokens themselves, or let the library run a beam search (txport_state_search): a fast engine
 * would otherwise wait for the caller after each token.
 *
 * libtxport contains all functions if it was built with the fused engine. libtxport_engine contains the fused engine
 * and all functions except txport_engine_open. It depends on no library except the C library of the system.
 *
 * Result codes, txport_message() and lifetimes are as in txport.h. Any number of threads may use an engine at the same
 * time. Use a state in one thread at a time. States and memories may outlive the handle of their engine.
 */
#ifndef TXPORT_ENGINE_H
#define TXPORT_ENGINE_H

#include <txport/txport.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct txport_engine_handle txport_engine_handle;
typedef struct txport_engine_memory txport_engine_memory; /* encoder output of some sentences */
typedef struct txport_engine_state txport_engine_state;   /* the rows of a batch and their buffers */

/* One tensor of a model: a view of the weights file. */
typedef struct txport_parameter {
  const char* name;   /* as in `parameters` of manifest.json */
  const char* dtype;  /* "float32", "float16" or "int8" */
  int64_t offset;     /* byte offset of the first element */
  int64_t scales;     /* int8: byte offset of the scales, float32 [shape[0]]; otherwise -1 */
  int64_t dimensions; /* 1 or 2 */
  int64_t shape[2];
  int64_t strides[2]; /* in elements */
} txport_parameter;

/* A model and its weights, as manifest.json describes them. Initialize with TXPORT_MODEL_INIT. New versions add fields
 * at the end of this struct and of txport_parameter. */
typedef struct txport_model {
  size_t struct_size;    /* sizeof(txport_model) */
  size_t parameter_size; /* sizeof(txport_parameter) */
  const char* weights;   /* path of the weights file; with `weights_data`, a name for messages */
  int64_t weights_bytes; /* size of the file */
  const char* precision; /* precision of the weights: "float32", "float16" or "int8" */
  int64_t encoder_layers, decoder_layers, d_model, heads, head_dim, source_vocabulary, target_vocabulary;
  /* Maximum number of rows, of source tokens of a row and of target tokens of a row; both include eos. */
  int64_t batch, source, target;
  int64_t pad, unk, bos, eos; /* padding, unknown, decoder start, end of sequence */
  const char* norm;           /* "post", "pre" or "post_final" */
  const char* activation;     /* "relu", "gelu" (exact), "gelu_tanh" or "silu"; gated layers apply it to the gate */
  double embedding_scale;
  double layer_norm_epsilon;
  const txport_parameter* parameters;
  int64_t parameter_count;
  const char* norm_kind;    /* "layer" or NULL: LayerNorm; "rms": RMSNorm, without biases */
  int64_t encoder_heads;    /* attention heads of the encoder; 0: `heads`, as in the decoder */
  const void* weights_data; /* bytes of the file in memory, at a multiple of 4; NULL: read the file */
  int64_t feature_size;     /* size of a feature vector, if the model reads vectors; 0: it reads ids */
} txport_model;

#define TXPORT_MODEL_INIT                                                                                             \
  {                                                                                                                   \
    sizeof(txport_model), sizeof(txport_parameter), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0                                                                                                 \
  }

/* Options for opening an engine. Initialize with TXPORT_ENGINE_OPTIONS_INIT: zero selects the default of each field.
 * New versions add fields at the end; `struct_size` specifies which fields the application was compiled with. */
typedef struct txport_engine_options {
  size_t struct_size; /* sizeof(txport_engine_options) */
  const char* device; /* `device`, `engine` and `lowering` as in txport_translator_options */
  const char* engine;
  const char* lowering;
  int32_t threads;        /* threads of each operator on the CPU; 0: one per core */
  int32_t many;           /* not 0: optimize for concurrent calls, several threads that use the engine at once */
  txport_warning warning; /* NULL: warnings are discarded */
  void* warning_user;     /* passed to `warning` */
} txport_engine_options;

#define TXPORT_ENGINE_OPTIONS_INIT \
  { sizeof(txport_engine_options), 0, 0, 0, 0, 0, 0, 0 }

/* Limits and special tokens of an engine. Initialize with TXPORT_ENGINE_FACTS_INIT. */
typedef struct txport_engine_facts {
  size_t struct_size; /* sizeof(txport_engine_facts) */
  /* Maximum number of rows, of source tokens of a row and of target tokens of a row; both include eos. */
  int64_t batch, source, target;
  int64_t pad, unk, bos, eos; /* padding, unknown, decoder start, end of sequence */
  int64_t vocabulary;         /* size of the target vocabulary: logits of a row */
  int64_t poll;               /* recommended maximum of steps that have started and are not read; 1: reading is free */
  int64_t recomputes_logits;  /* not 0: logits can be read from states allocated without logits */
} txport_engine_facts;

#define TXPORT_ENGINE_FACTS_INIT \
  { sizeof(txport_engine_facts), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Create a fused engine for a model. All data that `model` points to is read and checked during the call. Returns
 * TXPORT_BUNDLE_ERROR if a view exceeds the file or the parameters do not match the model. Hashes are not compared; the
 * caller must check that the file is the exported one. `options` may be NULL; only `threads` and `many` are used. On
 * success, the caller must close *engine. */
TXPORT_API txport_code txport_engine_create(const txport_model* model, const txport_engine_options* options,
                                            txport_engine_handle** engine) TXPORT_NOEXCEPT;

/* Open a bundle with any engine. Only libtxport contains this function. `options` may be NULL. On success, the caller
 * must close *engine. */
TXPORT_API txport_code txport_engine_open(const char* bundle, const txport_engine_options* options,
                                          txport_engine_handle** engine) TXPORT_NOEXCEPT;
TXPORT_API void txport_engine_close(txport_engine_handle* engine) TXPORT_NOEXCEPT;

/* Return a name for reports, such as "fused cpu (AVX3, int8 weights)". It is valid until the engine is closed. */
TXPORT_API txport_code txport_engine_name(const txport_engine_handle* engine, const char** name) TXPORT_NOEXCEPT;
TXPORT_API txport_code txport_engine_get_facts(const txport_engine_handle* engine,
                                               txport_engine_facts* facts) TXPORT_NOEXCEPT;

/* Return the recommended initial cache length, in target tokens, for a batch with sources of up to `source` tokens.
 * Pass it to txport_engine_allocate as `target`, or the engine's maximum if that is smaller. txport_state_moved can
 * lengthen caches. Returns 0 after an error. */
TXPORT_API int64_t txport_engine_first_target(const txport_engine_handle* engine, int64_t source) TXPORT_NOEXCEPT;

/* Run the encoder on `input_ids` [batch, source]. Row i has `lengths[i]` tokens; the ids after them are ignored. */
TXPORT_API txport_code txport_engine_encode(const txport_engine_handle* engine, const int64_t* input_ids,
                                            const int64_t* lengths, int64_t batch, int64_t source,
                                            txport_engine_memory** memory) TXPORT_NOEXCEPT;

/* The same on vectors of a model that reads these: `features` [batch, source, feature_size]. */
TXPORT_API txport_code txport_engine_encode_features(const txport_engine_handle* engine, const float* features,
                                                     const int64_t* lengths, int64_t batch, int64_t source,
                                                     txport_engine_memory** memory) TXPORT_NOEXCEPT;
TXPORT_API void txport_engine_memory_free(txport_engine_memory* memory) TXPORT_NOEXCEPT;

/* Allocate buffers for `rows` sentences of up to `source` tokens with caches of `target` tokens. All rows are finished.
 * If `logits` is not 0, the logits of the last step are stored and can be read. `top` is the maximum `k` of
 * txport_state_top, from 0 to the size of the target vocabulary. */
TXPORT_API txport_code txport_engine_allocate(const txport_engine_handle* engine, int64_t rows, int64_t source,
                                              int64_t target, int32_t logits, int64_t top,
                                              txport_engine_state** state) TXPORT_NOEXCEPT;
TXPORT_API void txport_state_free(txport_engine_state* state) TXPORT_NOEXCEPT;

/* Start `count` sentences, at most one per row: row `rows[i]` gets row `memory_rows[i]` of `memory` and bos at position
 * 0. It is not finished, and finishes after `target_limits[i]` tokens at the latest. */
TXPORT_API txport_code txport_state_place(txport_engine_state* state, int64_t count, const int64_t* rows,
                                          const txport_engine_memory* memory, const int64_t* memory_rows,
                                          const int64_t* target_limits) TXPORT_NOEXCEPT;

/* Restrict the target tokens of these rows, which must have been placed and not stepped since. `words` contains the
 * allowed ids of all rows, one row after the other, ascending within a row, at least one per row. `ends` [count]
 * contains the end of each row in `words`. All other logits become -INFINITY, and probabilities are normalized over the
 * allowed ids. Copies of a row have the same restriction, which ends when a row is placed again. Only some engines
 * support this, for example the fused engine. */
TXPORT_API txport_code txport_state_restrict(txport_engine_state* state, int64_t count, const int64_t* rows,
                                             const int64_t* ends, const int64_t* words) TXPORT_NOEXCEPT;

/* Advance every unfinished row by up to `count` tokens, from 1 to 64. The caller must ensure that no row exceeds its
 * cache (`target` tokens), by moving the rows to longer caches before (txport_state_moved). */
TXPORT_API txport_code txport_state_step(txport_engine_state* state, int64_t count) TXPORT_NOEXCEPT;

/* Read the output of the first txport_state_step call that was not read yet: `token_ids` [steps, rows], with pad for
 * finished rows, and `finished` [rows] after its last step. `capacity` is the number of steps that fit into
 * `token_ids`, at least the `count` of that txport_state_step. If there is nothing to read, `steps` is 0 and the other
 * outputs are unchanged. */
TXPORT_API txport_code txport_state_read(txport_engine_state* state, int64_t* token_ids, int64_t capacity,
                                         int64_t* steps, uint8_t* finished) TXPORT_NOEXCEPT;

/* Replace the last token of these rows, for example by a forced prefix, and their `finished` flag. Setting it to 0 lets
 * a row continue after that token. Rows that have reached their limit or were never placed stay finished. */
TXPORT_API txport_code txport_state_override(txport_engine_state* state, int64_t count, const int64_t* rows,
                                             const int64_t* token_ids, const uint8_t* finished) TXPORT_NOEXCEPT;

/* Return the `logits` [count, vocabulary] of these rows after the last step. The state must have been allocated with
 * logits, or its engine must recompute them (txport_engine_facts). */
TXPORT_API txport_code txport_state_logits(txport_engine_state* state, int64_t count, const int64_t* rows,
                                           float* logits) TXPORT_NOEXCEPT;

/* Return the natural log-probability of `token_ids[i]` in row `rows[i]` after the last step, in `log_probabilities`
 * [count]. The state must be as for txport_state_logits. */
TXPORT_API txport_code txport_state_log_probabilities(txport_engine_state* state, int64_t count, const int64_t* rows,
                                                      const int64_t* token_ids,
                                                      double* log_probabilities) TXPORT_NOEXCEPT;

/* Return the k most likely tokens of each row after the last step: `token_ids` and `logits` [rows, k], sorted by
 * descending logit, then by ascending id; and `normaliser` [rows], the log-sum-exp of all logits of the row. `k` is
 * from 1 to the `top` of the allocation. Values of rows that the step did not advance are undefined. */
TXPORT_API txport_code txport_state_top(txport_engine_state* state, int64_t k, int64_t* token_ids, float* logits,
                                        double* normaliser) TXPORT_NOEXCEPT;

/* Rearrange the rows in place: row i becomes a copy of the former row `rows[i]`. A row that occurs several times in
 * `rows` is repeated, and a row that does not occur is dropped. `count` must equal the number of rows. All steps must
 * have been read. The results of txport_state_logits and txport_state_top are undefined until the next step. */
TXPORT_API txport_code txport_state_reorder(txport_engine_state* state, int64_t count,
                                            const int64_t* rows) TXPORT_NOEXCEPT;

/* Move rows to a new state, for example to add or drop rows, or to lengthen caches. `*moved` becomes the new state of
 * `count` rows with caches of `target` tokens. Its row i is a copy of row `rows[i]` of the old state, as in
 * txport_state_reorder. All steps must have been read. The old state becomes invalid; the caller must still free it. */
TXPORT_API txport_code txport_state_moved(txport_engine_state* state, int64_t count, const int64_t* rows,
                                          int64_t target, txport_engine_state** moved) TXPORT_NOEXCEPT;

typedef struct txport_beam_search txport_beam_search; /* settings of a beam search */
typedef struct txport_hypotheses txport_hypotheses;   /* hypotheses of one sentence */

/* Settings of a beam search; each field has the meaning of the same field of txport_options. Initialize with
 * TXPORT_BEAM_SETTINGS_INIT, which sets a beam of 1 without rules. New versions add fields at the end. */
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

/* Settings of one sentence of a search. Initialize with TXPORT_BEAM_SENTENCE_INIT. New versions add fields at the end.
 */
typedef struct txport_beam_sentence {
  size_t struct_size; /* sizeof(txport_beam_sentence) */
  int64_t limit;      /* maximum number of target tokens, as in `target_limits` of txport_state_place */
  int64_t min_length; /* minimum number of target tokens */
  txport_ids prefix;  /* ids that every hypothesis must begin with */
  int64_t forced;     /* number of leading ids of `prefix` that count in the length that `length_penalty` uses */
} txport_beam_sentence;

#define TXPORT_BEAM_SENTENCE_INIT \
  { sizeof(txport_beam_sentence), 1, 0, {0, 0}, 0 }

/* Create a search for the vocabulary of an engine. It may outlive the engine, and may be freed before or after its
 * hypotheses. */
TXPORT_API txport_code txport_beam_search_create(const txport_engine_handle* engine,
                                                 const txport_beam_settings* settings,
                                                 txport_beam_search** search) TXPORT_NOEXCEPT;
TXPORT_API void txport_beam_search_free(txport_beam_search* search) TXPORT_NOEXCEPT;

/* Create the hypotheses of a new sentence. */
TXPORT_API txport_code txport_hypotheses_create(const txport_beam_search* search, const txport_beam_sentence* sentence,
                                                txport_hypotheses** hypotheses) TXPORT_NOEXCEPT;
TXPORT_API void txport_hypotheses_free(txport_hypotheses* hypotheses) TXPORT_NOEXCEPT;

/* Choose the continuations of all hypotheses after a txport_state_step with `count` 1, whose output must have been
 * read. Then run up to `more` further steps in the same way, until a sentence is done or a cache is full. Sentence
 * i uses the rows from i * beam to (i + 1) * beam - 1, and must have been placed in the first of them; NULL means that
 * these rows are free.
 *
 * Let E be the number of ids that end a translation, including eos. The state must have been allocated with `top` of at
 * least beam * (1 + E), or beam * (2 + E) if rules change scores; more than the target vocabulary is never needed. If
 * rules change scores, it must also have been allocated with logits, unless the engine recomputes them.
 *
 * Writes to `steps` the number of tokens chosen for each hypothesis, at least 1, and to `done` [count] whether each
 * sentence is done. */
TXPORT_API txport_code txport_state_search(txport_engine_state* state, const txport_beam_search* search, int64_t count,
                                           txport_hypotheses* const* sentences, int64_t more, int64_t* steps,
                                           uint8_t* done) TXPORT_NOEXCEPT;

/* Return translation `index` of a sentence that is done, the best first: its `ids`, the natural log-probability of each
 * in `scores`, their number in `count`, and the `score` of the hypothesis. The arrays are valid until the hypotheses
 * are freed. `count` is 0 if there are no more translations. */
TXPORT_API txport_code txport_hypotheses_answer(const txport_hypotheses* hypotheses, int64_t index, const int64_t** ids,
                                                const double** scores, int64_t* count, double* score) TXPORT_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* TXPORT_ENGINE_H */
