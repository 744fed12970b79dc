"""Numerical methods: permutations, distances, clustering, secure sums and others."""
