"""What is promised when something goes wrong, tried many times over; counts as CSV files."""
