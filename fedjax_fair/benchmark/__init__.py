"""The benchmark of fair federated learning."""
