"""Set functions import no libraries that only other subpackages need."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = """
import sys

def imported(names):
    return sorted(names & {module.partition(".")[0] for module in sys.modules})

heavy = {"flax", "optax", "xarray", "pandas", "matplotlib", "scipy", "sklearn", "orbax", "tyro"}
before = imported(heavy)
import fedjax_fair.submodular
import fedjax_fair.submodular.federated.comparison
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
    parts = ("checks", "numerics", "printing", "submodular", "tree")
    assert ours == str([f"fedjax_fair.{part}" for part in parts])
