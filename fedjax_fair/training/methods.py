"""Training of several methods on the same federated dataset."""

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
from fedjax_fair.training.loop import Callback, run
from fedjax_fair.training.options import OnNonfinite, TrainOptions
from fedjax_fair.training.split import split

__all__ = ["train_methods"]

# XLA compiles a function on one core. The second of two methods ahead keeps another core busy while
# the first compiles, and both are compiled when the current one has trained.
_METHODS_AHEAD = 2


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
    """Trains methods sequentially, and compiles the next ones while one trains.

    ``callbacks`` and ``checkpoints`` return the callbacks and the folder of a method by its name.
    Other arguments are those of ``train``.

    Yields:
        The name of each method and its result, in order.
    """
    options = TrainOptions(rounds, eval_every, True, on_nonfinite)
    names, functions = list(methods), dict[str, CompiledFunctions]()
    splits = {name: split([method]) for name, method in methods.items()}
    # All processes must compile and run in the same order.
    ahead = 0 if jax.process_count() > 1 else _METHODS_AHEAD

    with RunBatch(data, seeds, mesh) as batch:

        def trace(name: str) -> None:
            if name not in functions:
                functions[name] = CompiledFunctions(splits[name], batch, options)

        def functions_of(i: int) -> CompiledFunctions:
            trace(names[i])
            for name in names[i + 1 : i + 1 + ahead]:
                with suppress(Exception):  # Raised again when the method is next.
                    trace(name)
            return functions.pop(names[i])

        for i, name in enumerate(names):
            folder, functions_fn = checkpoints(name), partial(functions_of, i)
            result = run(splits[name], batch, options, callbacks(name), folder, functions_fn)
            yield name, result._replace(model=methods[name].model)
