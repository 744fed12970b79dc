"""Record of what the results of a run depend on: versions, commit, device and data."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.results.files import write_text
from fedjax_fair.training.fingerprint import describe, numeric_settings
from fedjax_fair.utils.version import __version__
from fedjax_fair.utils.warning import warn

__all__ = [
    "check_record",
    "command",
    "data_digest",
    "digest",
    "environment",
    "read_record",
    "recorded_values",
    "write_record",
]

_LIBRARIES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "libtpu", "flax", "optax", "numpy", "scipy"),
    *("scikit-learn", "pandas", "pyarrow", "pillow", "xarray", "netcdf4"),
)
"""Distributions on which numbers and tables may depend."""

_BUILT = Path(__file__).parents[1] / "commit.txt"
"""File that ``setup.py`` adds to what it builds."""


def environment() -> dict[str, Any]:
    """Returns versions, device, commit and settings of JAX, on which results may depend.

    Examples:
        >>> sorted(environment())
        ['device', 'device_count', 'git_commit', 'platform', 'python', 'settings', 'versions']
    """
    return {
        "versions": {"fedjax-fair": __version__} | _versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "git_commit": _commit(),
        "settings": numeric_settings(),
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # Of another kind of device.
            continue
    return versions


def _commit() -> str | None:
    """Returns the commit of the wheel, or of the checkout, marked if it has changes."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    if _BUILT.is_file():
        return _BUILT.read_text(encoding="utf8").strip()
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def command() -> str:
    """Returns the command of this process, as a shell takes it."""
    is_script = Path(sys.argv[0]).stem == "fedjax-fair"
    program, *words = sys.argv if is_script else sys.orig_argv
    return shlex.join([Path(program).name, *words])


def data_digest(**parts: FederatedData | None) -> str:
    """Returns a digest of examples, partition and names of federated datasets.

    Examples:
        >>> from fedjax_fair.data import load
        >>> data = load("digits")
        >>> data_digest(data=data) == data_digest(data=data._replace(name="other"))
        True
    """
    unnamed = {name: part and part._replace(name="") for name, part in parts.items()}
    described = describe(**unnamed).items()
    # A later version may have other classes, and further fields with these defaults.
    content = {
        path: value
        for path, value in described
        if not value.startswith(("ff.", "builtins.")) and value not in ("None", "False", "0")
    }
    return digest(content)


def check_record(folder: Path, kind: str, **data: FederatedData | None) -> None:
    """Compares the environment and the data with those of the start of a run or sweep.

    Other versions are a warning. A new record gets the data.

    Raises:
        ValueError: If the data differ.
    """
    started, current = read_record(folder), environment() | {"data": data_digest(**data)}
    if "data" not in started:
        started["data"] = current["data"]
        write_record(folder, started)
    before, now = recorded_values(started), recorded_values(current)
    if before["data"] != now["data"]:
        raise ValueError(
            f"folder={str(folder)!r}: the data have changed since the {kind} started (digest "
            f"{before['data'][:12]}, now {now['data'][:12]}); expected the same examples, "
            f"partition and names; restore them, or start a new {kind}."
        )
    changed = [
        f"{name} {before[name]} (now {now.get(name, 'unknown')})"
        for name in before
        if before[name] != now.get(name)
    ]
    if changed:
        warn(f"{folder}: results may depend on what the {kind} started with: {', '.join(changed)}.")


def read_record(folder: Path) -> dict[str, Any]:
    """Reads the record of a folder; rewrites a damaged file."""
    file = folder / "env.json"
    try:
        return dict(json.loads(file.read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError, RecursionError):
        warn(f"{file} is missing or damaged; written again.")
        return write_record(folder, environment())


def write_record(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Writes the record of a folder, and returns it."""
    write_text(folder / "env.json", json.dumps(record, indent=2) + "\n")
    return record


def digest(content: Any) -> str:
    """Returns the digest of what JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def recorded_values(record: dict[str, Any]) -> dict[str, str]:
    """Returns those values of a record by name in which equal runs agree.

    Examples:
        >>> recorded_values({"versions": {"jax": "0.9"}, "python": "3.12", "device_count": 8})
        {'jax': '0.9', 'python': '3.12'}
    """
    versions = record.get("versions")
    values = dict(versions) if isinstance(versions, dict) else {}
    values |= {name: record.get(name) for name in ("python", "device", "git_commit", "data")}
    return {name: str(value) for name, value in values.items() if value is not None}
