"""How cost grows with each size of the model and of the work."""
