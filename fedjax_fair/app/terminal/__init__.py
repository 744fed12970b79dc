"""Tables, progress, loggers and signals of the command line."""
