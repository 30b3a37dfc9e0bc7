"""Programs that answer one question each, such as the memory or the overhead of the runtime."""
