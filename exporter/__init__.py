"""Conversion of a trained checkpoint to a verified bundle."""
