"""The machine of a run: description, energy, memory, and the limits that a roofline is drawn from."""
