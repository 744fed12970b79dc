"""Applies the mutants of ``docs/testing.md`` and runs the tests that must reject them.

    python tests/mutants.py [--only PATTERN] [--jobs 2]

Each row of the table names a file, an expression in it, a wrong expression, and the test that fails
with the wrong one. Prints the mutants that survive their test; the exit status is their number.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/testing.md"


class Mutant(NamedTuple):
    """One wrong change and the test that rejects it."""

    file: str
    original: str
    wrong: str
    test_file: str
    test: str

    def source(self) -> Path:
        """Path of the changed file below the root of the repository."""
        folder = "" if self.file.startswith("experiments/") else "fedjax_fair"
        return Path(folder, self.file)


def read_mutants() -> list[Mutant]:
    """The rows of the table, whose cells are Markdown code."""
    mutants = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0].startswith("`"):
            codes = [cell.replace("\\|", "|").strip("`") for cell in cells[:3]]
            mutants.append(Mutant(*codes, *re.findall("`(.+?)`", cells[3])))
    return mutants


def survives(mutant: Mutant) -> bool:
    """Whether the named test passes with the wrong expression."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        skipped = shutil.ignore_patterns("__pycache__", "*.csv", "*.png")
        for part in ("fedjax_fair", "experiments", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=skipped)
        shutil.copytree(ROOT / "docs", copy / "docs")
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / mutant.source()
        path.write_text(path.read_text().replace(mutant.original, mutant.wrong))
        run = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist"),
                *("-p", "no:cacheprovider", "-m", "not slow and not gpu"),
                *(f"tests/{mutant.test_file}", "-k", mutant.test),
            ],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            text=True,
        )
    if run.returncode not in (0, 1):
        raise RuntimeError(f"{mutant}: pytest ended with {run.returncode}\n{run.stdout[-2000:]}")
    return run.returncode == 0


def main() -> int:
    """Runs the mutants that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run rows that contain this text")
    parser.add_argument("--jobs", type=int, default=2, help="processes in parallel")
    options = parser.parse_args()
    mutants = [mutant for mutant in read_mutants() if options.only in " ".join(mutant)]
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, survived in zip(mutants, pool.map(survives, mutants), strict=True):
            survivors += survived
            print("SURVIVED" if survived else "rejected", *mutant, sep="\t", flush=True)
    print(f"{len(mutants)} mutants, {survivors} survived")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
