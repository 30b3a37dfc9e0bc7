"""A server over the queue: LibreTranslate's API, token streams, several bundles, limits, metrics and a page."""
