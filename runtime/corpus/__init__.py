"""Corpora of any size: any number of processes turn files into parts, each of which appears only when complete."""
