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
from fedjax_fair.training.batch import Batch
from fedjax_fair.training.fitted import Fitted
from fedjax_fair.training.loop import Callback, OnNonfinite, Schedule, programs_of, run
from fedjax_fair.training.programs import Programs
from fedjax_fair.training.split import split

__all__ = ["train_each"]

# XLA compiles a program on one core. So two methods ahead keep a second one busy while the first
# compiles, and are ready when it has trained.
_AHEAD = 2


def train_each(
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
) -> Iterator[tuple[str, Fitted]]:
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
    schedule = Schedule(rounds, eval_every, True, on_nonfinite)
    schedule.check_valid()
    names, traced = list(methods), dict[str, Programs]()
    parts = {name: split([method]) for name, method in methods.items()}
    # Several processes must not change the order of what they compile and run.
    ahead = 0 if jax.process_count() > 1 else _AHEAD

    with Batch(data, seeds, mesh) as batch:

        def trace(name: str) -> None:
            if name not in traced:
                traced[name] = programs_of(parts[name], batch, schedule)

        def programs(place: int) -> Programs:
            trace(names[place])
            for name in names[place + 1 : place + 1 + ahead]:
                with suppress(Exception):  # Raised again when its turn has come.
                    trace(name)
            return traced.pop(names[place])

        for place, (name, round) in enumerate(methods.items()):
            trained = run(
                parts[name],
                batch,
                schedule,
                callbacks(name),
                checkpoints(name),
                partial(programs, place),
            )
            yield name, Fitted(trained.dataset, trained.variables, round.model, trained.rounds)
