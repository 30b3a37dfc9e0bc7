"""Search: a scheduler of requests over the rows of any engine, and the policies that choose their tokens."""
