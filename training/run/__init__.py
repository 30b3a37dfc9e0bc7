"""One run: its directory, its clock, the training step, validation, what is saved when, and what people see of it."""
