"""One published claim for each of seven methods, with endpoints that are fixed before the runs.

    python -m experiments.reproduction.methods --tfds-dir FOLDER

Tunes the step size of every method on validation examples, trains what the files of runs lack, then
writes the tables. docs/reproduction/methods.md states the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from sklearn.metrics import adjusted_rand_score

from experiments.common import append_rows, has_rows, options_of, read_rows
from experiments.reproduction import methods_results
from experiments.reproduction.methods_plan import (
    CHOICE_ROUNDS,
    COLUMNS,
    EVAL_EVERY,
    FEDERATIONS,
    RATES,
    ROUNDS,
    SEEDS,
    TUNING_ROUNDS,
    TUNING_SEEDS,
    Federation,
)
from experiments.reproduction.runs import fit_method
from fedjax_fair.app.build import build
from fedjax_fair.data import ClientExamples, FederatedData


def main() -> None:
    parser = options_of("One claim for each of seven methods.", reads_tfds=True)
    options = parser.parse_args()
    files = {part: options.output / f"methods-{part}.csv" for part in ("tuning", "runs")}
    if not options.only_write:
        for name in FEDERATIONS:
            tune(name, files["tuning"], options.tfds_dir)
            train(name, files, options.tfds_dir)
    methods_results.write_tables(files["runs"])


def tune(name: str, file: Path, data_dir: str | None) -> None:
    """Trains every method with every step size, and appends validation accuracies."""
    federation = FEDERATIONS[name]
    for method in federation.methods:
        known = read_rows(file)
        if has_rows(known, federation=name, algorithm=method):
            continue
        rows = []
        for rate in RATES:
            done = _fit(federation, method, rate, TUNING_SEEDS, TUNING_ROUNDS, data_dir)
            accuracy = done[_validation_column(done)].isel(round=-1)
            for seed in TUNING_SEEDS:
                rows.append([name, method, rate, seed, float(accuracy.sel(seed=seed).mean())])
        columns = ["federation", "algorithm", "learning_rate", "seed", "validation_accuracy"]
        append_rows(known, pd.DataFrame(rows, columns=columns), file)
        print(f"{name}, {method}: tuned", flush=True)


def train(name: str, files: dict[str, Path], data_dir: str | None) -> None:
    """Trains every method with its step size, and appends one row per evaluation."""
    federation = FEDERATIONS[name]
    rates = methods_results.chosen_rates(read_rows(files["tuning"]))
    for method in federation.methods:
        known = read_rows(files["runs"])
        if has_rows(known, federation=name, algorithm=method):
            continue
        done = _fit(federation, method, rates[name, method], SEEDS, ROUNDS, data_dir)
        rows: Any = done[[column for column in COLUMNS if column in done]].to_dataframe()
        rows = rows.reset_index()[["seed", "round", *(c for c in COLUMNS if c in done)]]
        if "aggregation_cluster" in done:
            rows["agreement"] = rows["seed"].map({seed: agreement(done, seed) for seed in SEEDS})
        rows.insert(0, "algorithm", method)
        rows.insert(0, "federation", name)
        append_rows(known, rows, files["runs"])
        print(f"{name}, {method}: trained", flush=True)


def agreement(done: xr.Dataset, seed: int) -> float:
    """Returns the adjusted Rand index of rotations and models that participants chose."""
    last = done.sel(seed=seed).isel(training_round=slice(-CHOICE_ROUNDS, None))
    rotations = last["cohort_clients"].values.ravel() % 4
    return float(adjusted_rand_score(rotations, last["aggregation_cluster"].values.ravel()))


def _fit(
    federation: Federation,
    method: str,
    rate: float,
    seeds: Sequence[int],
    rounds: int,
    data_dir: str | None,
) -> xr.Dataset:
    config = replace(
        federation.config,
        methods=(method,),
        data=replace(federation.config.data, dir=data_dir, validation_fraction=0.1),
        solver=replace(federation.config.solver, learning_rate=rate),
        training=replace(federation.config.training, seeds=tuple(seeds), rounds=rounds),
    )
    experiment = build(config)
    if federation.is_rotated:
        experiment = build(config, rotated(experiment.data))
    return fit_method(experiment, method, eval_every=EVAL_EVERY if rounds == ROUNDS else rounds)


def rotated(data: FederatedData) -> FederatedData:
    """Rotates the images of client ``i`` by ``i % 4`` quarter turns, which are its group."""
    groups: Any = (np.arange(data.num_clients) % 4).astype(np.int32)

    def turn(part: ClientExamples) -> ClientExamples:
        owners = np.repeat(np.arange(data.num_clients), part.sizes)
        features = np.array(part.features[part.order])
        for turns in range(1, 4):
            is_turned = groups[owners] == turns
            features[is_turned] = np.rot90(features[is_turned], turns, axes=(1, 2))
        order: Any = np.arange(len(owners), dtype=np.int32)
        labels: Any = np.asarray(part.labels)[part.order]
        return part._replace(features=features, labels=labels, order=order)

    return data.map_parts(turn)._replace(groups=groups)


def _validation_column(done: xr.Dataset) -> str:
    """The accuracy to tune by: that of personalized models where there are any."""
    name = "validation_accuracy_mean_clients"
    personalized = f"personalized_{name}"
    return personalized if personalized in done else name


if __name__ == "__main__":
    main()
