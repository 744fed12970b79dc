"""Benchmark of fair federated learning methods."""
