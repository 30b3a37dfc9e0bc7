"""Model files from directories, archives and repositories of the Hugging Face hub."""
