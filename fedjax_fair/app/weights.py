"""Files of weights, in the formats of NumPy and safetensors."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_fair.results.files import write_bytes
from fedjax_fair.roles import Variables
from fedjax_fair.utils.terminal import one_line

__all__ = ["check_base", "read_weights", "write_base"]

_DTYPES: dict[str, Any] = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    "BF16": jnp.bfloat16,
}
"""Types of safetensors."""

_MAX_NAMES = 6


def read_weights(file: str, names: str | None = None) -> Variables:
    """Reads the variables of a network from a ``.npz`` or ``.safetensors`` file.

    An array is named by its path, such as ``params/head/kernel`` or ``state/norm/mean``, in which
    ``params/`` may be omitted. Floats become ``float32``.

    Args:
        file: The file.
        names: JSON file with the name in ``file`` of the array of each path, or a list of the name
            and of axes for ``np.transpose``, as in
            ``{"head/kernel": ["fc.weight", [1, 0]], "head/bias": "fc.bias"}``.

    Raises:
        ValueError: If a file is missing or damaged, or an array is missing.
    """
    arrays = _read("weights", file, _read_npz if file.endswith(".npz") else _read_safetensors)
    if names is not None:
        arrays = _renamed(arrays, names)
    parts: dict[str, Any] = {"params": {}, "state": {}}
    for path, array in arrays.items():
        part, _, rest = path.partition("/")
        part, rest = (part, rest) if part in parts else ("params", path)
        is_float = jnp.issubdtype(array.dtype, np.floating)
        parts[part][rest] = array.astype(np.float32) if is_float else array
    try:
        return Variables(*(unflatten_dict(part, sep="/") for part in parts.values()))
    except (TypeError, IndexError):
        raise ValueError(
            f"model.weights={file!r}: expected paths, of which none continues another one, such as "
            "'head' and 'head/kernel'; rename arrays with --model.weights-names."
        ) from None


def write_base(variables: Variables, folder: Path) -> str:
    """Writes variables to ``base-CHECKSUM.npz``, which `read_weights` reads.

    Returns:
        The name of the file.
    """
    content = io.BytesIO()
    arrays: dict[str, Any] = dict(flatten_dict(variables._asdict(), sep="/"))
    np.savez(content, **arrays)
    name = f"base-{_checksum(content.getvalue())}.npz"
    if not (folder / name).exists():
        write_bytes(folder / name, content.getvalue())
    return name


def check_base(file: Path) -> None:
    """Compares a file of `write_base` with the checksum in its name.

    Raises:
        ValueError: If it is missing, or they differ.
    """
    if not file.is_file():
        raise ValueError(f"folder: {file} is missing, which has the frozen parameters.")
    if (found := _checksum(file.read_bytes())) not in file.name:
        raise ValueError(f"folder: {file} is damaged; its checksum is {found}.")


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _read(setting: str, file: str, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Reads a file; its errors name the setting."""
    try:
        return read(Path(file))
    except FileNotFoundError:
        reason = "no such file"
    except Exception as error:  # NumPy raises whatever the damage leads to.
        reason = one_line(error)
    raise ValueError(
        f"model.{setting}={file!r}: expected "
        + ("a JSON object" if setting == "weights_names" else "a .npz or .safetensors file")
        + f" ({reason})."
    )


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


# The package safetensors would be a dependency for these lines.
def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Reads a length, a JSON header, and the bytes of the arrays."""
    content = memoryview(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:start]))
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(
            content[start:][slice(*each["data_offsets"])], _DTYPES[each["dtype"]]
        ).reshape(each["shape"])
        for name, each in header.items()
    }


def _renamed(arrays: dict[str, np.ndarray], names: str) -> dict[str, np.ndarray]:
    """Returns arrays by path."""
    renamed = {}
    content = _read("weights_names", names, lambda file: dict(json.loads(file.read_bytes())))
    for path, value in content.items():
        name, axes = value if isinstance(value, list) and len(value) == 2 else (value, None)
        start = f"model.weights_names={names!r}: {path}"
        if not isinstance(name, str) or name not in arrays:
            shown = ", ".join(list(arrays)[:_MAX_NAMES]) + ", ..." * (len(arrays) > _MAX_NAMES)
            raise ValueError(f"{start} has {name!r}: expected the name of an array: {shown}.")
        array = arrays[name]
        if axes is not None and sorted(axes) != list(range(array.ndim)):
            raise ValueError(f"{start} has axes {axes}: expected those of {list(array.shape)}.")
        renamed[path] = array.transpose(axes)
    return renamed
