"""Importers for models of textbooks and tutorials, with or without PyTorch's own Transformer layers."""
