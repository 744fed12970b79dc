"""The tables and figures of papers, and benchmarks; run from a checkout, not installed."""
