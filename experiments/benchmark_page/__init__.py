"""The page of a benchmark's report as one HTML file."""
