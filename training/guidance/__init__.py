"""Guided attention: what chosen heads of cross-attention are taught to point to, and the alignments of a corpus."""
