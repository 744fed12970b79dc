"""Sources of named data sets."""
