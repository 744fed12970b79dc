"""Benchmark of fair federated learning: tuned methods, by a fixed protocol and one command."""
