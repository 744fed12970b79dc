"""Evaluation of models on the examples of clients: sums, predictions, gradients, metrics."""
