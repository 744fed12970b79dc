"""A benchmark of fair federated learning: statistics, rankings and verdicts of methods."""
