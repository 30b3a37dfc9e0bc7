"""Comparing a bundle with PyTorch: the checks and their report."""
