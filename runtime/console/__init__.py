"""Texts of commands for people: progress, logged sentences, words; without a library of its own."""
