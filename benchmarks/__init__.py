"""Measurements, comparisons with other libraries, and reports."""
