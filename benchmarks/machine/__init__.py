"""The machine of a run: description, memory, and the limits that a roofline is drawn from."""
