"""Whether a bundle says what PyTorch says: the report, and how it is made."""
