"""Reports of a run: JSON, tables, plots, comparisons."""
