"""The contestants: bundles, the C++ runtime, and peers with the same weights."""
