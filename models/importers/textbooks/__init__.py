"""Importers of models that textbooks and tutorials teach, around PyTorch's own layers or none."""
