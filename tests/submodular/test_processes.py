"""Imports of set functions, and greedi on several devices: tests that start processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import QUICK_COMPILATION

ROOT = Path(__file__).parents[2]
CODE = """
import sys

def imported(names):
    return sorted(names & {module.partition(".")[0] for module in sys.modules})

heavy = {"flax", "optax", "xarray", "pandas", "matplotlib", "scipy", "sklearn", "orbax", "tyro"}
before = imported(heavy)
import fedjax_fair.submodular
import fedjax_fair.submodular.federated.method_comparison
import fedjax_fair.submodular.rounding
print(before, imported(heavy))
ours = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("fedjax_fair.")}
print(sorted(ours))
"""


def test_importing_set_functions_imports_nothing_heavy():
    """Includes the comparison, which makes a Dataset."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy, ours = done.stdout.splitlines()
    assert heavy == "[] []"
    parts = ("numerics", "submodular", "utils")
    assert ours == str([f"fedjax_fair.{part}" for part in parts])


def test_greedi_does_not_depend_on_devices():
    """With more devices than parts, and with uneven numbers of parts."""
    program = Path(__file__).with_name("greedi_devices.py")
    flags = " ".join(["--xla_force_host_platform_device_count=8", *QUICK_COMPILATION])
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(program.parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert results == [
        {"devices": 8, "parts": 5, "same": True},
        {"devices": 3, "parts": 19, "same": True},
    ]
