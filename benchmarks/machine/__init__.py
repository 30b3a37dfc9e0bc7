"""What a run was made on, and how far it is from that machine's limits."""
