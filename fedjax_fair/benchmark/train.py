"""Training of the runs of one method, in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_fair import results
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model
from fedjax_fair.app.devices import mesh_of
from fedjax_fair.app.settings.config import Config
from fedjax_fair.benchmark.pool_errors import answers
from fedjax_fair.benchmark.populations import BenchmarkData
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.training.fit import fit
from fedjax_fair.training.loop import Callback

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Run", "constant_errors", "train", "train_in_pieces"]


class Run(NamedTuple):
    """A run, by the place of its setting and by its seed."""

    setting: int
    seed: int


def train(
    config: Config,
    rounds: Sequence[BaseRound],
    runs: Sequence[Run],
    data: BenchmarkData,
    adapt_steps: int,
    *,
    padding: int = 0,
    has_answers: bool = False,
    callbacks: Sequence[Callback] = (),
) -> xr.Dataset:
    """Trains runs together, and evaluates their models on unseen clients.

    Args:
        config: Budget of training.
        rounds: The round of each setting.
        runs: The runs.
        data: The federated dataset, with one partition for each seed, in the order of the runs.
        adapt_steps: Local steps on unseen clients.
        padding: Minimum number of runs of the compiled function; further ones are left out.
        has_answers: Whether results have the predicted test examples (`pool_errors.answers`).
        callbacks: Callbacks of training.

    Returns:
        Results over ``run``.
    """
    seeds = list(dict.fromkeys(run.seed for run in runs))
    # Settings that are equal in all runs would be no batch axis, which is another program.
    fill = [Run(i % len(rounds), seeds[0]) for i in range(max(0, padding - len(runs)))]
    padded = [*runs, *fill]
    places = [seeds.index(run.seed) for run in padded]
    methods = [rounds[run.setting] for run in padded]
    training, mesh = config.training, mesh_of("auto")
    fitted = fit(
        methods,
        data.seen.partitions(places),
        rounds=training.rounds or 0,
        seeds=[run.seed for run in padded],
        eval_every=training.eval_every or 1,
        train_loss=False,
        on_nonfinite="skip_round",
        callbacks=callbacks,
        mesh=mesh,
    )
    dataset = fitted.dataset.drop_vars(["seed", "client"], errors="ignore")
    if fitted.model.task == "regression":
        errors = constant_errors(data.seen)[places]
        dataset["constant_mean_absolute_error"] = (("seed", "client"), errors)
    if has_answers and fitted.model.task == "classification":
        dataset = dataset.assign(answers(fitted, data.seen.partitions(places)))
    if has_global_model(methods[0]):
        measured = evaluate_unseen(
            fitted.model,
            fitted.variables,
            _learning_rates(methods),
            data.unseen.partitions(places),
            steps=adapt_steps,
            batch_size=config.solver.batch_size or 1,
            seeds=[run.seed for run in padded],
            client_ids=data.unseen_ids[places],
            mesh=mesh,
        )
        measured = measured.drop_vars(["seed", "client"], errors="ignore")
        dataset = dataset.merge(measured.rename(client="unseen_client"))
    dataset = dataset.rename(seed="run").isel(run=slice(len(runs)))
    return dataset.assign_coords(
        setting=("run", [run.setting for run in runs]), seed=("run", [run.seed for run in runs])
    )


def constant_errors(data: FederatedData) -> Float[np.ndarray, "partitions clients"]:
    """Returns the mean absolute error of each client if the median of all test labels is predicted.

    Clients without test examples have NaN.
    """
    found = []
    for place in range(data.num_partitions or 1):
        test = data.partition(place).test
        owned = [np.asarray(test.labels)[rows] for rows in test.client_indices]
        median = np.median(np.concatenate(owned), axis=0)
        errors = [np.abs(part - median).mean() if len(part) else np.nan for part in owned]
        found.append(errors)
    return np.array(found, np.float32)


def _learning_rates(methods: Sequence[Any]) -> list[float]:
    """Returns the step size of each method's local SGD, which other solvers wrap."""
    solvers = [method.solver for method in methods]
    rates = [getattr(solver, "solver", solver).learning_rate for solver in solvers]
    return [float(rate) for rate in rates]


# A vmap of ResNet-18 takes longer than a loop on an accelerator (docs/accelerators.md), so that its
# pieces are single runs. All pieces share a compiled function, and each is saved, so that an
# interruption costs one piece.
def train_in_pieces(
    train_piece: Callable[[Sequence[Run], BenchmarkData], xr.Dataset],
    rounds: Sequence[BaseRound],
    runs: Sequence[Run],
    data: BenchmarkData,
    folder: Path,
    size: int,
) -> xr.Dataset:
    """Trains runs in pieces, each with its own file, which the next call reads.

    Args:
        train_piece: Trains some runs, given the dataset with the partitions of their seeds.
        rounds: The round of each setting.
        runs: The runs.
        data: The federated dataset, with one partition for each seed, in the order of the runs.
        folder: Folder of the files.
        size: Runs of a piece, at most.

    Returns:
        Results as of `train`.

    Raises:
        ValueError: If a file is damaged, or of another run or other data.
    """
    import xarray as xr

    folder.mkdir(parents=True, exist_ok=True)
    seeds = list(dict.fromkeys(run.seed for run in runs))
    parts: list[xr.Dataset] = []
    for number, first in enumerate(range(0, len(runs), size)):
        piece, file = runs[first : first + size], folder / f"{number:02d}.nc"
        own = data.of_runs([seeds.index(seed) for seed in dict.fromkeys(r.seed for r in piece)])
        made_of = {
            "methods": json.dumps([str(rounds[run.setting]) for run in piece]),
            "data_digest": own.data_digest,
            "partition_digests": json.dumps(own.partition_digests),
        }
        if not file.exists():
            results.save(train_piece(piece, own).assign_attrs(made_of), file)
        parts.append(results.open(file))
        if not made_of.items() <= parts[-1].attrs.items():
            raise ValueError(
                f"path={str(file)!r}: expected results of the same methods and data; use another "
                "folder."
            )
    return xr.concat(
        parts, "run", data_vars="minimal", coords="minimal", compat="override", join="exact",
        combine_attrs="drop_conflicts",
    )  # fmt: skip
