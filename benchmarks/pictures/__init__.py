"""Pictures of attention and of positions."""
