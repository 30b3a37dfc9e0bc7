"""Programs that answer one question each: memory, overhead, tables for a GPU."""
