"""Evaluation of translations: test sets, scores of sets and sentences, comparisons of models."""
