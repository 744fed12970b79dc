"""A round as a pure function: its state, its context, local training and client state."""
