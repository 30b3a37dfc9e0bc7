"""Bundles by name: fetched, exported, kept and shared."""
