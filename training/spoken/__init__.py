"""The built-in corpus: written English to spoken English, made from templates."""
