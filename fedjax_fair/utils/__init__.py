"""Helpers that know nothing of federated learning: pytree dataclasses, checks, printing, warnings."""
