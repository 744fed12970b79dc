"""Data of an experiment: the clients that train, and unseen clients that are held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from jax.sharding import Mesh

from fedjax_fair import data
from fedjax_fair.app.settings.config import Config, DataConfig
from fedjax_fair.app.settings.constructors import construct, settings_of
from fedjax_fair.app.settings.registry import PARTITIONERS, READERS
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.app.settings.usage import check_unused_settings
from fedjax_fair.data import FederatedData
from fedjax_fair.data.arrays import with_label_unit
from fedjax_fair.data.npz_layouts import read_test_examples
from fedjax_fair.data.tables.table_files import is_table_file
from fedjax_fair.data.text.leaf_users import is_leaf
from fedjax_fair.data.transforms import hold_out_clients
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.utils.terminal import error_prefix

__all__ = ["Experiment", "load_data"]


class Experiment(NamedTuple):
    """A resolved configuration, its federated dataset, and the round of each method.

    ``mesh`` is None for a single device, ``unseen`` without clients that are held out.
    """

    config: Config
    data: FederatedData
    rounds: dict[str, BaseRound]
    mesh: Mesh | None = None
    unseen: FederatedData | None = None


def load_data(config: Config) -> tuple[FederatedData, FederatedData | None]:
    """Loads the clients that train and the unseen clients, None if there are none.

    Raises:
        ValueError: As `build`; or if no client is left to train, or no client of a part has test
            examples.
        FileNotFoundError: If the data set is missing.
    """
    federation = _load(config)
    fraction, unseen = config.data.unseen_fraction, federation.unseen
    if not fraction:
        return federation._replace(unseen=None), unseen
    if unseen is not None:
        raise ValueError(
            f"data.unseen_fraction={fraction}: expected 0 with data.unknown_clients='unseen', "
            "which found unseen clients in the file; remove one of the two settings."
        )
    with error_prefix("data.unseen_"):  # Messages begin with "fraction=".
        return hold_out_clients(federation, fraction, config.data.seed)


def _load(config: Config) -> FederatedData:
    """Loads the federated dataset of a resolved configuration."""
    data_config = config.data
    check_unused_settings(config)
    if data_config.file is not None:
        return _load_file(data_config.file, data_config)
    seed: Any = data_config.seed
    if data_config.partition_per_seed:
        seed = tuple(data_config.seed + run for run in config.training.seeds)
    names = settings_of(READERS[data_config.name]) if data_config.name in READERS else ()
    given = {name: getattr(data_config, name) for name in names}
    settings = {name: value for name, value in given.items() if value is not None}
    settings["validation_fraction"] = data_config.validation_fraction or 0.0
    partitioner = _partitioner(data_config)
    loaded = data.load(data_config.name, partitioner, seed, data_config.dir, **settings)
    return _with_central_test(loaded, data_config.central_test)


def _partitioner(data_config: DataConfig) -> Any:
    """Makes what divides the examples over clients."""
    partition = lookup("data.partition", str(data_config.partition), PARTITIONERS)
    return construct(partition, data_config)


def _load_file(file: str, data_config: DataConfig) -> FederatedData:
    """Reads the federated dataset of a table, ``.npz`` files or LEAF's JSON."""
    path, is_table = Path(file), is_table_file(file)
    if path.is_dir() and not is_table and not is_leaf(file) and not any(path.glob("train/*.npz")):
        raise ValueError(
            f"data.file={file!r} is a folder without .parquet, .feather, .json or train/*.npz "
            "files; expected one of them, or the path of a file."
        )
    if data_config.partition_per_seed:
        raise ValueError(
            "data.partition_per_seed=True: expected False with data.file, which has one partition; "
            "--data.no-partition-per-seed sets it."
        )
    partitioner: Any = None if data_config.partition is None else _partitioner(data_config)
    options: dict[str, Any] = {
        "validation_fraction": data_config.validation_fraction or 0.0,
        "seed": data_config.seed,
    }
    if is_table:
        return data.from_table(
            file,
            label=data_config.label or "",
            target=data_config.target,
            client=partitioner,
            sensitive_features=data_config.sensitive_features or (),
            features=data_config.features,
            exclude=data_config.exclude or (),
            central_test=data_config.central_test,
            label_unit=data_config.label_unit,
            **options,
        )
    central_test = data_config.central_test
    options["unknown_clients"] = data_config.unknown_clients or "error"
    if is_leaf(file):
        is_of_leaf = central_test is not None and is_leaf(central_test)
        loaded = data.from_leaf(
            file,
            **options,
            name=data_config.name,
            shape=data_config.shape,
            central_test=central_test if is_of_leaf else None,
        )
        loaded = with_label_unit(loaded, data_config.label_unit)
        return loaded if is_of_leaf else _with_central_test(loaded, central_test)
    loaded = data.from_npz(file, partition=partitioner, **options)
    is_classified = data_config.target in (None, "classification")
    if loaded.train.has_targets == is_classified:
        expected = "integers" if loaded.train.has_targets else "floats [total, outputs]"
        raise ValueError(
            f"data.file={file!r} has labels of {loaded.train.labels.dtype}: expected {expected} "
            f"for data.target={data_config.target or 'classification'}; choose --data.target "
            "classification for integers, regression or multi_label for floats."
        )
    return _with_central_test(with_label_unit(loaded, data_config.label_unit), central_test)


def _with_central_test(loaded: FederatedData, file: str | None) -> FederatedData:
    """Adds a central test set of a file, if any: a table if examples are rows, or arrays."""
    if file is None:
        return loaded
    encoding = loaded.encoding
    if is_table_file(file) and encoding is not None:
        examples = encoding.encode(file, unseen="ignore"), encoding.encode_label(file)
    elif Path(file).suffix.lower() == ".npz":
        examples = read_test_examples(file)
    else:
        raise ValueError(
            f"data.central_test={file!r}: expected "
            + ("an .npz file" if encoding is None else "a table, such as .csv, or an .npz file")
            + f" for {loaded.name!r}."
        )
    with error_prefix(f"data.central_test={file!r}: "):
        return data.with_central_test(loaded, *examples)
