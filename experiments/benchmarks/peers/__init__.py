"""Other simulators, each in a separate environment."""
