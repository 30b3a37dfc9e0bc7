"""What is said of a run: JSON, tables, plots, comparisons."""
