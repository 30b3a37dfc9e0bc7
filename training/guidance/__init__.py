"""Guided attention: targets for chosen heads of cross-attention, and alignments of a corpus."""
