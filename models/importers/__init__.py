"""Checkpoints of other toolkits, turned into our own: one foreign format a file."""
