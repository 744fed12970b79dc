"""The compiled programs of a batch of runs: its initial state, chunks of rounds, evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree, Shaped

from fedjax_fair.base import ClientMetric, ClientMetrics, Metric, Model
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.numerics import target
from fedjax_fair.parallel.cores import pad_to_multiple
from fedjax_fair.parallel.mesh import split_runs
from fedjax_fair.results import RECORDED
from fedjax_fair.simulate import RoundInfo, RoundState
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.diagnosis import is_constant
from fedjax_fair.training.functions import functions
from fedjax_fair.training.split import Split

__all__ = ["CompiledFunctions", "check_outputs"]

# What runs have recorded exists as it came and, in the end, as a Dataset, and partly in between:
# 2.3 to 2.8 times in trials.
_COPIES_OF_RECORDS = 2.5

# The initial state is computed once. Compiled with less effort it is ready in a third of the time,
# and what a selector measures of all clients there takes at most a fifth longer.
_CPU_INIT_OPTIONS: dict[str, str | bool] = {"xla_backend_optimization_level": "1"}


class CompiledFunctions:
    """What is compiled for a batch of runs of one method, before any of them starts.

    They are compiled in the background; whatever needs one waits for it.

    Args:
        method: The rounds of the runs.
        batch: The runs.
        eval_every: Rounds in a chunk.
        train_loss: Whether evaluations measure training losses.
        drop_nonfinite: As for ``simulate.run``.
        custom_metrics: Measured besides at every evaluation.

    Attributes:
        empty_cohort: The cohort before the first round, -1 in every slot, ``[runs, cohort]``.
        bytes_up: Bytes that a participant sends in a round.
        is_centralized: ``BaseRound.is_centralized``.
        same_cohort: Whether every round has the same cohort, whatever goes into it.
    """

    def __init__(
        self,
        method: Split,
        batch: RunBatch,
        eval_every: int,
        train_loss: bool,
        *,
        drop_nonfinite: bool = False,
        custom_metrics: Sequence[Metric | ClientMetric] = (),
    ) -> None:
        self._batch, self._length = batch, eval_every
        one, model = method.first, method.of("model")
        self.is_centralized = one.is_centralized
        # Seeds on the host rather than keys on a device, which other processes could not use.
        seeds, self._own = batch.own(method.own)
        self._shared = method.shared
        self._model = batch.own(model.own)[1], model.shared
        parts = functions(
            method,
            model,
            batch.mesh,
            one_run_per_core=batch.one_run_per_core,
            train_loss=train_loss,
            drop_nonfinite=drop_nonfinite,
            custom_metrics=custom_metrics,
        )
        self._step = parts.step

        # One is compiled while the next is traced, and several at once where there are cores.
        given = (seeds, self._own), self._shared, batch.data
        init_run = parts.init.lower(*given)
        self._state = init_run.out_info
        self.bytes_up = one.bytes_up(_of_one_run(self._state.variables))
        check_outputs(one.model, self._state.variables, batch.given)
        options = _CPU_INIT_OPTIONS if target.current().is_cpu else None
        initial = batch.compile(init_run, options)
        self._init = lambda: initial.result()(*given)
        traced = self._trace(eval_every)
        chunk = traced.lower()
        self._info = chunk.out_info[1]
        self.same_cohort = is_constant(traced, self._info)
        self._chunks = {eval_every: batch.compile(chunk)}
        clients = self._info.clients
        self.empty_cohort = np.full((len(batch.seeds), clients.shape[2]), -1, clients.dtype)
        evaluation = parts.evaluate.lower(*self._evaluated(self._state, self.empty_cohort))
        self._evaluation = evaluation.out_info
        self._evaluate = batch.compile(evaluation)

    def num_bytes(self, rounds: int) -> int:
        """Memory that the runs take at most: data, models, temporaries, and what is recorded.

        With several devices, memory of the first, for its share of the runs, and with cores of all
        together. On an accelerator what is recorded is left out, because it goes to the host.
        """
        batch = self._batch
        transient = max(
            batch.cores * _temporary(program.result()) + _bytes(output) // batch.groups
            for program, output in (
                (self._chunks[self._length], self._info),
                (self._evaluate, self._evaluation),
            )
        )
        summaries, clients = self._evaluation
        evaluation = (summaries, [getattr(clients, name) for name in RECORDED], clients.custom)
        recorded = (rounds * _bytes(self._info) + (rounds + self._length) * _bytes(evaluation)) // (
            self._length
        )
        on_host = not target.current().is_cpu
        copies = 1 if batch.one_run_per_core else batch.cores
        own = copies * _bytes((self._state, self._own)) // batch.groups
        resident = own + self.shared_bytes
        return resident + transient + (0 if on_host else int(_COPIES_OF_RECORDS * recorded))

    @property
    def shared_bytes(self) -> int:
        """The part of it, data, that does not depend on the number of runs."""
        leaves = {id(leaf): leaf for leaf in jax.tree.leaves(self._batch.data)}.values()
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)

    def init(self) -> RoundState:
        """The state of every run before its first round, and of repetitions if there are any."""
        return self._init()

    def step(self, state: RoundState, length: int) -> tuple[RoundState, RoundInfo]:
        """Some rounds more; the old state is gone."""
        if length not in self._chunks:
            self._chunks[length] = self._batch.compile(self._trace(length).lower())
        state, info = self._chunks[length].result()(
            state, self._own, self._shared, self._batch.data
        )
        return state, self.unpad_runs(info)

    def evaluate(
        self, state: RoundState, cohort: Int[np.ndarray, "runs cohort"]
    ) -> tuple[dict[str, Shaped[Array, " runs"]], ClientMetrics]:
        """Summaries and per-client metrics after a round of this cohort."""
        measured = self._evaluate.result()(*self._evaluated(state, cohort))
        return self.unpad_runs(measured)

    def unpad_runs(self, tree: PyTree) -> PyTree:
        """The part ``[runs, ...]`` of a state or a result; on the host, if it is not all."""
        runs = len(self._batch.seeds)
        if runs % self._batch.groups == 0:
            return tree
        return jax.tree.map(lambda leaf: leaf[:runs], jax.device_get(tree))

    def pad_runs(self, state: RoundState) -> RoundState:
        """The state of every run, as ``init`` returns it, from one without repetitions."""
        mesh, groups = self._batch.mesh, self._batch.groups
        if mesh is None or len(self._batch.seeds) % groups == 0:
            return state
        return split_runs(pad_to_multiple(state, groups), mesh)

    def _trace(self, length: int):
        return self._step.trace(self._state, self._own, self._shared, self._batch.data, length)

    def _evaluated(self, state: RoundState, cohort: Int[np.ndarray, "runs cohort"]):
        own, shared = self._model
        cohorts = pad_to_multiple(cohort, self._batch.groups)
        measured = state.variables, state.participation, cohorts
        return (measured, own), shared, self._batch.data


def check_outputs(model: Model, variables: PyTree, data: FederatedData) -> None:
    """Raises if a model has fewer outputs than there are classes, which would be NaN later on."""
    if np.issubdtype(data.train.labels.dtype, np.floating):
        if model.loss is Model.loss:
            raise ValueError(
                "model: expected a loss for targets, which the labels are, as of "
                "models.as_regression(model) or models.as_multi_label(model)."
            )
        return

    def outputs(variables, features):
        params, state = variables
        return model.apply(params, state, features, train=False, key=None)[0]

    one_run = _of_one_run(variables)
    features = jax.ShapeDtypeStruct((1, *data.train.features.shape[1:]), data.train.features.dtype)
    width = jax.eval_shape(outputs, one_run, features).shape[-1]
    if width < data.num_classes:
        raise ValueError(
            f"model with {width} outputs: expected at least {data.num_classes}, one for each class."
        )


def _of_one_run(variables: PyTree) -> PyTree:
    """Shapes without the axis of runs."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), variables)


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _temporary(program: Any) -> int:
    """Memory that a program takes besides its arguments, its results and what it updates."""
    return program.memory_analysis().temp_size_in_bytes
