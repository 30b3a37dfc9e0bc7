/* txport: run bundles of encoder-decoder Transformers. The C ABI.
 *
 * Handles are opaque. Each function that can fail returns a txport_code, and txport_message() then has one sentence
 * that names the file, the value and the way out. Nothing here throws, exits or prints. Text is UTF-8.
 *
 * Threads: any number of threads may use a translator at once, over one set of weights. A result, a stream or a pending
 * answer belongs to one thread at a time.
 *
 * Lifetime: what a result or a translator points to is gone when it is closed. Results, streams and pending answers may
 * outlive their translator. As with free(), it is undefined to use a handle that was closed, to close one twice, or to
 * close one while another thread uses it; NULL is always safe.
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
  TXPORT_INPUT_ERROR = 1,        /* the caller's fault: an argument, an option or a text that cannot be used */
  TXPORT_BUNDLE_ERROR = 2,       /* a bundle that is incomplete, changed, of a newer format, or does not run here */
  TXPORT_CHECK_FAILED = 3,       /* a self-check that ran to its end and found a difference */
  TXPORT_CANCELLED = 4,          /* the callback asked to stop, or threw; or the request was cancelled */
  TXPORT_RESOURCE_ERROR = 5,     /* not enough memory, of the host or of a GPU: retry later, or with a smaller batch */
  TXPORT_INTERNAL_ERROR = 6,     /* a bug in txport or in a library under it: please report the message */
  TXPORT_END = 7,                /* a stream has no more tokens; no error, and no message */
  TXPORT_ENGINE_ERROR = 8,       /* a library or a GPU failed; if it was a GPU, open the bundle again */
  TXPORT_MISSING_LIBRARY = 9,    /* a library or a driver that is not installed or cannot be loaded */
  TXPORT_DEADLINE_EXCEEDED = 10, /* a request had no answer at its deadline */
  TXPORT_WAITING = 11,           /* there is no answer yet; no error, and no message */
} txport_code;

/* Takes one sentence of warning, in the thread of the call that causes it. Must not throw. */
typedef void (*txport_warning)(void* user, const char* message);

/* Takes one token of a stream: its id, the text that became certain by it (perhaps none; NUL-terminated, `length`
 * bytes, gone after the call), and its log-probability (0 without the option scores). Return 0 to continue, anything
 * else to stop. */
typedef int (*txport_token)(void* user, int64_t id, const char* text, size_t length, double score);

/* How to open a bundle. Begin with TXPORT_TRANSLATOR_OPTIONS_INIT: every zero is the default. New fields come at the
 * end, and `struct_size` defines which ones the application has. */
typedef struct txport_translator_options {
  size_t struct_size;   /* sizeof(txport_translator_options) */
  const char* device;   /* "auto", "cpu" or "cuda"; NULL: auto */
  const char* lowering; /* for experts: the decoder step's graph, "ort", "scatter" or "tensorscatter"; NULL: the best */
  int32_t threads;      /* threads of each operator; 0: as many as there are cores */
  int32_t batch;        /* maximum number of sentences that run together; 0: the bundle's maximum */
  int32_t batch_tokens; /* the most source tokens, padding included, that run together; 0: 4096 */
  txport_warning warning; /* NULL: warnings go nowhere */
  void* warning_user;     /* passed to `warning` */
  int32_t workers;       /* batches side by side on the CPU, each with a share of the cores; 0: one, -1: by the cores */
  const char* engine;    /* "auto", "fused" (our own for CPUs), "ort" (ONNX Runtime) or "trt" (TensorRT); NULL: auto */
  int32_t trust_engines; /* not 0: TensorRT engines in the bundle, native code of a third party, may run */
  int32_t verify;        /* not 0: compare the hash of the weights as well; those of other files always are */
} txport_translator_options;

/* Ids that an application gives. */
typedef struct txport_ids {
  const int64_t* values;
  size_t count;
} txport_ids;

/* Texts, and sequences of ids. */
typedef struct txport_words {
  const char* const* texts; /* NUL-terminated */
  size_t text_count;
  const txport_ids* sequences;
  size_t sequence_count;
} txport_words;

/* Feature vectors [count, size], row after row: the source of a model that reads these, such as frames of speech. */
typedef struct txport_features {
  const float* values;
  size_t count;
  size_t size;
} txport_features;

/* Options for every sentence of a call. Begin with TXPORT_OPTIONS_INIT: every zero is the default. New fields come at
 * the end, and `struct_size` defines which ones the application has. */
typedef struct txport_options {
  size_t struct_size;          /* sizeof(txport_options) */
  int32_t max_length;          /* maximum number of target tokens, including eos; 0: 2 x source tokens + 20 */
  int32_t min_length;          /* tokens to make before a translation may end */
  const char* prefix;          /* text that every translation must begin with; NULL: none */
  const int64_t* prefix_ids;   /* the same as target ids, instead of `prefix`; NULL: none */
  size_t prefix_count;         /* how many ids */
  int32_t scores;              /* not 0: compute the log-probability of each token */
  int32_t strict;              /* not 0: refuse a sentence that is too long, instead of cutting it with a warning */
  const char* source_language; /* for bundles that have languages to choose; NULL: the bundle's default */
  const char* target_language;
  /* For bundles of tx-export --with-attention; streams refuse both. */
  int32_t alignments;  /* not 0: compute which tokens and words of the source each translation's come from */
  int32_t attention;   /* not 0: compute how much each token attended to each token of the source */
  int32_t full_length; /* not 0: without max_length, make as many tokens as the bundle makes at most */
  /* How to search, as Hugging Face's `generate` does; what is 0, empty or NULL is the default or, with `generation`
   * "model", the model's own setting. Streams refuse beams, samples and alternatives. */
  const char* generation;       /* "greedy" or "model"; NULL: greedy */
  int32_t beam;                 /* hypotheses to follow side by side; 0: 1, greedy */
  int32_t n_best;               /* translations of each text, at most as many as the beam, or samples; 0: 1 */
  const double* length_penalty; /* power of the length by which scores of beams are divided; NULL: 1 */
  const char* early_stopping;   /* "true": a beam search ends with enough hypotheses; "false": when none is likely to be
                                   better; "never": when none can be; NULL: false */
  double patience;              /* with early_stopping "true": stop after beam x patience finished hypotheses; 0: 1 */
  double repetition_penalty;    /* factor against tokens made already; 0: 1 */
  int32_t no_repeat_ngram;      /* never repeat an n-gram of this size; 0: no rule */
  txport_words bad_words;       /* what must not occur */
  txport_ids suppress;          /* ids that must not occur */
  txport_ids begin_suppress;    /* ids that must not be the first */
  txport_ids end_ids;           /* ids that end a translation, besides end of sequence */
  const int64_t* forced_end;    /* the id that ends a translation that reaches its limit; NULL: none */
  int32_t renormalize;          /* above 0: normalise the probabilities of beams again after all rules; below 0: not */
  int32_t sample;               /* above 0: draw tokens at random; below 0: not */
  double temperature;           /* what logits are divided by before a draw; 0: 1 */
  const int64_t* top_k;         /* sample from the k most likely tokens, 0 for all; NULL: all */
  double top_p;                 /* draw among the best tokens that have this probability in all; 0: 1 */
  double min_p;                 /* draw among tokens that have this share of the best one's probability; 0: all */
  int64_t seed;                 /* number that draws follow from */
  int32_t alternatives;         /* branch on the N best tokens after the prefix; 0: none */
  int32_t shortlist;            /* not 0: choose among the words that the bundle's shortlist gives for each sentence */
} txport_options;

#define TXPORT_TRANSLATOR_OPTIONS_INIT \
  { sizeof(txport_translator_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define TXPORT_OPTIONS_INIT                                                                                           \
  {                                                                                                                   \
    sizeof(txport_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0}, {0, 0}, {0, 0}, \
        {0, 0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                                                          \
  }

/* Bytes of a text: the first, and the one after the last. */
typedef struct txport_span {
  size_t start;
  size_t end;
} txport_span;

/* Words that are aligned: the number of one of the source, and of one of the translation, from 0. */
typedef struct txport_word_pair {
  size_t source;
  size_t target;
} txport_word_pair;

/* Which spans of a sentence and its translation. A token's have no white space; they are empty for tokens that are not
 * of the text. Words are what white space separates. */
typedef enum txport_spans {
  TXPORT_SOURCE_TOKENS = 0,
  TXPORT_TARGET_TOKENS = 1,
  TXPORT_SOURCE_WORDS = 2,
  TXPORT_TARGET_WORDS = 3,
} txport_spans;

/* A sentence of a document, or a part of one: its bytes in the document, those of its translation in the translated
 * document, and whether it is a part of a sentence that is longer than the model takes. */
typedef struct txport_part {
  txport_span source;
  txport_span target;
  int32_t cut;
} txport_part;

/* The version of this library, as "MAJOR.MINOR.PATCH". */
TXPORT_API const char* txport_version(void) TXPORT_NOEXCEPT;

/* What went wrong in this thread's last call that failed; empty if none did. Valid until another call of this thread
 * fails: functions that close and free do not. */
TXPORT_API const char* txport_message(void) TXPORT_NOEXCEPT;

/* Open the directory that tx-export wrote, or the file that tx-pack wrote. `options` may be NULL. On success, close
 * *translator at the end. */
TXPORT_API txport_code txport_open(const char* bundle, const txport_translator_options* options,
                                   txport_translator** translator) TXPORT_NOEXCEPT;
/* Open the bytes of a file that tx-pack wrote, as from flash memory or a resource of the program. They begin at a
 * multiple of 8, and must stay as they are until the translator, its streams and pending answers are closed. ONNX
 * Runtime copies the weights, which it otherwise maps. Otherwise as txport_open. */
TXPORT_API txport_code txport_open_memory(const void* bundle, size_t size, const txport_translator_options* options,
                                          txport_translator** translator) TXPORT_NOEXCEPT;
TXPORT_API void txport_close(txport_translator* translator) TXPORT_NOEXCEPT;

/* The bundle's manifest.json as it was read, NUL-terminated; valid until the translator is closed. */
TXPORT_API txport_code txport_manifest(const txport_translator* translator, const char** json) TXPORT_NOEXCEPT;

/* What runs the bundle, as "ONNX Runtime 1.23.2 on cpu, lowering ort"; valid until the translator is closed. */
TXPORT_API txport_code txport_engine(const txport_translator* translator, const char** name) TXPORT_NOEXCEPT;

/* Translate all cases of the bundle's golden.json, together and each alone; TXPORT_CHECK_FAILED if any differs. */
TXPORT_API txport_code txport_self_check(const txport_translator* translator) TXPORT_NOEXCEPT;

/* Translate `count` texts; they are sorted by length and run in batches. `lengths` holds their bytes; NULL if they are
 * NUL-terminated. `options` may be NULL. On success, free *result at the end. */
TXPORT_API txport_code txport_translate(const txport_translator* translator, const char* const* texts,
                                        const size_t* lengths, size_t count, const txport_options* options,
                                        txport_result** result) TXPORT_NOEXCEPT;

/* As txport_translate, from source ids (end of sequence included), without a tokenizer. */
TXPORT_API txport_code txport_translate_ids(const txport_translator* translator, const int64_t* const* sources,
                                            const size_t* lengths, size_t count, const txport_options* options,
                                            txport_result** result) TXPORT_NOEXCEPT;

/* As txport_translate, from feature vectors: `features` [count]. For bundles that read these; others refuse them, and
 * these refuse text and ids. Alignments are between vectors and tokens, see txport_result_times. */
TXPORT_API txport_code txport_translate_features(const txport_translator* translator, const txport_features* features,
                                                 size_t count, const txport_options* options,
                                                 txport_result** result) TXPORT_NOEXCEPT;

/* Translate a text of any length and keep its layout: paragraphs, white space, marks of lists and headings. Its
 * sentences, found by rules, are those of the result; txport_result_document is the whole. A sentence that is longer
 * than the model takes is cut into parts, with a warning, or refused with the option strict. `length` holds the bytes
 * of `text`, which may be anything but NULL. `options` may be NULL. On success, free *result at the end. */
TXPORT_API txport_code txport_translate_document(const txport_translator* translator, const char* text, size_t length,
                                                 const txport_options* options, txport_result** result) TXPORT_NOEXCEPT;

/* How likely the model takes given translations for: of each of `count` texts, the translation of the same number.
 * Scores are in the result, beside the ids that they are of; it has no texts. `lengths` and `options` as for
 * txport_translate; of the options, the languages and `strict` have a meaning here. For bundles of tx-export
 * --with-attention. */
TXPORT_API txport_code txport_score(const txport_translator* translator, const char* const* texts,
                                    const size_t* lengths, const char* const* targets, const size_t* target_lengths,
                                    size_t count, const txport_options* options,
                                    txport_result** result) TXPORT_NOEXCEPT;

/* As txport_score, from source ids and target ids as txport_translate_ids takes and gives them. */
TXPORT_API txport_code txport_score_ids(const txport_translator* translator, const int64_t* const* sources,
                                        const size_t* lengths, const int64_t* const* targets,
                                        const size_t* target_lengths, size_t count,
                                        txport_result** result) TXPORT_NOEXCEPT;

/* What the encoder makes of texts, none of them empty: in the result, as txport_result_embedding. If `pooled` is not 0
 * it is one row, the mean over all tokens, else one row a token. Otherwise as txport_score. */
TXPORT_API txport_code txport_embed(const txport_translator* translator, const char* const* texts,
                                    const size_t* lengths, size_t count, int32_t pooled, const txport_options* options,
                                    txport_result** result) TXPORT_NOEXCEPT;

/* The translation of a sentence, by its number from 0. Pointers are valid until the result is freed; beyond the last
 * sentence they are NULL and `length` is 0. `length`, in bytes or tokens, may be NULL. */
TXPORT_API size_t txport_result_count(const txport_result* result) TXPORT_NOEXCEPT;
TXPORT_API const char* txport_result_text(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* Target ids without the decoder start; the last is end of sequence unless the maximum length came first. */
TXPORT_API const int64_t* txport_result_ids(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* The natural logarithm of each id's probability; NULL without the option scores. */
TXPORT_API const double* txport_result_scores(const txport_result* result, size_t index,
                                              size_t* length) TXPORT_NOEXCEPT;
/* The translated document; NULL for a result of anything else. */
TXPORT_API const char* txport_result_document(const txport_result* result, size_t* length) TXPORT_NOEXCEPT;
/* Where the sentence of this number is in the document; NULL for a result of anything else. */
TXPORT_API const txport_part* txport_result_part(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* For each target id, the position of the source id that it comes from, -1 for none (end of sequence, a language); NULL
 * without the option alignments, as all that follows from it, and for an empty sentence. Read off cross-attention: the
 * average of the manifest's alignment_heads, or of all heads of the last two layers. */
TXPORT_API const int64_t* txport_result_alignment(const txport_result* result, size_t index,
                                                  size_t* length) TXPORT_NOEXCEPT;
/* For each target id, the time in seconds at which its feature vector begins, -1 for none; NULL if the bundle does not
 * have the number of vectors per second. */
TXPORT_API const double* txport_result_times(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* Pairs of words of which any tokens are aligned, in order. */
TXPORT_API const txport_word_pair* txport_result_word_pairs(const txport_result* result, size_t index,
                                                            size_t* length) TXPORT_NOEXCEPT;
/* These pairs as fast_align, Marian and Pharaoh write them: "0-0 1-2", source first. */
TXPORT_API const char* txport_result_pharaoh(const txport_result* result, size_t index, size_t* length) TXPORT_NOEXCEPT;
/* The bytes of tokens or words in the sentence or its translation. None in the source if only its ids were given. */
TXPORT_API const txport_span* txport_result_spans(const txport_result* result, size_t index, txport_spans which,
                                                  size_t* length) TXPORT_NOEXCEPT;
/* How much each of `rows` target ids attended to each of `columns` source ids, row after row; each row sums to 1. NULL
 * without the option attention. */
TXPORT_API const float* txport_result_attention(const txport_result* result, size_t index, size_t* rows,
                                                size_t* columns) TXPORT_NOEXCEPT;
/* What txport_embed made of a text, row after row; a row has as many columns as the model is wide. */
TXPORT_API const float* txport_result_embedding(const txport_result* result, size_t index, size_t* rows,
                                                size_t* columns) TXPORT_NOEXCEPT;
/* 1 if the sentence was longer than the bundle takes and was cut, else 0. */
TXPORT_API int txport_result_truncated(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* 1 if the translation ended with end of sequence, or is empty; 0 if it stopped at the maximum length. */
TXPORT_API int txport_result_finished(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* 1 if the end repeats a phrase at least three times, over at least twelve tokens; else 0. */
TXPORT_API int txport_result_looped(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* What a beam search ranked the translation by: its log-probability divided by a power of its length. NULL without a
 * beam. */
TXPORT_API const double* txport_result_score(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
/* All translations that n_best or alternatives asked for, the best first, as a result of their own, which belongs to
 * `result` and must not be freed; NULL if only one was asked for. */
TXPORT_API const txport_result* txport_result_hypotheses(const txport_result* result, size_t index) TXPORT_NOEXCEPT;
TXPORT_API void txport_result_free(txport_result* result) TXPORT_NOEXCEPT;

/* Translate one text and give each token to `token` as it is made, end of sequence too. `length` in bytes; SIZE_MAX if
 * the text is NUL-terminated. TXPORT_CANCELLED if `token` asked to stop, or threw (which C++ code should not do). */
TXPORT_API txport_code txport_translate_stream(const txport_translator* translator, const char* text, size_t length,
                                               const txport_options* options, txport_token token,
                                               void* user) TXPORT_NOEXCEPT;

/* The same, with the caller fetching each token. On success, close *stream at any time. */
TXPORT_API txport_code txport_stream_open(const txport_translator* translator, const char* text, size_t length,
                                          const txport_options* options, txport_stream** stream) TXPORT_NOEXCEPT;
/* The same from feature vectors; see txport_translate_features. */
TXPORT_API txport_code txport_stream_open_features(const txport_translator* translator, const txport_features* features,
                                                   const txport_options* options,
                                                   txport_stream** stream) TXPORT_NOEXCEPT;
/* The next token, or TXPORT_END after the last. `text` is valid until the next call with this stream; `text`, `length`
 * and `score` may be NULL. */
TXPORT_API txport_code txport_stream_next(txport_stream* stream, int64_t* id, const char** text, size_t* length,
                                          double* score) TXPORT_NOEXCEPT;
TXPORT_API void txport_stream_close(txport_stream* stream) TXPORT_NOEXCEPT;

/* Takes the answer to a request, once: TXPORT_OK and a result of one sentence, which the callback frees; or another
 * code and NULL, and txport_message() returns the reason. No other callback of the request follows. Must return at
 * once, and not throw.
 */
typedef void (*txport_done)(void* user, txport_code code, txport_result* result);

/* How to answer a request. Begin with TXPORT_REQUEST_INIT: every zero is the default. New fields come at the end, and
 * `struct_size` defines which ones the application has. */
typedef struct txport_request {
  size_t struct_size; /* sizeof(txport_request) */
  double seconds;     /* time to its deadline; 0: none */
  txport_done done;   /* NULL: wait for the answer by txport_pending_wait */
  txport_token token; /* called with each token; must return at once; NULL: no callback */
  void* user;         /* passed to `done` and `token` */
} txport_request;

#define TXPORT_REQUEST_INIT \
  { sizeof(txport_request), 0, 0, 0, 0 }

/* Translate one text in the batch that runs, with those of other threads; returns at once. `length` and `options` as
 * for txport_translate_stream. Callbacks come from the thread that decodes, which they hold up, perhaps before this
 * call returns; they may call any function but txport_pending_wait. A text with nothing in it to translate is answered
 * in this call. On success free *pending at any time, before the answer too; with `done`, `pending` may be NULL.
 * TXPORT_RESOURCE_ERROR: 1024 requests are waiting. */
TXPORT_API txport_code txport_submit(const txport_translator* translator, const char* text, size_t length,
                                     const txport_options* options, const txport_request* request,
                                     txport_pending** pending) TXPORT_NOEXCEPT;
/* The same from feature vectors, which are copied; see txport_translate_features. */
TXPORT_API txport_code txport_submit_features(const txport_translator* translator, const txport_features* features,
                                              const txport_options* options, const txport_request* request,
                                              txport_pending** pending) TXPORT_NOEXCEPT;
/* The answer to a request without `done`: waits up to this number of seconds, 0 to look only; below 0: as long as it
 * takes. TXPORT_WAITING if there is none yet. Any other code is the request's own, and comes once; with TXPORT_OK, free
 * *result at the end. TXPORT_ENGINE_ERROR in a forked process, for a request of its parent that had no answer. */
TXPORT_API txport_code txport_pending_wait(txport_pending* pending, double seconds,
                                           txport_result** result) TXPORT_NOEXCEPT;
/* Give up a request, in any thread: its place in the batch is free after the step that is under way, and its answer is
 * TXPORT_CANCELLED, unless it has been answered. */
TXPORT_API void txport_pending_cancel(txport_pending* pending) TXPORT_NOEXCEPT;
/* Free the handle; cancels nothing. */
TXPORT_API void txport_pending_free(txport_pending* pending) TXPORT_NOEXCEPT;
/* Refuse further requests by txport_submit, and return when the present ones have their answers; at once in a
 * callback. txport_close without it cancels them. */
TXPORT_API txport_code txport_drain(const txport_translator* translator) TXPORT_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* TXPORT_TXPORT_H */
