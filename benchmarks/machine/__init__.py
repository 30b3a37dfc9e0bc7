"""The machine of a run: description, memory, and the measured limits for a roofline."""
