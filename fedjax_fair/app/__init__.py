"""The application: configuration, registry of methods, sweeps, run folders and command line."""
