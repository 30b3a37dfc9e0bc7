"""Models from elsewhere: directories, archives, and repositories of the Hugging Face hub."""
