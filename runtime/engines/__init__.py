"""The libraries that compute a step, and the choice among them."""
