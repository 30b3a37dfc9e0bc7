"""gpu-report: everything that only a GPU can show, in one command."""
