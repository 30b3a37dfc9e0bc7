"""Libraries that compute a step, and the choice between them."""
