"""Selection of nodes that must stay in float32, by calibration on real sentences."""
