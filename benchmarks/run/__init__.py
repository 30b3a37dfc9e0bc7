"""Fair timing: workloads, and contestants that take turns in separate processes."""
