"""Smaller numbers, and proof of what they cost: float16 with islands, int8."""
