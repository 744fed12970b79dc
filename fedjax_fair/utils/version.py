"""Version of the package, which packaging reads from this file."""

__all__ = ["__version__"]

__version__ = "0.1.0"
