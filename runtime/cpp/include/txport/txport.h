/* txport: run bundles of encoder-decoder Transformers. This is the C ABI.
 *
 * Handles are opaque. Each function that can fail returns a txport_code. txport_message() then returns one sentence
 * with the file, the value and what to do. No function throws, exits or prints. Text is UTF-8.
 *
 * Threads: any number of threads may use a translator at the same time; they share its weights. Use a result, a stream
 * or a pending request in one thread at a time.
 *
 * Lifetime: pointers obtained from a result or a translator become invalid when it is freed or closed. Results, streams
 * and pending requests may outlive their translator. As with free(), it is undefined behavior to use a closed handle,
 * to close a handle twice, or to close a handle while another thread uses it. NULL is always safe. txport_message() is
 * not part of a handle: closing and freeing keep it.
 *
 * Defaults: a structure that is initialized with its _INIT macro has the default of each field. A field selects it by
 *
 *   int32_t, int64_t    0                   also where 0 is the default value itself, as for `seed`
 *   double              0                   it would be invalid, or change nothing
 *   pointers            NULL                to text, to ids, or to a number that may itself be 0, as `length_penalty`
 *   words, ids          empty
 *
 * Two kinds of int32_t have a negative value as well: flags that the model's generation settings may set
 * (`renormalize`, `sample`, `replace_unknowns`: negative is off), and `workers` (-1: one per core).
 */
#ifndef TXPORT_TXPORT_H
#define TXPORT_TXPORT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(TXPORT_BUILD)
#define TXPORT_API __declspec(dllexport)
#elif defined(_WIN32)
#define TXPORT_API
#else
#define TXPORT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#define TXPORT_NOEXCEPT noexcept
#else
#define TXPORT_NOEXCEPT
#endif

typedef struct txport_translator txport_translator;
typedef struct txport_result txport_result;
typedef struct txport_stream txport_stream;
typedef struct txport_pending txport_pending;

typedef enum txport_code {
  TXPORT_OK = 0,
  TXPORT_INPUT_ERROR = 1,        /* the caller passed an invalid argument, option or text */
  TXPORT_BUNDLE_ERROR = 2,       /* the bundle is incomplete, modified or newer than this library, or cannot run here */
  TXPORT_CHECK_FAILED = 3,       /* the self-check was completed and found a difference */
  TXPORT_CANCELLED = 4,          /* the callback stopped the translation or threw, or the request was cancelled */
  TXPORT_RESOURCE_ERROR = 5,     /* not enough host or GPU memory: retry later, or with a smaller batch */
  TXPORT_INTERNAL_ERROR = 6,     /* a bug in txport or in a library that it uses: please report the message */
  TXPORT_END = 7,                /* the stream has no more tokens; not an error, sets no message */
  TXPORT_ENGINE_ERROR = 8,       /* a library or a GPU failed; after a GPU failure, open the bundle again */
  TXPORT_MISSING_LIBRARY = 9,    /* a library or a driver is not installed or cannot be loaded */
  TXPORT_DEADLINE_EXCEEDED = 10, /* the request was not finished at its deadline */
  TXPORT_WAITING = 11,           /* the request is not finished yet; not an error, sets no message */
} txport_code;

/* Callback for a warning, one sentence. It runs in the thread of the call that causes it, and must not throw.
 */
typedef void (*txport_warning)(void* user, const char* message);

/* Callback for one token of a stream: its id, the text that it completes, and its log-probability (0 without the option
 * scores). `text` is often empty; it is NUL-terminated, has `length` bytes and is valid during the call only. Return 0
 * to continue, any other value to stop. */
typedef int (*txport_token)(void* user, int64_t id, const char* text, size_t length, double score);

/* Options for opening a bundle. Initialize with TXPORT_TRANSLATOR_OPTIONS_INIT: zero selects the default of each field.
 * New versions add fields at the end; `struct_size` specifies which fields the application was compiled with. */
typedef struct txport_translator_options {
  size_t struct_size;     /* sizeof(txport_translator_options) */
  const char* device;     /* "auto", "cpu" or "cuda"; NULL: auto */
  const char* lowering;   /* for experts: decoder step graph, "ort", "scatter" or "tensorscatter"; NULL: the best one */
  int32_t threads;        /* threads of each operator; 0: one per core */
  int32_t batch;          /* maximum batch size in sentences; 0: the bundle's maximum */
  int32_t batch_tokens;   /* maximum batch size in source tokens, including padding; 0: 4096 */
  txport_warning warning; /* NULL: warnings are discarded */
  void* warning_user;     /* passed to `warning` */
  int32_t workers;        /* parallel batches on the CPU, which share the cores; 0: 1; -1: one per core, at most 4 */
  const char* engine;    /* "auto", "fused" (txport's for CPUs), "ort" (ONNX Runtime) or "trt" (TensorRT); NULL: auto */
  int32_t trust_engines; /* not 0: allow TensorRT engines in the bundle; they are native code, so trust its author */
  int32_t verify;        /* not 0: also compare the hash of the weights; hashes of other files are always compared */
} txport_translator_options;

/* An array of ids, owned by the application. */
typedef struct txport_ids {
  const int64_t* values;
  size_t count;
} txport_ids;

/* Texts and id sequences, owned by the application. */
typedef struct txport_words {
  const char* const* texts; /* NUL-terminated */
  size_t text_count;
  const txport_ids* sequences;
  size_t sequence_count;
} txport_words;

/* Feature vectors [count, size], row after row: the source of a model that reads vectors, such as frames of speech. */
typedef struct txport_features {
  const float* values;
  size_t count;
  size_t size;
} txport_features;

/* Options for every sentence of a call. Initialize with TXPORT_OPTIONS_INIT: zero selects the default of each field.
 * New versions add fields at the end; `struct_size` specifies which fields the application was compiled with. */
typedef struct txport_options {
  size_t struct_size;        /* sizeof(txport_options) */
  int32_t max_length;        /* maximum number of target tokens, including eos; 0: 2 x source tokens + 20 */
  int32_t min_length;        /* minimum number of target tokens */
  const char* prefix;        /* text that every translation must begin with; NULL: none */
  const int64_t* prefix_ids; /* the same as target ids, instead of `prefix`; NULL: none */
  size_t prefix_count;       /* number of ids in `prefix_ids` */
  int32_t scores;            /* not 0: compute the log-probability of each token */
  int32_t strict;            /* not 0: refuse sentences that are too long, instead of truncating them with a warning */
  const char* source_language; /* for multilingual bundles; NULL: the bundle's default */
  const char* target_language;
  /* These two require a bundle exported with tx-export --with-attention. Streams refuse both. */
  int32_t alignments;  /* not 0: align tokens and words of each translation with its source */
  int32_t attention;   /* not 0: return the attention of each target token over the source tokens */
  int32_t full_length; /* not 0: without max_length, allow up to the bundle's maximum length */
  /* Search options, with the meaning that they have in Hugging Face's `generate`. 0, an empty list or NULL selects the
   * default or, if `generation` is "model", the model's generation setting. Streams refuse beams, sampling and
   * alternatives. */
  const char* generation;       /* "greedy" or "model"; NULL: greedy */
  int32_t beam;                 /* number of beams; 0: 1, greedy search */
  int32_t n_best;               /* translations of each text: hypotheses, up to `beam`, or samples; 0: 1 */
  const double* length_penalty; /* exponent of the length that beam scores are divided by; NULL: 1 */
  const char* early_stopping;   /* when beam search stops: "true": after enough finished hypotheses; "false": when a
                                   better one is unlikely; "never": when a better one is impossible; NULL: false */
  double patience;              /* with early_stopping "true": stop after beam x patience finished hypotheses; 0: 1 */
  double repetition_penalty;    /* penalty for repeated tokens; 0: 1 */
  int32_t no_repeat_ngram;      /* never repeat an n-gram of this size; 0: no rule */
  txport_words bad_words;       /* texts and id sequences that translations must not contain */
  txport_ids suppress;          /* ids that are never generated */
  txport_ids begin_suppress;    /* ids that are never generated first */
  txport_ids end_ids;           /* ids that end a translation, in addition to eos */
  const int64_t* forced_end;    /* id that is generated last when the maximum length is reached; NULL: none */
  int32_t renormalize;          /* positive: renormalize probabilities of beams after all rules; negative: off */
  int32_t sample;               /* positive: sample tokens at random; negative: off */
  double temperature;           /* temperature that divides the logits before sampling; 0: 1 */
  const int64_t* top_k;         /* sample from the k most likely tokens, 0 for all; NULL: all */
  double top_p;                 /* nucleus sampling: smallest set of best tokens with this total probability; 0: 1 */
  double min_p;                 /* sample from tokens at least this fraction as likely as the best one; 0: all */
  int64_t seed;                 /* random seed for sampling */
  int32_t alternatives;         /* branch on the N best tokens after the prefix; 0: none */
  int32_t shortlist;            /* not 0: restrict target tokens to the bundle's shortlist for the source */
  int32_t replace_unknowns;     /* positive: replace each unknown token by the source token with the most attention, for
                                   bundles of tx-export --with-attention; negative: off; streams refuse it */
} txport_options;

#define TXPORT_TRANSLATOR_OPTIONS_INIT \
  { sizeof(txport_translator_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define TXPORT_OPTIONS_INIT                                                                                           \
  {                                                                                                                   \
    sizeof(txport_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0}, {0, 0}, {0, 0}, \
        {0, 0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                                                       \
  }

/* A byte range [start, end) of a text. */
typedef struct txport_span {
  size_t start;
  size_t end;
} txport_span;

/* Two aligned words: the index of the source word and of the target word, from 0. */
typedef struct txport_word_pair {
  size_t source;
  size_t target;
} txport_word_pair;

/* Kinds of spans for txport_result_spans. Spans of tokens exclude white space; they are empty for tokens that are not
 * part of the text, such as eos. Words are separated by white space. */
typedef enum txport_spans {
  TXPORT_SOURCE_TOKENS = 0,
  TXPORT_TARGET_TOKENS = 1,
  TXPORT_SOURCE_WORDS = 2,
  TXPORT_TARGET_WORDS = 3,
} txport_spans;

/* A sentence of a document, or a part of a sentence: its byte range in the document, the byte range of its translation
 * in the translated document, and in `cut` whether it is a part of a sentence that is longer than the model supports.
 */
typedef struct txport_part {
  txport_span source;
  txport_span target;
  int32_t cut;
} txport_part;

/* Return the version of this library, "MAJOR.MINOR.PATCH". */
TXPORT_API const char* txport_version(void) TXPORT_NOEXCEPT;

/* Return the message of the last failed call of this thread; empty if no call has failed. It is valid until another
 * call of this thread fails. Functions that close or free do not fail. */
TXPORT_API const char* txport_message(void) TXPORT_NOEXCEPT;

/* Open a bundle: a directory of tx-export or a file of tx-pack. `options` may be NULL. On success, the caller must
 * close *translator. */
TXPORT_API txport_code txport_open(const char* bundle, const txport_translator_options* options,
                                   txport_translator** translator) TXPORT_NOEXCEPT;
/* Like txport_open, but open the bytes of a tx-pack file in memory, for example in flash memory or in a resource of the
 * program. Their address must be a multiple of 8. They must not change until the translator, its streams and its
 * pending requests are closed. ONNX Runtime copies the weights of such a bundle; it maps those of a file. */
TXPORT_API txport_code txport_open_memory(const void* bundle, size_t size, const txport_translator_options* options,
                                          txport_translator** translator) TXPORT_NOEXCEPT;
TXPORT_API void txport_close(txport_translator* translator) TXPORT_NOEXCEPT;

/* Return the bundle's manifest.json, unchanged and NUL-terminated. It is valid until the translator is closed. */
TXPORT_API txport_code txport_manifest(const txport_translator* translator, const char** json) TXPORT_NOEXCEPT;

/* Return a description of the engine that runs the bundle, such as "ONNX Runtime 1.23.2 on cpu, lowering ort". It is
 * valid until the translator is closed. */
TXPORT_API txport_code txport_engine(const txport_translator* translator, const char** name) TXPORT_NOEXCEPT;

/* Translate all cases of the bundle's golden.json, once in one batch and once each alone. Return TXPORT_CHECK_FAILED if
 * a translation differs from the stored one. */
TXPORT_API txport_code txport_self_check(const txport_translator* translator) TXPORT_NOEXCEPT;

/* Translate `count` texts. They are sorted by length and run in batches; results keep the order of the texts. `lengths`
 * contains the size of each text in bytes; pass NULL if the texts are NUL-terminated. `options` may be NULL. On
 * success, the caller must free *result. */
TXPORT_API txport_code txport_translate(const txport_translator* translator, const char* const* texts,
                                        const size_t* lengths, size_t count, const txport_options* options,
                                        txport_result** result) TXPORT_NOEXCEPT;

/* Like txport_translate, but from source ids including eos, without a tokenizer. `lengths` contains the number of ids
 * of each source. */
TXPORT_API txport_code txport_translate_ids(const txport_translator* translator, const int64_t* const* sources,
                                            const size_t* lengths, size_t count, const txport_options* options,
                                            txport_result** result) TXPORT_NOEXCEPT;

/* Translate feature vectors: `features` [count]. For bundles that read vectors; other bundles refuse them, and these
 * bundles refuse text and ids. Alignments are between vectors and tokens, see txport_result_times. Otherwise like
 * txport_translate. */
TXPORT_API txport_code txport_translate_features(const txport_translator* translator, const txport_features* features,
                                                 size_t count, const txport_options* options,
                                                 txport_result** result) TXPORT_NOEXCEPT;

/* Translate a text of any length and keep its layout: paragraphs, white space, bullets and headings. The text is split
 * into sentences by rules. The result contains the translation of each sentence; txport_result_document returns the
 * translated document. A sentence that is longer than the model supports is split into parts, with a warning; the
 * option strict refuses it. `length` is the size of `text` in bytes; `text` must not be NULL. `options` may be NULL. On
 * success, the caller must free *result. */
TXPORT_API txport_code txport_translate_document(const txport_translator* translator, const char* text, size_t length,
                                                 const txport_options* options, txport_result** result) TXPORT_NOEXCEPT;

/* Score given translations: for each i < count, the log-probabilities of the tokens of `targets[i]` given `texts[i]`.
 * The result contains ids and scores, but no texts. `lengths`, `target_lengths` and `options` are as in
 * txport_translate; only the languages and `strict` have an effect. Requires a bundle exported with tx-export
 * --with-attention. */
TXPORT_API txport_code txport_score(const txport_translator* translator, const char* const* texts,
                                    const size_t* lengths, const char* const* targets, const size_t* target_lengths,
                                    size_t count, const txport_options* options,
                                    txport_result** result) TXPORT_NOEXCEPT;

/* Like txport_score, but from source ids and target ids in the form that txport_translate_ids reads and returns. */
TXPORT_API txport_code txport_score_ids(const txport_translator* translator, const int64_t* const* sources,
                                        const size_t* lengths, const int64_t* const* targets,
                                        const size_t* target_lengths, size_t count,
                                        txport_result** result) TXPORT_NOEXCEPT;

/* Compute the encoder output of `count` texts that are not empty; txport_result_embedding returns it. If `pooled` is
 * not 0, it is one row per text, the mean over all tokens; otherwise it is one row per token. Options and bundles are
 * as in txport_score. */
TXPORT_API txport_code txport_embed(const txport_translator* translator, const char* const* texts,
                                    const size_t* lengths, size_t count, int32_t pooled, const txport_options* options,
                                    txport_result** result) TXPORT_NOEXCEPT;

/* The txport_result_ functions return the translation of the sentence `index`, from 0. Pointers are valid until the
 * result is freed. If `index` is too large, they are NULL and `length` is 0. `length`, in bytes or elements, may be
 * NULL. */
TXPORT_API size_t txport_result_count(const txport_result* result) TXPORT_NOEXCEPT;
TXPORT_API const char* txport_result_text(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* Target ids without the decoder start (bos). The last one is eos unless the maximum length was reached. */
TXPORT_API const int64_t* txport_result_ids(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* Natural log-probability of each target id; NULL without the option scores. */
TXPORT_API const double* txport_result_scores(const txport_result* result, size_t index,
                                              size_t* length) TXPORT_NOEXCEPT;
/* The translated document; NULL if the result is not from txport_translate_document. */
TXPORT_API const char* txport_result_document(const txport_result* result, size_t* length) TXPORT_NOEXCEPT;
/* Position of the sentence in the document; NULL if the result is not from txport_translate_document. */
TXPORT_API const txport_part* txport_result_part(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* Position of the source id that each target id is aligned with, or -1 for eos and language tokens. NULL without the
 * option alignments and for an empty sentence; the words, Pharaoh string and spans below are then also NULL. Alignments
 * are computed from cross-attention, averaged over the manifest's alignment_heads, or over all heads of the last two
 * layers. */
TXPORT_API const int64_t* txport_result_alignment(const txport_result* result, size_t index,
                                                  size_t* length) TXPORT_NOEXCEPT;
/* For each target id, the time in seconds at which its feature vector begins, -1 for none; NULL if the bundle does not
 * have the number of vectors per second. */
TXPORT_API const double* txport_result_times(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* Pairs of aligned words, sorted. Two words are aligned if at least one token of each is aligned. */
TXPORT_API const txport_word_pair* txport_result_word_pairs(const txport_result* result, size_t index,
                                                            size_t* length) TXPORT_NOEXCEPT;
/* The pairs of aligned words in Pharaoh format, as fast_align and Marian write it: "0-0 1-2", source first. */
TXPORT_API const char* txport_result_pharaoh(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* Byte ranges of tokens or words in the sentence or in its translation. There are no source spans after
 * txport_translate_ids. */
TXPORT_API const txport_span* txport_result_spans(const txport_result* result, size_t index, txport_spans which,
                                                  size_t* length) TXPORT_NOEXCEPT;
/* Attention of each target id over the source ids: `rows` x `columns` values in row-major order, one row per target id.
 * Each row sums to 1. NULL without the option attention. */
TXPORT_API const float* txport_result_attention(const txport_result* result, size_t index, size_t* rows,
                                                size_t* columns) TXPORT_NOEXCEPT;
/* Encoder output of a text from txport_embed: `rows` x `columns` values in row-major order. `columns` is d_model. */
TXPORT_API const float* txport_result_embedding(const txport_result* result, size_t index, size_t* rows,
                                                size_t* columns) TXPORT_NOEXCEPT;
/* 1 if the sentence was longer than the bundle supports and was truncated, otherwise 0. */
TXPORT_API int txport_result_truncated(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* 1 if the translation ended with eos or is empty; 0 if it reached the maximum length. */
TXPORT_API int txport_result_finished(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* 1 if the translation ends with at least three repetitions of one phrase, at least twelve tokens in total; otherwise
 * 0. */
TXPORT_API int txport_result_looped(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* Score of the hypothesis in beam search: its log-probability divided by a power of its length. NULL for other
 * searches. */
TXPORT_API const double* txport_result_score(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* All translations that n_best or alternatives requested, the best first. They are a separate result, which is owned by
 * `result`: do not free it. NULL if only one translation was requested. */
TXPORT_API const txport_result* txport_result_hypotheses(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
TXPORT_API void txport_result_free(txport_result* result) TXPORT_NOEXCEPT;

/* Translate one text and call `token` with each token as soon as it is generated, including eos. `length` is in bytes;
 * pass SIZE_MAX if the text is NUL-terminated. Returns TXPORT_CANCELLED if `token` stopped the translation or threw
 * (C++ code should not throw here). */
TXPORT_API txport_code txport_translate_stream(const txport_translator* translator, const char* text, size_t length,
                                               const txport_options* options, txport_token token,
                                               void* user) TXPORT_NOEXCEPT;

/* Open a stream from which the caller fetches each token with txport_stream_next. On success, the caller must close
 * *stream; it may do so at any time. */
TXPORT_API txport_code txport_stream_open(const txport_translator* translator, const char* text, size_t length,
                                          const txport_options* options, txport_stream** stream) TXPORT_NOEXCEPT;
/* Open a stream of the translation of feature vectors; see txport_translate_features. */
TXPORT_API txport_code txport_stream_open_features(const txport_translator* translator, const txport_features* features,
                                                   const txport_options* options,
                                                   txport_stream** stream) TXPORT_NOEXCEPT;
/* Return the next token, or TXPORT_END after the last one. `text` is valid until the next call with this stream.
 * `text`, `length` and `score` may be NULL. */
TXPORT_API txport_code txport_stream_next(txport_stream* stream, int64_t* id, const char** text, size_t* length,
                                          double* score) TXPORT_NOEXCEPT;
TXPORT_API void txport_stream_close(txport_stream* stream) TXPORT_NOEXCEPT;

/* Callback for the end of a request; it is called once. It receives TXPORT_OK and a result of one sentence, which the
 * callback must free, or another code and NULL; txport_message() then returns the reason. No other callback of the
 * request follows. It must return quickly and must not throw.
 */
typedef void (*txport_done)(void* user, txport_code code, txport_result* result);

/* Deadline and callbacks of a request. Initialize with TXPORT_REQUEST_INIT: zero selects the default of each field. New
 * versions add fields at the end; `struct_size` specifies which fields the application was compiled with. */
typedef struct txport_request {
  size_t struct_size; /* sizeof(txport_request) */
  double seconds;     /* time limit in seconds; 0: none */
  txport_done done;   /* NULL: get the result with txport_pending_wait */
  txport_token token; /* called with each token; must return quickly; NULL: no callback */
  void* user;         /* passed to `done` and `token` */
} txport_request;

#define TXPORT_REQUEST_INIT \
  { sizeof(txport_request), 0, 0, 0, 0 }

/* Submit one text to the running batch, which it shares with requests of other threads; returns immediately. `length`
 * and `options` are as in txport_translate_stream. Callbacks run on the decoding thread and block it. They may run
 * before this function returns. They may call any function except txport_pending_wait. For a text without words, `done`
 * is called during this call. On success, the caller must free *pending; it may do so at any time, even before the
 * request is finished. With `done`, `pending` may be NULL. Returns TXPORT_RESOURCE_ERROR if 1024 requests are already
 * waiting. */
TXPORT_API txport_code txport_submit(const txport_translator* translator, const char* text, size_t length,
                                     const txport_options* options, const txport_request* request,
                                     txport_pending** pending) TXPORT_NOEXCEPT;
/* Submit feature vectors, which are copied; see txport_translate_features. */
TXPORT_API txport_code txport_submit_features(const txport_translator* translator, const txport_features* features,
                                              const txport_options* options, const txport_request* request,
                                              txport_pending** pending) TXPORT_NOEXCEPT;
/* Get the result of a request without `done`. Waits up to `seconds` (0: poll; negative: wait without limit), then
 * returns TXPORT_WAITING. Any other code is the outcome of the request and is returned once. With TXPORT_OK, the caller
 * must free *result. In a forked process, returns TXPORT_ENGINE_ERROR for an unfinished request of the parent process.
 */
TXPORT_API txport_code txport_pending_wait(txport_pending* pending, double seconds,
                                           txport_result** result) TXPORT_NOEXCEPT;
/* Cancel a request; any thread may call this. The row of the request becomes free after the current step, and the
 * outcome of the request is TXPORT_CANCELLED. A finished request is not affected. */
TXPORT_API void txport_pending_cancel(txport_pending* pending) TXPORT_NOEXCEPT;
/* Free the handle. The request is not cancelled. */
TXPORT_API void txport_pending_free(txport_pending* pending) TXPORT_NOEXCEPT;
/* Refuse further calls of txport_submit, and return when all submitted requests are finished. In a callback, it returns
 * immediately. txport_close without a previous txport_drain cancels unfinished requests. */
TXPORT_API txport_code txport_drain(const txport_translator* translator) TXPORT_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* TXPORT_TXPORT_H */
