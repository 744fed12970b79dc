"""Do adapters widen the gap between clients? Full training, head only and LoRA from the same base.

    python -m experiments.reproduction.adapters --data-dir FOLDER

Tunes step sizes on validation examples, trains what the files of runs lack, then writes the tables.
docs/reproduction/adapters.md states the protocol.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import pandas as pd
import xarray as xr

import fedjax_fair as ff
from experiments.common import append_rows, has_rows, options_of, read_rows
from experiments.reproduction.adapters_plan import (
    COHORT,
    FEDERATIONS,
    GROUPS,
    ROUNDS,
    make_round,
)
from experiments.reproduction.adapters_results import chosen_rates, write_tables
from fedjax_fair.benchmark.compute import count_flops
from fedjax_fair.data import FederatedData
from fedjax_fair.parallel.cores import default_core_mesh
from fedjax_fair.roles import Variables

MESH = default_core_mesh()
ACCURACY = "accuracy_mean_clients"
COLUMNS = {
    "accuracy": ACCURACY,
    "worst": "accuracy_worst_10pct",
    "spread": "accuracy_standard_deviation",
    "dissimilarity": "client_dissimilarity",
}


def main() -> None:
    parser = options_of("Do adapters widen the gap between clients?")
    parser.add_argument("--data-dir", help="folder of shakespeare.jsonl.gz")
    parser.add_argument("--only", nargs="*", choices=FEDERATIONS, default=list(FEDERATIONS))
    options = parser.parse_args()
    files = {part: options.output / f"adapters-{part}.csv" for part in ("tuning", "runs", "costs")}
    if not options.only_write:
        for name in options.only:
            tune(name, files["tuning"], options.data_dir)
            train(name, files, options.data_dir)
    write_tables(files["runs"])


def tune(name: str, file: Path, data_dir: str | None) -> None:
    """Trains every method with every step size, and appends mean validation accuracies."""
    runs = Runs(name, FEDERATIONS[name].tuning_seeds, data_dir)
    for method in runs.federation.methods:
        for rate in runs.federation.rates:
            key = {"federation": name, "algorithm": method, "learning_rate": rate}
            if not has_rows(read_rows(file), **key):
                done = runs.train(method, rate, ROUNDS)
                rows: Any = rows_of(done, {"accuracy": f"validation_{ACCURACY}"}).drop(
                    columns="seed"
                )
                means = rows.groupby("round", as_index=False).mean()
                append(file, key, means.astype({"bytes_up": int}))


def train(name: str, files: dict[str, Path], data_dir: str | None) -> None:
    """Trains every method with its step sizes, and appends one row per seed and evaluation."""
    runs = Runs(name, FEDERATIONS[name].seeds, data_dir)
    for (method, rate), rounds in chosen_rates(read_rows(files["tuning"]), name).items():
        key = {"federation": name, "algorithm": method, "learning_rate": rate}
        if has_rows(read_rows(files["runs"]), **key):
            continue
        done = runs.train(method, rate, rounds)
        if rounds == ROUNDS:
            sent = float(done["bytes_up"][0, -1]) / ROUNDS / COHORT
            costs = {"bytes": sent, **runs.count(method)}
            append(files["costs"], key, pd.DataFrame([costs]))
        append(files["runs"], key, rows_of(done, COLUMNS))


def append(file: Path, key: dict[str, Any], rows: pd.DataFrame) -> None:
    """Appends rows of a method with a step size to a file."""
    keys = pd.DataFrame([key] * len(rows), rows.index)
    append_rows(read_rows(file), keys.join(rows), file, digits=5)


def rows_of(done: xr.Dataset, columns: dict[str, str]) -> pd.DataFrame:
    """Returns a row per seed and evaluation, of personalized models if there are any."""
    prefix = "personalized_" if f"personalized_{ACCURACY}" in done else ""
    found = {short: done[f"{prefix}{long}"] for short, long in columns.items()}
    if columns is COLUMNS:
        of_groups = done[f"{prefix}group_accuracy"]
        found |= {group: of_groups[..., index] for index, group in enumerate(GROUPS)}
    found["bytes_up"] = done["bytes_up"]
    return xr.Dataset(found).to_dataframe().reset_index()


class Runs:
    """Runs of a federated dataset with some seeds, whose bases are trained when they are needed."""

    def __init__(self, name: str, seeds: Sequence[int], data_dir: str | None) -> None:
        self.name, self.federation, self.seeds = name, FEDERATIONS[name], seeds
        self.data_dir = data_dir

    def train(self, method: str, rate: float, rounds: int) -> xr.Dataset:
        """Trains a method from the base of each seed."""
        started = time.perf_counter()
        done = ff.fit(
            [self._round(method, rate, base) for base in self._loaded[1]],
            self._loaded[0],
            rounds=rounds,
            seeds=self.seeds,
            eval_every=self.federation.eval_every,
            train_loss=False,
            mesh=MESH,
        ).dataset
        seconds = time.perf_counter() - started
        print(f"{self.name}, {method}, step size {rate:g}: {seconds:.0f} s", flush=True)
        return done

    def count(self, method: str) -> dict[str, float]:
        """Counts the trained parameters, and the operations in matrix products of a round."""
        round, data = self._round(method, 1.0, self._loaded[1][0]), self._loaded[0].partition(0)
        state = jax.eval_shape(round.init, jax.random.key(0), data)
        return {
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.variables.params)),
            "operations": count_flops(round.step, state, data),
        }

    def _round(self, method: str, rate: float, base: Variables) -> ff.Round:
        return make_round(self.federation, self._loaded[0].num_classes, method, rate, base)

    @cached_property
    def _loaded(self) -> tuple[FederatedData, list[Variables]]:
        """The federated dataset, and the network of every seed, trained on the base's examples."""
        base_data, data = self.federation.load(self.data_dir, self.seeds)
        if self.seeds == self.federation.seeds:
            data = data._replace(validation=None)  # Evaluations would take longer.
        reference = ff.Centralized(
            self.federation.model(data.num_classes), self.federation.pretraining
        )
        rounds = self.federation.pretraining_rounds
        fitted = ff.fit(
            reference, base_data, rounds=rounds, seeds=self.seeds, eval_every=rounds,
            train_loss=False, mesh=MESH,
        )  # fmt: skip
        accuracy = float(fitted.dataset[ACCURACY][:, -1].mean())
        print(f"{self.name}: base, accuracy {100 * accuracy:.1f} %", flush=True)
        return data, [fitted.variables_for(seed) for seed in self.seeds]


if __name__ == "__main__":
    main()
