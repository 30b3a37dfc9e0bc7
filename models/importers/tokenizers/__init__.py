"""Tokenizers that come along with an imported model."""
