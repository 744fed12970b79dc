"""Federated datasets of text."""
