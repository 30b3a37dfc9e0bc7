"""Choice of what must stay in float32, by calibration on real sentences."""
