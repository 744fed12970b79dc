"""Files that the package reads: functions to write, read and verify them."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import xarray as xr

from fedjax_fair import data, results
from fedjax_fair.app.run_folder import MetricsLog, RunFolder
from fedjax_fair.app.settings import config_files, presets
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.app.sweep import sweep

__all__ = ["READERS", "Reader"]


class Reader(NamedTuple):
    """A kind of file and its reader.

    Attributes:
        file: The file to damage.
        write: ``write(folder)`` writes it and the files that it needs.
        read: ``read(folder)`` reads it.
        right: ``right(read, content, undamaged)`` returns whether values are those of the bytes.
        words: Whether it is JSON, whose tokens can be exchanged.
    """

    file: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    right: Callable[[Any, bytes, Any], bool]
    words: bool = False


def _write_npz(save: Callable[..., None]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        rng = np.random.default_rng(0)
        save(
            folder / "wards.npz",
            features=rng.normal(size=(20, 3)).astype(np.float32),
            labels=rng.integers(0, 3, 20),
            client=np.arange(20) % 4,
            num_classes=3,
        )

    return write


def _same_federation(read: data.FederatedData, content: bytes, undamaged: Any) -> bool:
    return all(
        np.asarray(one).tobytes() == np.asarray(other).tobytes()
        for mine, its in ((read.train, undamaged.train), (read.test, undamaged.test))
        for one, other in zip(mine, its, strict=True)
    )


_SPLITS = {"train": 6, "t10k": 3}


def _write_idx(suffix: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        rng = np.random.default_rng(0)
        for split, count in _SPLITS.items():
            for kind, shape in (("images", (count, 4, 3)), ("labels", (count,))):
                head = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)
                content = head + rng.integers(0, 10, shape, np.uint8).tobytes()
                path = folder / f"{split}-{kind}-idx{len(shape)}-ubyte{suffix}"
                path.write_bytes(gzip.compress(content) if suffix else content)

    return write


def _load(name: str) -> Callable[[Path], data.FederatedData]:
    return lambda folder: data.load(name, data.iid(1), data_dir=folder)


def _same_images(read: data.FederatedData, content: bytes, undamaged: Any) -> bool:
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    return np.asarray(read.train.features).tobytes() == content[16:]


def _same_labels(read: data.FederatedData, content: bytes, undamaged: Any) -> bool:
    return np.asarray(read.test.labels).tolist() == list(content[8:])


_ROW = 3073


def _write_cifar(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(rng.integers(0, 10, 2 * _ROW, np.uint8).tobytes())


def _same_cifar(read: data.FederatedData, content: bytes, undamaged: Any) -> bool:
    count = len(content) // _ROW
    rows = np.frombuffer(content, np.uint8).reshape(count, _ROW)
    second = slice(2, 2 + count)  # The rows of the second file.
    pixels = np.asarray(read.train.features)[second].transpose(0, 3, 1, 2).reshape(count, -1)
    labels = np.asarray(read.train.labels)[second]
    return np.array_equal(pixels, rows[:, 1:]) and np.array_equal(labels, rows[:, 0])


_CONFIG = presets.resolve(presets.PRESETS["digits"].config)


def _same_config(read: Any, content: bytes, undamaged: Any) -> bool:
    """Checks that a configuration can be saved and loaded."""
    with TemporaryDirectory() as folder:
        config_files.save(read, Path(folder) / "again.json")
        return repr(config_files.load(Path(folder) / "again.json")) == repr(read)


def _write_log(folder: Path) -> None:
    line = {"algorithm": "fedavg", "seed": 0, "seconds": 0.5, "accuracy_mean_clients": None}
    lines = [json.dumps(line | {"round": done}) for done in range(3)]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def _read_log(folder: Path) -> bytes:
    path = folder / "metrics.jsonl"
    MetricsLog(path, "fedavg", ["fedavg"])
    return path.read_bytes()


def _complete_lines(read: bytes, content: bytes, undamaged: Any) -> bool:
    """Checks that the complete lines are left, and are evaluations."""
    lines = [json.loads(line) for line in read.splitlines()]
    kinds = [tuple(type(line[name]) for name in ("algorithm", "seed", "round")) for line in lines]
    return read == content[: content.rfind(b"\n") + 1] and set(kinds) <= {(str, int, int)}


def _write_results(folder: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 30))
    results.save(xr.Dataset({"accuracy": (("seed", "round"), numbers)}), folder / "results.nc")


def _same_results(read: xr.Dataset, content: bytes, undamaged: xr.Dataset) -> bool:
    """Checks that values are equal; a file without checksum may be of another program."""
    return read.identical(undamaged) or b"SHA-256:" not in content


_SWEPT = Config(
    methods=("fedprox",),
    data=DataConfig(clients=10),
    model=ModelConfig(name="logistic"),
    solver=SolverConfig(steps=1),
    training=TrainingConfig(rounds=1, seeds=(0,)),
)


def _sweep(folder: Path) -> xr.Dataset:
    """Runs a sweep, or reads its results; without its page."""
    with mock.patch("fedjax_fair.report.page", return_value=""):
        return sweep(_SWEPT, folder=folder, prox=[0.0, 0.1])


def _same_sweep(read: xr.Dataset, content: bytes, undamaged: xr.Dataset) -> bool:
    return read.identical(undamaged)


def _write_environment(folder: Path) -> None:
    config_files.save(_CONFIG, folder / "config.json")
    (folder / "env.json").write_text('{"python": "3.12", "versions": {"jax": "0.10"}}')


def _is_dict(read: Any, content: bytes, undamaged: Any) -> bool:
    return isinstance(read, dict)


def _read_npz(folder: Path) -> data.FederatedData:
    return data.from_npz(folder / "wards.npz")


READERS = {
    "npz": Reader("wards.npz", _write_npz(np.savez), _read_npz, _same_federation),
    "deflated npz": Reader(
        "wards.npz", _write_npz(np.savez_compressed), _read_npz, _same_federation
    ),
    "IDX images": Reader("train-images-idx3-ubyte", _write_idx(""), _load("mnist"), _same_images),
    "IDX labels": Reader("t10k-labels-idx1-ubyte", _write_idx(""), _load("mnist"), _same_labels),
    "deflated IDX": Reader(
        "train-images-idx3-ubyte.gz", _write_idx(".gz"), _load("mnist"), _same_images
    ),
    "CIFAR": Reader("data_batch_2.bin", _write_cifar, _load("cifar10"), _same_cifar),
    "config.json": Reader(
        "config.json",
        lambda folder: config_files.save(_CONFIG, folder / "config.json"),
        lambda folder: config_files.load(folder / "config.json"),
        _same_config,
        words=True,
    ),
    "env.json": Reader(
        "env.json",
        _write_environment,
        lambda folder: RunFolder(folder).environment(),
        _is_dict,
        words=True,
    ),
    "metrics.jsonl": Reader("metrics.jsonl", _write_log, _read_log, _complete_lines, words=True),
    "results.nc": Reader("results.nc", _write_results, results.open, _same_results),
    "sweep.json": Reader("sweep.json", _sweep, _sweep, _same_sweep, words=True),
    "part of a sweep": Reader("000-00000.nc", _sweep, _sweep, _same_sweep),
}
"""Readers by kind of file."""
