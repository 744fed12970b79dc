"""Fair federated learning as one compiled JAX program."""
