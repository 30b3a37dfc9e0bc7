"""Output of commands for people: progress, log lines and words. Needs no library."""
