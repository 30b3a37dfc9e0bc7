"""Bundle format and validation. Needs at most numpy."""
