"""Importers of models that textbooks teach."""
