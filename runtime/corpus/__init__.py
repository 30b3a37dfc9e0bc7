"""Corpora of any size: files in, and parts out that appear whole or not at all, by as many processes as there are."""
