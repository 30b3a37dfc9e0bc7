"""Stages of a training run: prepare, fit, finish."""
