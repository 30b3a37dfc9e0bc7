"""Shortlists: the target words that each source word may become, counted in a corpus."""
