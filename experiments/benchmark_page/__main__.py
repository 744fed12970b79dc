"""Writes pages of reports: ``python -m experiments.benchmark_page FOLDER...``.

Each folder is the ``report`` of a benchmark, or a published one such as docs/benchmark/embedded.
"""

import argparse
from pathlib import Path

from experiments.benchmark_page.page import write

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the page of a benchmark's report.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders of reports")
    for folder in parser.parse_args().folders:
        print(write(folder))
