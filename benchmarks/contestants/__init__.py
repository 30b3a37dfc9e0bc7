"""Who is timed: bundles, the C++ runtime, and peers with the same weights."""
