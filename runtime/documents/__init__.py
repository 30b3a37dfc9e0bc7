"""Documents: texts of any length, whose layout is kept."""
