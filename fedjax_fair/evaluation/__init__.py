"""What models compute on the examples of clients: sums, predictions, gradients, metrics."""
