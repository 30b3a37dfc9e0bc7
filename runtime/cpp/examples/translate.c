/* Translate one sentence with a bundle: cc translate.c -ltxport, then ./a.out BUNDLE "a sentence" */
#include <stdio.h>
#include <txport/txport.h>

static int print_token(void* user, int64_t id, const char* text, size_t length, double score) {
  (void)user, (void)id, (void)score;
  fwrite(text, 1, length, stdout);
  fflush(stdout);
  return 0; /* any other value stops */
}

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, txport_message());
  return 1;
}

int main(int argc, char** argv) {
  txport_translator* translator = NULL;
  txport_result* result = NULL;
  txport_options options = TXPORT_OPTIONS_INIT;
  if (argc != 3) {
    fprintf(stderr, "usage: %s BUNDLE SENTENCE\n", argv[0]);
    return 2;
  }
  if (txport_open(argv[1], NULL, &translator) != TXPORT_OK) return failed("open");

  options.strict = 1; /* refuse sentences that are too long, instead of truncating them */
  const char* texts[] = {argv[2]};
  if (txport_translate(translator, texts, NULL, 1, &options, &result) != TXPORT_OK) {
    txport_close(translator);
    return failed("translate");
  }
  printf("%s\n", txport_result_text(result, 0, NULL));
  txport_result_free(result);

  /* Translate again, token by token. */
  txport_code code = txport_translate_stream(translator, argv[2], SIZE_MAX, &options, print_token, NULL);
  printf("\n");
  txport_close(translator);
  return code == TXPORT_OK ? 0 : failed("stream");
}
