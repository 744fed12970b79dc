"""Estimates of compilers for accelerators."""
