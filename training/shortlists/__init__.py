"""Shortlists: possible target words for each source word, counted in a corpus."""
