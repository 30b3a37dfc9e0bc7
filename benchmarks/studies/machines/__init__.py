"""Work that many processes share: corpora and training."""
