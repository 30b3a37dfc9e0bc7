"""Importers, which convert checkpoints of other toolkits; one module for each format."""
