"""Fair timing: workloads, contestants in turns, one process each."""
