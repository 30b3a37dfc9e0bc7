"""Corpora, tokenizer training, the training loop and evaluation."""
