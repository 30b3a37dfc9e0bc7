"""Models that Marian itself wrote."""
