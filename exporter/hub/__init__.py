"""Bundles by name: download, export, cache and upload."""
