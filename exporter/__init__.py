"""Turn a trained checkpoint into a verified bundle."""
