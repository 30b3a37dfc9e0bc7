"""The bundle, and every way in which a directory is not one. Needs numpy at most."""
