"""Programs that answer one question each, of services: clients, load, servers."""
