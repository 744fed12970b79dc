"""The tutorial: its commands as dry runs, and the complete page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "first-hour.md"
BLOCKS = re.findall(
    r"(?:`(\S+\.py)`:\n\n)?```(sh|py)\n(.*?)```", PAGE.read_text(), re.DOTALL
)  # The file that the line above a block names, if any.
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "COLUMNS": "90",
}

# One process for all commands.
PROGRAM = """
import shlex, sys
from fedjax_fair.app.cli import main
for line in sys.stdin:
    print("status", main(shlex.split(line)), flush=True)
"""


def shell(command: list[str], folder: Path, given: str = "") -> str:
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, input=given, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_of_the_page_are_valid(tmp_path):
    typed = []
    for file, kind, text in BLOCKS:
        if file:
            (tmp_path / file).write_text(text)
        elif kind == "sh":
            typed += [line.removeprefix("fedjax-fair ") for line in text.splitlines()]
    (written,) = (line for line in typed if ">" in line)
    command, _, file = written.partition(" > ")
    (tmp_path / file).write_text(
        shell([sys.executable, "-c", PROGRAM], tmp_path, command).replace("status", "# status")
    )
    trained = [f"{line} --dry-run" for line in typed if line.split()[0] in ("run", "sweep")]
    trained.remove(f"{written} --dry-run")
    (listed,) = (line for line in typed if line.startswith("methods"))
    printed = shell([sys.executable, "-c", PROGRAM], tmp_path, "\n".join([listed, *trained]))
    assert len(trained) == 3
    assert printed.count("status 0") == 4
    assert "1. patient 50 runs" in " ".join(printed.split())


@pytest.mark.slow
def test_the_page_runs(tmp_path):
    """Findings are compared without last digits, which differ between processors."""
    printed = []
    for file, kind, text in BLOCKS:
        if file:
            (tmp_path / file).write_text(text)
        else:
            command = ["sh", "-e", "-c"] if kind == "sh" else [sys.executable, "-c"]
            printed.append(shell([*command, text], tmp_path))
    (run,) = (tmp_path / "study").iterdir()
    assert {"report.html", "results.nc", "models", "plots"} <= {file.name for file in run.iterdir()}
    assert (tmp_path / "tradeoff.png").stat().st_size > 10_000
    assert (tmp_path / "pull" / "report.html").exists()
    text = "".join(printed)
    assert "High losses and long waits" in text
    assert "longest wait: 11 rounds" in text
    assert re.search(r"unionfl +5\.\d ± \d\.\d +\d\.\d +-\d\.\d\* ", text)
