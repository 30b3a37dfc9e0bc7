"""Requests and searches, from the options of a call."""
