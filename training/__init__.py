"""Corpora, training of tokenizers and models, and evaluation."""
