"""Range finding, tuning and final runs of one method on one federated dataset."""

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
from fedjax_fair.app.build import make_model, method_round
from fedjax_fair.app.run_record import environment
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.method import Range
from fedjax_fair.app.settings.named_methods import method_settings, resolve_method
from fedjax_fair.app.settings.names import change
from fedjax_fair.benchmark import run_cells, tuning
from fedjax_fair.benchmark.compute import count_flops
from fedjax_fair.benchmark.federations import Federation, variables_of
from fedjax_fair.benchmark.measures import at_round
from fedjax_fair.benchmark.plugin_methods import needs_groups
from fedjax_fair.benchmark.populations import BenchmarkData
from fedjax_fair.benchmark.protocol import PARITY, RANGE_SEED, SETTINGS, VERSION, Track
from fedjax_fair.benchmark.train import Run, train, train_in_pieces
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.metrics.quantities import Quantity
from fedjax_fair.results import sensitive_groups
from fedjax_fair.results.datasets import by_model
from fedjax_fair.results.task_metrics import sign, validation
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.round import run
from fedjax_fair.training.loop import Callback

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "BenchmarkInput",
    "Unit",
    "is_done",
    "make_rounds",
    "measures_of",
    "operations_of",
    "run_unit",
]

_CENTRALIZED = "centralized"
"""Method whose minibatches have the examples of a whole cohort's, so that rounds have as many."""
_COUNTED_ROUNDS = 5
_SPREADS = ("standard_deviation", PARITY)
"""Measures of which less is better, whatever clients are measured by."""
_MAX_MOVES = {tuning.RATE: 2}
"""Moves of a range whose limit was chosen; of other settings one."""


def _tuned_variables(quantity: Quantity) -> dict[str, str]:
    """Returns variables on validation examples, by measure."""
    return {name: validation(variables_of(quantity)[name]) for name in tuning.MEASURES}


def _parity_feature(unit: Unit) -> str | None:
    """Returns the sensitive feature whose gap chooses settings of methods of group fairness."""
    return unit.federation.sensitive_feature if needs_groups(unit.method) else None


class BenchmarkInput(NamedTuple):
    """Data and operations that all units of a federated dataset share.

    Attributes:
        phases: The dataset by phase, with one partition for each seed of the phase.
        operations: Floating-point operations of a round of FedAvg.
    """

    phases: Mapping[str, BenchmarkData]
    operations: float


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
    """Returns whether the last phase of a unit has its file."""
    return (unit.folder / "final.jsonl").exists()


def run_unit(
    unit: Unit,
    track: Track,
    data: BenchmarkInput,
    callback_fn: Callable[[str], Sequence[Callback]] = lambda runs: (),
) -> None:
    """Trains the missing runs of a unit, and writes their files.

    Step sizes of all magnitudes are tried once and give the window of step sizes. Each block then
    chooses among settings of its own. If many blocks choose a limit, its range moves and all blocks
    choose anew. The chosen settings train with the final seed of their block.

    Args:
        unit: The method and the federated dataset.
        track: Seeds and number of blocks.
        data: The federated dataset.
        callback_fn: Makes the callbacks of a batch of runs from its description.

    Raises:
        ValueError: If the method cannot run on this dataset, or a file is damaged or of other data.
    """
    job = _Job(unit, track, data, configuration(unit), callback_fn)
    unit.folder.mkdir(parents=True, exist_ok=True)
    num, quantity = track.num_blocks, unit.federation.quantity
    tried = tuning.range_settings(job.ranges, num)
    found = job.results("range", tried, [Run(j, RANGE_SEED) for j in range(num)])
    levels = sign(quantity) * measures_of(found, _tuned_variables(quantity))["accuracy"]
    levels = np.where(found["diverged"].values < 0, levels, np.nan)
    ranges = {tuning.RATE: tuning.window(tuning.rates(num), levels.tolist()), **job.ranges}
    moves, attempt = dict.fromkeys(ranges, 0), 0
    while True:
        settings = tuning.block_settings(ranges, num)
        runs = [
            Run(SETTINGS * block + place, seed)
            for place in range(SETTINGS)
            for block, seed in enumerate(track.tuning_seeds)
        ]
        tuned = job.results(f"tuning-{attempt}", settings, runs)
        of_mean = [settings[place] for place in choose(tuned, unit, num)["mean"]]
        limits = tuning.at_limits(ranges, of_mean)
        movable = [name for name in limits if moves[name] < _MAX_MOVES.get(name, 1)]
        moved = {name: tuning.moved(ranges[name], limits[name]) for name in movable}
        moved = {name: values for name, values in moved.items() if job.can_have(name, values)}
        if not moved:
            break
        ranges, attempt = ranges | moved, attempt + 1
        moves |= {name: moves[name] + 1 for name in moved}
    # Operations are counted once, and not for each window.
    relative = job.relative_operations(settings[0])
    chosen = choose(tuned, unit, num, relative)
    places = [
        (place, seed)
        for of_blocks in chosen.values()
        for place, seed in zip(of_blocks, track.final_seeds, strict=True)
    ]
    attrs = {
        "chosen": json.dumps(chosen),
        "at_limit": json.dumps(limits),
        "window": attempt,
        "relative_operations": relative,
        "flops": relative * data.operations,
    }
    job.results("final", settings, [Run(*place) for place in dict.fromkeys(places)], attrs)


class _Job(NamedTuple):
    """A unit with what its phases need."""

    unit: Unit
    track: Track
    data: BenchmarkInput
    config: Config
    callback_fn: Callable[[str], Sequence[Callback]]

    @property
    def ranges(self) -> Mapping[str, Range]:
        """Ranges of the settings in addition to the step size."""
        return resolve_method(self.config, self.unit.method)[0].ranges

    def results(
        self,
        phase: str,
        settings: Sequence[Mapping[str, float]],
        runs: Sequence[Run],
        attrs: Mapping[str, Any] = {},
    ) -> xr.Dataset:
        """Returns the results of a phase, which are trained if they are missing."""
        name = phase.partition("-")[0]
        data = self.data.phases[name]
        if name == "tuning" and _parity_feature(self.unit) is not None:
            # Gaps of groups are measured on test examples, in whose place are those of validation.
            data = data._replace(seen=data.seen._replace(test=data.seen.validation))
        if not (self.unit.folder / f"{phase}.jsonl").exists():
            trained = self._train(phase, settings, runs, data)
            _save(self.unit, phase, trained.assign_attrs(attrs), data, settings)
        found = results.open(self.unit.file(phase))
        digests = data.data_digest, json.dumps(data.partition_digests)
        if digests != (found.attrs["data_digest"], found.attrs["partition_digests"]):
            raise ValueError(
                f"path={str(self.unit.file(phase))!r}: expected results of the same data; use "
                "another folder."
            )
        return found

    def _train(
        self,
        phase: str,
        settings: Sequence[Mapping[str, float]],
        runs: Sequence[Run],
        data: BenchmarkData,
    ) -> xr.Dataset:
        """Trains the runs of a phase in pieces, each of which is saved."""
        unit, track = self.unit, self.track
        rounds = make_rounds(unit, self.config, settings, self.data.phases)
        size = 1 if track.one_run_at_a_time else track.num_blocks

        def train_piece(piece: Sequence[Run], own: BenchmarkData) -> xr.Dataset:
            runs = f"{unit.federation.name}, {unit.method}, {phase}, {len(piece)} runs"
            return train(
                self.config, rounds, piece, own, track.adapt_steps, padding=size,
                has_answers=phase == "final",
                callbacks=self.callback_fn(runs),
            )  # fmt: skip

        return train_in_pieces(train_piece, rounds, runs, data, unit.folder / phase, size)

    def relative_operations(self, settings: Mapping[str, float]) -> float:
        """Returns the operations of a round relative to those of FedAvg."""
        (round,) = make_rounds(self.unit, self.config, [settings], self.data.phases)
        return operations_of(round, self.data.phases["tuning"]) / self.data.operations

    def can_have(self, name: str, values: Range) -> bool:
        """Returns whether the method takes both ends of a range: a fraction, say, has limits."""
        others = {other: own.low for other, own in self.ranges.items()}
        ends = [{tuning.RATE: 0.1, **others, name: end} for end in values[:2]]
        try:
            make_rounds(self.unit, self.config, ends, self.data.phases)
        except ValueError:
            return False
        return True


def operations_of(round: BaseRound, data: BenchmarkData) -> float:
    """Returns the mean number of floating-point operations of the first rounds of training."""
    seen, rounds = data.seen.partition(0), _COUNTED_ROUNDS

    def train(round: BaseRound, data: FederatedData) -> Any:
        return run(round, round.init(jax.random.key(0), data), data, rounds)

    return count_flops(train, round, seen) / rounds


def configuration(unit: Unit) -> Config:
    """Returns the resolved configuration of a unit."""
    config = presets.resolve(replace(unit.federation.config, methods=(unit.method,)))
    if unit.method == _CENTRALIZED:
        cohort, batch_size = config.selector.cohort_size, config.solver.batch_size
        config = change(config, "solver", "batch_size", cohort * batch_size)
    if (feature := unit.federation.sensitive_feature) is not None:
        for section, name in method_settings(config, unit.method):
            if name == "sensitive_feature":
                config = change(config, section, name, feature)
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
    # Equal for all phases, which share compiled functions.
    largest = min(int(np.max(sizes, axis=-1).min()) for sizes in clients)
    model = make_model(resolve_method(config, unit.method)[1].model, seen, config.data)
    made: list[BaseRound] = []
    for values in settings:
        name = tuning.with_settings(unit.method, values)
        made.append(
            method_round(
                config, name, seen.num_classes, largest, model, num_clients=seen.num_clients
            )
        )
    jax.eval_shape(made[0].init, jax.random.key(0), seen.partition(0))
    return made


def choose(
    tuned: xr.Dataset, unit: Unit, num_blocks: int, relative_operations: float | None = None
) -> dict[str, list[int]]:
    """Chooses the setting of each block by each criterion, on validation examples.

    Errors are divided by the smallest mean error of the block, so that the tolerance of the
    criterion ``fairest`` is a percentage of it. Without a model within the operations of FedAvg
    there is no choice for the criterion ``compute``.

    Args:
        tuned: Tuning runs: the first setting of every block, then the second, ...
        unit: The method and the federated dataset.
        num_blocks: Number of blocks.
        relative_operations: Operations of a round relative to those of FedAvg; None leaves out the
            criterion ``compute``.

    Returns:
        Places in the settings of all blocks, one for each block, by criterion.
    """
    quantity = unit.federation.quantity

    def by_block(values: np.ndarray) -> np.ndarray:
        return np.where(tuned["diverged"].values < 0, values, np.nan).reshape(-1, num_blocks).T

    variables = _tuned_variables(quantity)
    last = {name: by_block(each) for name, each in measures_of(tuned, variables).items()}
    if relative_operations is not None:
        budget = float(tuned["round"].values[-1]) / relative_operations
        if (within := at_round(tuned, budget)) is not None:
            last["compute"] = by_block(measures_of(within, variables)["accuracy"])
    if (feature := _parity_feature(unit)) is not None:
        serving = by_model(_by_run(tuned), serving=True).isel(round=-1)
        gaps = sensitive_groups.gaps(serving, [feature])["demographic_parity_difference"]
        last[PARITY] = by_block(gaps.values.reshape(-1))
    if quantity.better == "lower":
        smallest = np.nanmin(last["accuracy"], axis=1, keepdims=True)
        last = {n: (1 if n in _SPREADS else -1) * each / smallest for n, each in last.items()}
    first = SETTINGS * np.arange(num_blocks)
    return {name: (first + places).tolist() for name, places in tuning.select(last).items()}


def measures_of(trained: xr.Dataset, variables: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Returns variables of the models that serve clients, by run.

    They are those after the last round, if results are over ``round``.
    """
    serving = by_model(_by_run(trained), serving=True)[list(variables.values())]
    for dim, place in (("round", -1), ("algorithm", 0)):
        serving = serving.isel({dim: place}) if dim in serving.dims else serving
    return {name: serving[variable].values for name, variable in variables.items()}


def _by_run(trained: xr.Dataset) -> xr.Dataset:
    """Names the dimension of runs as in results of ``fit``."""
    return trained.drop_vars(["seed", "setting"]).rename(run="seed")


def _save(
    unit: Unit,
    phase: str,
    trained: xr.Dataset,
    data: BenchmarkData,
    settings: Sequence[Mapping[str, float]],
) -> None:
    """Writes the results of a phase and its cells, which mark it as done."""
    name, _, window = phase.partition("-")
    window = int(window or trained.attrs.get("window", 0))
    described = {
        "protocol": VERSION,
        "federation": unit.federation.name,
        "method": unit.method,
        "phase": name,
    }
    attrs = described | {
        "settings": json.dumps([dict(values) for values in settings]),
        "data_digest": data.data_digest,
        "test_digest": data.test_digest,
        "partition_digests": json.dumps(data.partition_digests),
        "unseen_clients": data.unseen.num_clients,
    }
    results.save(trained.assign_attrs(attrs), unit.file(phase))
    quantity = unit.federation.quantity
    measured = {"validation": measures_of(trained, _tuned_variables(quantity))}
    if name == "final":  # Test examples of other runs are never looked at.
        measured["test"] = measures_of(trained, variables_of(quantity))
    chosen = json.loads(trained.attrs.get("chosen", "{}"))
    environment_ = environment()
    seeds = list(dict.fromkeys(trained["seed"].values.tolist()))
    lines = []
    for i, (setting, seed) in enumerate(
        zip(trained["setting"].values.tolist(), trained["seed"].values.tolist(), strict=True)
    ):
        criteria = [criterion for criterion, places in chosen.items() if setting in places]
        lines.append(
            described
            | ({"criterion": criteria} if chosen else {})
            | {"block": 0 if name == "range" else setting // SETTINGS, "window": window}
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
            | {part: {k: float(v[i]) for k, v in own.items()} for part, own in measured.items()}
        )
    run_cells.write(unit.folder / f"{phase}.jsonl", lines)
    shutil.rmtree(unit.folder / phase, ignore_errors=True)  # Pieces.
