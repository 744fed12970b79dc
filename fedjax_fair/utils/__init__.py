"""Helpers that know nothing of federated learning: trees, checks, printing, warnings."""
