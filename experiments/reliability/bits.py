"""Bits flipped in results and in checkpoints.

A flipped bit in ``results.nc`` is detected by `results.open`, or changes no value that it reads. A
flipped bit in the newest checkpoint is detected by its checksum; the previous checkpoint is read
with a warning, and the run ends with the results of an undamaged one.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xarray as xr

import fedjax_fair as ff
from fedjax_fair import results

__all__ = ["trials"]

_CHECKPOINT_EVERY = 10  # Trials of checkpoints are slow, since they train.


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the outcomes of ``count`` trials from number ``first`` on."""
    data = ff.data.load("digits", ff.data.iid(5))
    method = ff.Round(
        ff.models.logistic(data.num_classes),
        ff.selectors.Uniform(2),
        ff.solvers.SGD(0.1, 10, steps=2),
        ff.aggregators.Mean(),
    )

    def train(rounds: int, folder: Path) -> xr.Dataset:
        return ff.fit(method, data, rounds=rounds, eval_every=1, checkpoints=folder).dataset

    with TemporaryDirectory() as name:
        stopped, file = Path(name) / "stopped", Path(name) / "results.nc"
        for rounds in (1, 2):  # Each leaves a checkpoint.
            train(rounds, stopped)
        expected = train(3, shutil.copytree(stopped, Path(name) / "complete"))
        results.save(expected, file)
        for number in range(first, first + count):
            rng = np.random.default_rng(number)
            if number % _CHECKPOINT_EVERY:
                passed = _is_detected(rng, file, expected)
                yield {"trial": number, "file": "results.nc", "passed": passed}
                continue
            folder = shutil.copytree(stopped, Path(name) / str(number))
            files = sorted(path for path in (folder / "2").rglob("*") if path.is_file())
            nonempty = [path for path in files if path.stat().st_size]
            damaged = nonempty[int(rng.integers(len(nonempty)))]
            _flip(rng, damaged, damaged)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                again = train(3, folder)
            warned = any("damaged" in str(warning.message) for warning in caught)
            passed = warned and again.identical(expected)
            yield {"trial": number, "file": "checkpoint", "passed": passed}


def _is_detected(rng: np.random.Generator, file: Path, expected: xr.Dataset) -> bool:
    damaged = file.with_name("damaged.nc")
    _flip(rng, file, damaged)
    try:
        return results.open(damaged).identical(expected)
    except ValueError as error:
        return damaged.name in str(error)


def _flip(rng: np.random.Generator, source: Path, target: Path) -> None:
    content = bytearray(source.read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    target.write_bytes(content)
