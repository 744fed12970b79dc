"""Trains several methods on the same federation, the next ones compiled while one trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import jax
from jax.sharding import Mesh

from fedjax_fair.data.federated import FederatedData
from fedjax_fair.simulate import BaseRound
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.compiled_functions import CompiledFunctions
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.training.loop import Callback, OnNonfinite, TrainOptions, compile_functions, run
from fedjax_fair.training.split import split

__all__ = ["train_methods"]

# XLA compiles a program on one core. So two methods ahead keep a second one busy while the first
# compiles, and are ready when it has trained.
_AHEAD = 2


def train_methods(
    methods: Mapping[str, BaseRound],
    data: FederatedData,
    *,
    rounds: int,
    seeds: Sequence[int],
    eval_every: int,
    on_nonfinite: OnNonfinite,
    callbacks: Callable[[str], Sequence[Callback]],
    checkpoints: Callable[[str], Path],
    mesh: Mesh | None = None,
) -> Iterator[tuple[str, FitResult]]:
    """Trains methods one after another, as ``train`` does each.

    Args:
        methods: By name.
        data: The federation of all.
        rounds: As for ``train``.
        seeds: As for ``train``.
        eval_every: As for ``train``.
        on_nonfinite: As for ``train``.
        callbacks: Makes the callbacks of a method when its turn has come.
        checkpoints: The folder of a method.
        mesh: As for ``train``.

    Yields:
        Each name with what ``train`` returns, as soon as it is done.
    """
    options = TrainOptions(rounds, eval_every, True, on_nonfinite)
    options.check_valid()
    names, traced = list(methods), dict[str, CompiledFunctions]()
    parts = {name: split([method]) for name, method in methods.items()}
    # Several processes must not change the order of what they compile and run.
    ahead = 0 if jax.process_count() > 1 else _AHEAD

    with RunBatch(data, seeds, mesh) as batch:

        def trace(name: str) -> None:
            if name not in traced:
                traced[name] = compile_functions(parts[name], batch, options)

        def programs(place: int) -> CompiledFunctions:
            trace(names[place])
            for name in names[place + 1 : place + 1 + ahead]:
                with suppress(Exception):  # Raised again when its turn has come.
                    trace(name)
            return traced.pop(names[place])

        for place, (name, round) in enumerate(methods.items()):
            trained = run(
                parts[name],
                batch,
                options,
                callbacks(name),
                checkpoints(name),
                partial(programs, place),
            )
            yield name, FitResult(trained.dataset, trained.variables, round.model, trained.rounds)
