"""Documents: texts of any length, translated with their layout."""
