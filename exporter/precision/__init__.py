"""Which parts of a graph must stay in float32, found by calibration on real sentences."""
