"""Settings of roles, data and training: their values, names, files and options."""
