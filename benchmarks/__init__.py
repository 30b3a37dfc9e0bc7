"""Measure, compare and report."""
