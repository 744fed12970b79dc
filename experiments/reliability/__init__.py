"""Repeated trials of the guarantees of docs/reliability.md, with outcomes as CSV files."""
