"""Tuning and final runs of one method on one federated dataset."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedjax_fair import results
from fedjax_fair.app.build import method_round
from fedjax_fair.app.run_record import environment
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.names import change
from fedjax_fair.benchmark import run_cells, tuning
from fedjax_fair.benchmark.compute import count_flops
from fedjax_fair.benchmark.federations import Federation, variables_of
from fedjax_fair.benchmark.populations import BenchmarkData
from fedjax_fair.benchmark.protocol import CRITERIA, VERSION, Track
from fedjax_fair.benchmark.train import Run, train, train_singly
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.metrics.quantities import ACCURACY, Quantity
from fedjax_fair.results.models import by_model
from fedjax_fair.results.task_metrics import validation
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import run
from fedjax_fair.training.loop import Callback

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["PHASES", "TUNED_ROUND", "VALIDATION", "Unit", "is_done", "run_unit"]

PHASES = ("tuning", "final")
_CENTRALIZED = "centralized"
"""Method whose minibatches have the examples of a whole cohort's, so that rounds have as many."""
_COUNTED_ROUNDS = 5
TUNED_ROUND = ("local_converged",)
"""Methods whose round is chosen on validation examples, with the settings."""


def _tuned_variables(quantity: Quantity) -> dict[str, str]:
    return {name: validation(variables_of(quantity)[name]) for name in tuning.MEASURES}


VALIDATION = _tuned_variables(ACCURACY)
"""Variables on which settings are selected by accuracies, by measure."""


class Unit(NamedTuple):
    """One method on one federated dataset.

    Attributes:
        federation: The federated dataset.
        method: The method, as on the command line.
        folder: Folder of its results.
    """

    federation: Federation
    method: str
    folder: Path

    def file(self, phase: str) -> Path:
        """Returns the file of results of a phase."""
        return self.folder / f"{phase}.nc"


def is_done(unit: Unit) -> bool:
    """Returns whether both phases of a unit have their files."""
    return all((unit.folder / f"{phase}.jsonl").exists() for phase in PHASES)


def run_unit(
    unit: Unit,
    track: Track,
    data: Mapping[str, BenchmarkData],
    callback_fn: Callable[[str], Sequence[Callback]] = lambda runs: (),
) -> None:
    """Trains the missing runs of a unit, and writes their files.

    Args:
        unit: The method and the federated dataset.
        track: Seeds and number of settings.
        data: Federated datasets by phase, with one partition for each seed of the phase.
        callback_fn: Makes the callbacks of a batch of runs from its description.

    Raises:
        ValueError: If the method cannot run on this dataset, or a file is damaged or of other data.
    """
    config = configuration(unit)
    settings = tuning.settings_of(unit.method, config, track.num_settings)
    rounds = make_rounds(unit, config, settings, data)
    unit.folder.mkdir(parents=True, exist_ok=True)
    planned = [Run(i, seed) for i in range(len(settings)) for seed in track.tuning_seeds]
    if not (unit.folder / "tuning.jsonl").exists():
        tuned = _train(unit, "tuning", config, track, rounds, planned, data["tuning"], callback_fn)
        _save(unit, "tuning", tuned, data["tuning"], settings, {})
    tuned = results.open(unit.file("tuning"))
    if tuned.attrs["data_digest"] != data["tuning"].data_digest:
        raise ValueError(
            f"path={str(unit.file('tuning'))!r}: expected results of the same data; use another "
            "folder."
        )
    chosen = choose(tuned, unit.method, len(settings), unit.federation.quantity)
    if not (unit.folder / "final.jsonl").exists():
        runs = [
            Run(setting, seed)
            for setting in dict.fromkeys(choice.setting for choice in chosen.values())
            for seed in track.final_seeds
        ]
        final = _train(unit, "final", config, track, rounds, runs, data["final"], callback_fn)
        final.attrs["flops"] = flops_per_round(rounds[runs[0].setting], data["final"], runs[0].seed)
        _save(unit, "final", final, data["final"], settings, chosen)


def flops_per_round(round: BaseRound, data: BenchmarkData, seed: int) -> float:
    """Returns the mean number of floating-point operations of the first rounds of training."""
    seen, rounds = data.seen.partition(0), _COUNTED_ROUNDS

    def train(round: BaseRound, data: FederatedData) -> Any:
        return run(round, round.init(jax.random.key(seed), data), data, rounds)

    return count_flops(train, round, seen) / rounds


def configuration(unit: Unit) -> Config:
    """Returns the resolved configuration of a unit."""
    config = presets.resolve(replace(unit.federation.config, methods=(unit.method,)))
    if unit.method == _CENTRALIZED:
        cohort, batch_size = config.selector.cohort_size, config.solver.batch_size
        config = change(config, "solver", "batch_size", cohort * batch_size)
    if unit.federation.sensitive_feature is not None:
        for section, name in method_settings(config, unit.method):
            if name == "sensitive_feature":
                feature = unit.federation.sensitive_feature
                config = change(config, section, "sensitive_feature", feature)
    return config


def make_rounds(
    unit: Unit,
    config: Config,
    settings: Sequence[Mapping[str, float]],
    data: Mapping[str, BenchmarkData],
) -> list[BaseRound]:
    """Returns the round of each setting, of equal structure.

    Raises:
        ValueError: If the method cannot run on this dataset.
    """
    clients = [part.seen.train.sizes for part in data.values()]
    seen = next(iter(data.values())).seen
    # Equal for both phases, which share compiled functions.
    largest = min(int(np.max(sizes, axis=-1).min()) for sizes in clients)
    made: list[BaseRound] = []
    for values in settings:
        name, model = tuning.with_settings(unit.method, values), made[0].model if made else None
        made.append(
            method_round(
                config, name, seen.num_classes, largest, model, num_clients=seen.num_clients
            )
        )
    jax.eval_shape(made[0].init, jax.random.key(0), seen.partition(0))
    return made


def _train(
    unit: Unit,
    phase: str,
    config: Config,
    track: Track,
    rounds: Sequence[BaseRound],
    runs: Sequence[Run],
    data: BenchmarkData,
    callback_fn: Callable[[str], Sequence[Callback]],
) -> xr.Dataset:
    """Trains the runs of a phase."""
    name = f"{unit.federation.name}, {unit.method}"
    if track.one_run_at_a_time:

        def train_run(run: Run, own: BenchmarkData) -> xr.Dataset:
            callbacks = callback_fn(f"{name}, setting {run.setting}, seed {run.seed}")
            return train(config, rounds, [run], own, track.adapt_steps, callbacks=callbacks)

        return train_singly(train_run, rounds, runs, data, unit.folder / phase)
    padding = len(rounds) * len(track.tuning_seeds) if track.reuses_programs else 0
    callbacks = callback_fn(f"{name}, {len(runs)} runs")
    return train(
        config, rounds, runs, data, track.adapt_steps, padding=padding, callbacks=callbacks
    )


class Choice(NamedTuple):
    """A setting that a criterion has chosen, and the round of the model that counts."""

    setting: int
    round: int


def choose(
    tuned: xr.Dataset, method: str, num_settings: int, quantity: Quantity = ACCURACY
) -> dict[str, Choice]:
    """Chooses the setting of each criterion, on validation examples of the tuning runs.

    The last round counts, except for methods that train until convergence: the round of their
    models is chosen with the setting. Errors are divided by the smallest mean error of a setting,
    so that the tolerance of the criterion ``fairest`` is a percentage of it.
    """
    serving = by_model(_by_run(tuned), serving=True)
    arrays = {}
    for name, variable in _tuned_variables(quantity).items():
        values = serving[variable]
        values = values.isel(algorithm=0) if "algorithm" in values.dims else values
        values = values.where(tuned["diverged"].values[:, None] < 0)
        by_setting = values.values.reshape(num_settings, -1, values.sizes["round"])
        arrays[name] = by_setting[..., 1:] if method in TUNED_ROUND else by_setting[..., -1:]
    if quantity.better == "lower":
        means = arrays["accuracy"].mean(axis=1)
        scale = np.min(means, initial=np.inf, where=np.isfinite(means))
        signs = {name: 1 if name == "standard_deviation" else -1 for name in arrays}
        arrays = {name: signs[name] * value / scale for name, value in arrays.items()}
    num_rounds = arrays["accuracy"].shape[-1]
    pairs = {
        name: np.moveaxis(value, -1, 1).reshape(num_settings * num_rounds, -1)
        for name, value in arrays.items()
    }
    evaluated = tuned["round"].values[-num_rounds:]
    return {
        criterion: Choice(index // num_rounds, int(evaluated[index % num_rounds]))
        for criterion, index in tuning.select(pairs).items()
    }


def _by_run(trained: xr.Dataset) -> xr.Dataset:
    """Names the dimension of runs as in results of ``fit``."""
    return trained.drop_vars(["seed", "setting"]).rename(run="seed")


def _save(
    unit: Unit,
    phase: str,
    trained: xr.Dataset,
    data: BenchmarkData,
    settings: Sequence[Mapping[str, float]],
    chosen: Mapping[str, Choice],
) -> None:
    """Writes the results of a phase and its cells, which mark it as done."""
    described = {
        "protocol": VERSION,
        "federation": unit.federation.name,
        "method": unit.method,
        "phase": phase,
    }
    attrs = described | {
        "settings": json.dumps([dict(values) for values in settings]),
        "chosen": json.dumps({name: list(choice) for name, choice in chosen.items()}),
        "data_digest": data.data_digest,
        "unseen_clients": data.unseen.num_clients,
    }
    results.save(trained.assign_attrs(attrs), unit.file(phase))
    of_run = _cell_measures(trained, phase, unit.federation.quantity)
    environment_ = environment()
    seeds = list(dict.fromkeys(trained["seed"].values.tolist()))
    lines = []
    for i, (setting, seed) in enumerate(
        zip(trained["setting"].values.tolist(), trained["seed"].values.tolist(), strict=True)
    ):
        criteria = [name for name in CRITERIA if name in chosen and chosen[name].setting == setting]
        lines.append(
            described
            | ({"criterion": criteria} if chosen else {})
            | {
                "settings": dict(settings[setting]),
                "settings_hash": run_cells.settings_hash(
                    unit.federation.name, unit.method, settings[setting]
                ),
                "seed": seed,
                "data_digest": data.data_digest,
                "partition_digest": data.partition_digests[seeds.index(seed)],
                "commit": environment_["git_commit"],
                "versions": environment_["versions"],
                "device": environment_["device"],
                "status": "diverged" if trained["diverged"].values[i] >= 0 else "ok",
            }
            | {part: {k: float(v[i]) for k, v in of_run[part].items()} for part in of_run}
        )
    run_cells.write(unit.folder / f"{phase}.jsonl", lines)
    shutil.rmtree(unit.folder / phase, ignore_errors=True)  # Runs that were saved alone.


def _cell_measures(
    trained: xr.Dataset, phase: str, quantity: Quantity
) -> dict[str, dict[str, np.ndarray]]:
    """Returns measures of the models that serve clients, after the last round, by run."""
    serving = by_model(_by_run(trained), serving=True)
    names = {"validation": _tuned_variables(quantity)}
    if phase == "final":  # Test examples of tuning runs are never looked at.
        names["test"] = {k: v.removeprefix("validation_") for k, v in names["validation"].items()}
    measured: dict[str, dict[str, np.ndarray]] = {}
    for part, variables in names.items():
        last = serving[list(variables.values())].isel(round=-1)
        last = last.isel(algorithm=0) if "algorithm" in last.dims else last
        measured[part] = {name: last[variable].values for name, variable in variables.items()}
    return measured
