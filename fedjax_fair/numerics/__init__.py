"""Numerical methods that know of no federation: permutations, distances, clusters and others."""
