"""What a bundle is, and every way in which a directory is not one. Needs numpy at most."""
