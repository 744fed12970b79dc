"""The command line, as ``python -m fedjax_fair``."""

from fedjax_fair.app.cli import program

if __name__ == "__main__":
    program()
