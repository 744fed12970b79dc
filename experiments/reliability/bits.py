"""Bits flipped in results and in checkpoints.

A flipped bit in ``results.nc`` is noticed by `results.open`, or changes nothing that it reads (some
bytes of the format mean nothing). One in the newest checkpoint is noticed by the digest, the one
before is read with a warning, and the run ends with the results of an undamaged one; where it hits
the digest itself that is the same.
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

_CHECKPOINTS_OF = 10  # One trial of so many: it trains, where the others only read.


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """The outcomes of some trials; each is a draw from its own number.

    Args:
        count: How many.
        first: Number of the first.
    """
    data = ff.data.load("digits", ff.data.iid(5))
    method = ff.Round(
        ff.models.logistic(data.num_classes),
        ff.selectors.Uniform(2),
        ff.solvers.SGD(0.1, 10, steps=2),
        ff.aggregators.Mean(),
    )

    def train(rounds: int, folder: Path) -> xr.Dataset:
        return ff.fit(method, data, rounds=rounds, eval_every=1, checkpoints=folder)

    with TemporaryDirectory() as name:
        stopped, file = Path(name) / "stopped", Path(name) / "results.nc"
        for rounds in (1, 2):  # Each leaves a checkpoint.
            train(rounds, stopped)
        whole = train(3, shutil.copytree(stopped, Path(name) / "whole"))
        results.save(whole, file)
        for number in range(first, first + count):
            rng = np.random.default_rng(number)
            if number % _CHECKPOINTS_OF:
                kept = _noticed_in_results(rng, file, whole)
                yield {"trial": number, "file": "results.nc", "kept": kept}
                continue
            folder = shutil.copytree(stopped, Path(name) / str(number))
            files = sorted(path for path in (folder / "2").rglob("*") if path.is_file())
            filled = [path for path in files if path.stat().st_size]
            damaged = filled[int(rng.integers(len(filled)))]
            _flip(rng, damaged, damaged)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                again = train(3, folder)
            kept = again.identical(whole) and any("damaged" in str(one.message) for one in said)
            yield {"trial": number, "file": "checkpoint", "kept": kept}


def _noticed_in_results(rng: np.random.Generator, file: Path, whole: xr.Dataset) -> bool:
    damaged = file.with_name("damaged.nc")
    _flip(rng, file, damaged)
    try:
        return results.open(damaged).identical(whole)
    except ValueError as error:
        return damaged.name in str(error)


def _flip(rng: np.random.Generator, source: Path, target: Path) -> None:
    content = bytearray(source.read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    target.write_bytes(content)
