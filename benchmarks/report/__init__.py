"""Reports of a run: JSON, tables, plots and comparisons."""
