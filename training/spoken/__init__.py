"""The built-in corpora, made from templates: written English to spoken English, and sentences with names to copy."""
