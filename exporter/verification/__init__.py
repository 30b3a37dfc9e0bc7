"""Comparison of a bundle with PyTorch: checks and report."""
