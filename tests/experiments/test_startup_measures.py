"""The benchmark of startup reads what its processes print."""

import os
import subprocess
import sys

import pandas as pd
import pytest

from experiments.benchmarks import startup

PROGRAM = f"""{startup.MEASURED}
import jax, time
imports = time.process_time()
def draw(x):
    print(jax.jit(lambda x: x + 1)(x))
timed(draw)(1.0)
"""


def test_a_process_prints_what_the_table_has():
    # A kept cache would have the program from the last time.
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    measured = startup.parse(done.stdout)
    assert {"wall", *measured} == set(startup.COLUMNS)
    assert measured["compiled"] >= 1
    assert measured["loaded"] == 0
    assert 0 < measured["drawing"] < measured["total"] - measured["imports"] + 1e-6
    assert measured["compiling"] > 0
    assert measured["modules"] > 100
    assert measured["peak_mib"] > 50


@pytest.mark.parametrize("printed", ["", "measured\n", "unmeasured {}\n", " measured {}\n"])
def test_a_process_without_measurements_is_an_error(printed):
    with pytest.raises(ValueError, match="expected a line of measurements"):
        startup.parse(printed)


def test_the_last_measurement_counts():
    assert startup.parse('measured {"wall": 1}\nmeasured {"wall": 2.5}\nsaved\n') == {"wall": 2.5}


def test_the_program_is_the_first_of_the_readme(tmp_path):
    (tmp_path / "README.md").write_text("```sh\nls\n```\n```python\na\nb\n```\n```python\nc\n```\n")
    assert startup.readme_program(tmp_path) == "a\nb\n"


def test_the_history_has_the_columns_of_the_table():
    history = pd.read_csv(startup.HISTORY)
    assert tuple(history.columns[-len(startup.COLUMNS) :]) == startup.COLUMNS
    assert {"run groups", "README"} <= set(history["program"])
    assert history[list(startup.COLUMNS)].notna().all(axis=None)
