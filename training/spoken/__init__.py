"""Built-in corpora, generated from templates: written to spoken English, and sentences with names to copy."""
