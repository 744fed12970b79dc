"""Convolutions in several forms, of which the fastest is chosen."""
