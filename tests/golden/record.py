"""Records the results of all cases, with which ``test_golden.py`` compares those of later code.

Run it from the root of the repository:

    PYTHONPATH=. python tests/golden/record.py [--only PATTERN]

With a pattern of ``GROUP/CASE``, as of ``fnmatch``, only these cases are computed, and the others
stay as they are, such as with ``--only 'fair_methods/*'`` or ``--only '*/drfa'``.
All cases of a file are of one machine.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from conftest import QUICK_COMPILATION  # noqa: E402

if __name__ == "__main__":  # Flags are read once, when the first array is made; tests use these.
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILATION])

import fit_cases  # noqa: E402
import submodular_cases  # noqa: E402

GROUPS = fit_cases.GROUPS | submodular_cases.GROUPS
"""Cases by the name of their file."""

MACHINE = FOLDER / "machine.json"
PACKAGES = ("jax", "jaxlib", "numpy", "optax", "flax", "scikit-learn")


def machine() -> dict[str, object]:
    """Properties of the machine that determine the bits of a compiled program."""
    return {
        "machine": platform.machine(),
        "cpu_flags": cpu_flags(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "platform": jax.default_backend(),
        "devices": jax.device_count(),
        "xla_flags": sorted(set(os.environ.get("XLA_FLAGS", "").split())),
    } | {package: version(package) for package in PACKAGES}


def cpu_flags() -> str:
    """A digest of the processor's instruction sets, empty where they are unknown."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    if not flags:
        return ""
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]


def computed(group: str, case: str) -> dict[str, np.ndarray]:
    """The arrays of one case."""
    return {name: np.asarray(values) for name, values in GROUPS[group][case]().items()}


def recorded(group: str) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of the cases in a file, by case and name."""
    cases: dict[str, dict[str, np.ndarray]] = {}
    path = FOLDER / f"{group}.npz"
    if path.exists():
        with np.load(path) as arrays:
            for key in arrays.files:
                case, name = key.split("/")
                cases.setdefault(case, {})[name] = arrays[key]
    return cases


def machines() -> dict[str, dict[str, object]]:
    """Properties of the machines on which the files were recorded, by group."""
    return json.loads(MACHINE.read_text()) if MACHINE.exists() else {}


def main() -> None:
    """Records the cases that match the pattern."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="PATTERN", default="*", help="GROUP/CASE")
    pattern = parser.parse_args().only
    here, known = machine(), machines()
    chosen_cases = {
        group: [case for case in cases if fnmatch(f"{group}/{case}", pattern)]
        for group, cases in GROUPS.items()
    }
    for group, chosen in chosen_cases.items():
        others = set(recorded(group)) - set(chosen)
        if chosen and others and known[group] != here:
            parser.error(
                f"--only: in {MACHINE.name} {group} is of another machine; record all of its cases."
            )
    for group, cases in GROUPS.items():
        chosen = chosen_cases[group]
        if not chosen:
            continue
        begun = time.perf_counter()
        kept = {case: own for case, own in recorded(group).items() if case in cases}
        for case in chosen:
            start = time.perf_counter()
            kept[case] = computed(group, case)
            print(f"{group}/{case}: {time.perf_counter() - start:.1f} s", flush=True)
        arrays = {
            f"{case}/{name}": values
            for case in cases
            if case in kept
            for name, values in kept[case].items()
        }
        np.savez_compressed(FOLDER / f"{group}.npz", **arrays)
        print(f"{group}: {len(chosen)} cases, {time.perf_counter() - begun:.0f} s", flush=True)
        jax.clear_caches()
        known[group] = here
        MACHINE.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
