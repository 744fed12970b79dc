"""Programs others would use, each in an environment of its own."""
