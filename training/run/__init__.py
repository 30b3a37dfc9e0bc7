"""Parts of one run: directory, clock, training step, validation, saving and progress."""
