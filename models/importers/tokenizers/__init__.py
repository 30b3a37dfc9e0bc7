"""Tokenizers of imported models."""
