"""Commands that train nothing start fast: they import few modules."""

import json
import subprocess
import sys

import pytest

COUNT = """
import contextlib, io, json, sys
from fedjax_fair.app.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    try:
        main(sys.argv[1:])
    except SystemExit:  # After help.
        pass
names = [name for name in sys.modules if name.partition(".")[0] == "fedjax_fair"]
print(json.dumps([len(names), "jax" in sys.modules]))
"""


@pytest.mark.parametrize(
    ("arguments", "needs_jax"),
    [
        ("--version", False),
        ("--help", False),
        ("run table2-cifar10 --help", False),
        ("rnu", False),
        ("metrics --formt=markdown", False),
        ("methods", False),
        ("methods q_fedavg", False),
        ("methods divfl+equitable", False),
        ("methods fdavg", False),
        ("run --help", False),
        ("run adult --help", False),
        ("sweep --help", False),
        ("plan --help", False),
        ("resume --help", False),
        ("maximize exemplars --help", False),
        ("run --solver.learning-rat 1", False),
        ("run --data.file not_there.csv", False),
        ("run --methods fdavg", False),
        ("sweep lamda=1", False),
        ("metrics", True),  # Definitions are those of the functions.
        ("data list", True),
        ("data list --data.dri=folder", True),
    ],
)
def test_a_command_that_compiles_nothing_imports_few_modules(arguments, needs_jax):
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *arguments.split()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    num_modules, imports_jax = json.loads(done.stdout)
    assert num_modules <= 100
    assert imports_jax == needs_jax
