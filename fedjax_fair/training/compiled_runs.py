"""The compiled functions of a batch of runs."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Shaped

from fedjax_fair.data.federated import PARTS, FederatedData
from fedjax_fair.numerics import target
from fedjax_fair.numerics.labels import are_sequences
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.parallel.collectives import AXIS
from fedjax_fair.parallel.cores import pad_to_multiple
from fedjax_fair.parallel.mesh import shapes_of_runs, split_runs
from fedjax_fair.results import RECORDED
from fedjax_fair.roles import ClientMetrics, Model
from fedjax_fair.roles.role_errors import NEEDS_VALUE, explain_errors
from fedjax_fair.rounds.round_state import RoundInfo, RoundState
from fedjax_fair.training.batch import RunBatch
from fedjax_fair.training.checkpoints import SavedState
from fedjax_fair.training.diagnosis import is_constant
from fedjax_fair.training.jitted import make_functions
from fedjax_fair.training.memory_estimate import (
    Memory,
    array_bytes,
    device_bytes,
    total_memory,
    transient_bytes,
)
from fedjax_fair.training.stacked import Stacked
from fedjax_fair.training.train_options import TrainOptions
from fedjax_fair.utils.warning import warn
from fedjax_fair.utils.xla_options import BRIEF_CPU_OPTIONS, undecided

__all__ = ["CompiledRuns", "check_outputs", "shapes_of_one_run"]

_CPU_INIT_OPTIONS = {"xla_backend_optimization_level": 1} | BRIEF_CPU_OPTIONS

# Records exist as recorded, at the end as a Dataset, and partly in between: 2.3 to 2.8 copies were
# measured.
_COPIES_OF_RECORDS = 2.5


class CompiledRuns:
    """The functions that a batch of runs of one method calls.

    They compile in the background; a method that calls one waits for it.

    Attributes:
        empty_cohort: The cohort before the first round: -1 in every slot, ``[runs, cohort]``.
        traffic: Bytes that a participant communicates in a round.
        is_centralized: ``BaseRound.is_centralized``.
    """

    @explain_errors(kinds=NEEDS_VALUE)
    def __init__(self, method: Stacked, batch: RunBatch, options: TrainOptions) -> None:
        self._batch, self._options = batch, options
        self._eval_every = min(options.eval_every, options.rounds)
        round = method.first
        self.is_centralized = round.is_centralized
        seeds, self._per_run = batch.place(method.per_run)
        placed = batch.place_shared(method)._replace(per_run=self._per_run)
        self._shared = placed.shared
        self._is_personalized = round.is_personalized
        evaluated = placed if self._is_personalized else placed.field("model")
        self._evaluated = evaluated.per_run, evaluated.shared
        arguments = seeds, self._per_run, self._shared, self._evaluated, batch.data
        shapes = tuple(map(jax.typeof, jax.tree.leaves(arguments)))
        functions = make_functions(
            method,
            batch.mesh,
            shapes=(shapes, jax.tree.structure(batch.data)),
            train_loss=options.train_loss,
            drop_nonfinite=options.on_nonfinite == "drop_client",
            skip_nonfinite=options.on_nonfinite == "skip_round",
            custom_metrics=options.metrics,
        )
        self._step = functions.step

        # Methods of a notebook have other classes after each definition, but of the same names.
        roles = jax.tree.leaves(round, is_leaf=lambda node: node is not round)
        self._kind = kind = tuple(f"{type(r).__module__}.{type(r).__qualname__}" for r in roles)
        # Each function compiles while the next one is traced.
        init_arguments = (seeds, self._per_run), self._shared, batch.data
        lowered_init = functions.init.lower(*init_arguments)
        self._state = lowered_init.out_info
        check_outputs(round.model, self._state.variables, batch.host_data)
        self._check_client_states()
        # The initial state and evaluations take a small part of the time. Rounds keep full effort,
        # since less would cost 2 to 20% of every round.
        is_cpu = target.current().is_cpu
        init = batch.compile(lowered_init, ("init", *kind), _CPU_INIT_OPTIONS if is_cpu else None)
        self._init = lambda: init.result()(*init_arguments)

        traced = self._trace(self._eval_every)
        lowered_chunk = traced.lower()
        self._info = lowered_chunk.out_info[1]
        self.traffic = self._info.traffic
        self._has_constant_cohort = is_constant(traced, self._info)
        self._chunks = {self._eval_every: batch.compile(lowered_chunk, ("chunk", *kind))}
        clients = self._info.clients
        self.empty_cohort = np.full((len(batch.seeds), clients.shape[2]), -1, clients.dtype)

        lowered_evaluate = functions.evaluate.lower(
            *self._evaluate_arguments(self._state_on_devices(), self.empty_cohort)
        )
        self._evaluation = lowered_evaluate.out_info
        brief = undecided(BRIEF_CPU_OPTIONS) if is_cpu else None
        self._evaluate = batch.compile(lowered_evaluate, ("evaluate", *kind), brief)

    def memory(self) -> Memory:
        """Estimates the memory of the first device with its share of the runs, or of all cores."""
        batch = self._batch
        executables = self._chunks[self._eval_every].result(), self._evaluate.result()
        records = 0
        if target.current().is_cpu:
            summaries, clients = self._evaluation
            recorded = [getattr(clients, name) for name in RECORDED]
            evaluation = tree_bytes((summaries, recorded, clients.custom, clients.quantities))
            rounds = self._options.rounds
            chunk = rounds * tree_bytes(self._info) + (rounds + self._eval_every) * evaluation
            records = int(_COPIES_OF_RECORDS * (chunk // self._eval_every))
        states = tree_bytes((self._state._replace(clients=()), self._per_run))
        states += self._client_state_bytes()
        in_flight = tree_bytes(self._state.models_in_flight)
        return Memory(
            data=device_bytes(batch.data),
            states=batch.cores * (states - in_flight) // batch.groups,
            in_flight=batch.cores * in_flight // batch.groups,
            temporaries=batch.cores * max(map(transient_bytes, executables)),
            records=records,
            model=array_bytes(self._shared),
        )

    def _client_state_bytes(self) -> int:
        """Returns the bytes of the states of a device's clients in all runs."""
        store = tree_bytes(self._state.clients)
        if self._batch.data.train.has_all_clients:
            return store
        assert self._batch.mesh is not None
        return store // self._batch.mesh.shape[AXIS]

    def _check_client_states(self) -> None:
        """Raises ``ValueError`` if they exceed the memory of a device."""
        limit = total_memory()
        num_bytes = self._batch.cores * self._client_state_bytes() // self._batch.groups
        if num_bytes > limit:
            raise ValueError(
                f"the states of {self._batch.host_data.num_clients} clients in "
                f"{len(self._batch.seeds)} runs need {num_bytes:,} bytes of a device: expected at "
                f"most the {limit:,} of its memory; train fewer runs or use more devices."
            )

    def warn_of_constant_cohort(self) -> None:
        """Warns if all rounds have the same cohort of some clients."""
        cohort_size, num_clients = self._info.clients.shape[2], self._batch.host_data.num_clients
        if self._has_constant_cohort and not self.is_centralized and cohort_size < num_clients:
            warn(
                f"selector: every round has the same {cohort_size} of {num_clients} clients, "
                "because its cohort does not depend on key, state or context; draw with jax.random "
                "and the key, not with NumPy."
            )

    def init(self) -> RoundState:
        """Returns the initial state of every run, padded to a multiple of the groups."""
        return self._init()

    def step(self, state: RoundState, length: int) -> tuple[RoundState, RoundInfo]:
        """Returns the state after ``length`` more rounds; donates the given one."""
        if length not in self._chunks:
            lowered = self._trace(length).lower()
            self._chunks[length] = self._batch.compile(lowered, ("last chunk", *self._kind))
        chunk = self._chunks[length].result()
        state, info = chunk(state, self._per_run, self._shared, self._batch.data)
        return state, self.unpad_runs(info)

    def evaluate(
        self, state: RoundState, cohort: Int[np.ndarray, "runs cohort"]
    ) -> tuple[dict[str, Shaped[Array, " runs"]], ClientMetrics]:
        """Returns summaries and per-client metrics after a round of this cohort."""
        return self.unpad_runs(self._evaluate.result()(*self._evaluate_arguments(state, cohort)))

    def unpad_runs(self, tree: PyTree) -> PyTree:
        """Removes repeated runs from leaves ``[runs, ...]``; moves them to the host if needed."""
        runs = len(self._batch.seeds)
        if runs % self._batch.groups == 0:
            return tree
        return jax.tree.map(lambda leaf: leaf[:runs], jax.device_get(tree))

    def to_saved(self, state: RoundState) -> SavedState:
        """Returns a state as checkpoints have it."""
        runs, store = len(self._batch.seeds), state.clients
        fields = self.unpad_runs(state._replace(clients=()))
        if not store:
            return SavedState(fields, {}, {})
        rows = store.in_client_order(runs, self._batch.data.train)
        return SavedState(fields, rows, store.layout.shapes)

    def from_saved(
        self, state: RoundState, restore: Callable[[SavedState], SavedState]
    ) -> RoundState:
        """Restores a state on the devices of a given one, which is deleted.

        ``restore`` gets the structure and the shapes of what it returns.
        """
        store = state.clients
        fields = self.unpad_runs(state._replace(clients=()))
        if not store:
            return self._pad_runs(restore(SavedState(fields, {}, {})).state)
        runs, num_clients = len(self._batch.seeds), self._batch.data.num_clients
        rows = {
            name: np.empty((runs, num_clients, width), store.arrays[name].dtype)
            for name, width in store.layout.widths.items()
        }
        saved = restore(SavedState(fields, rows, store.layout.shapes))
        clients = store.from_client_order(saved.clients, self._batch.data.train)
        return self._pad_runs(saved.state)._replace(clients=clients)

    def _pad_runs(self, state: RoundState) -> RoundState:
        """Inverts ``unpad_runs`` for a state."""
        mesh, groups = self._batch.mesh, self._batch.groups
        if mesh is None or len(self._batch.seeds) % groups == 0:
            return state
        return split_runs(pad_to_multiple(state, groups), mesh)

    def _state_on_devices(self) -> RoundState:
        """Returns the shapes of the state, with devices if an evaluation may not read some of it.

        The compiler chooses the devices of what it reads, and others for the rest.
        """
        batch, state = self._batch, self._state
        if batch.mesh is None or not self._is_personalized:
            return state
        fields, clients = shapes_of_runs(
            state._replace(clients=()),
            state.clients,
            batch.data,
            batch.mesh,
        )
        return fields._replace(clients=clients)

    def _trace(self, length: int):
        return self._step.trace(self._state, self._per_run, self._shared, self._batch.data, length)

    def _evaluate_arguments(self, state: RoundState, cohort: Int[np.ndarray, "runs cohort"]):
        per_run, shared = self._evaluated
        cohorts = pad_to_multiple(cohort, self._batch.groups)
        if not self._is_personalized:
            state = RoundState.of_model(state.variables, state.participation)
        return ((state, cohorts), per_run), shared, self._batch.data


_LARGE_LABEL = 100
"""Root mean square of labels of a regression above which a warning advises to standardize."""


def check_outputs(model: Model, variables: PyTree, data: FederatedData) -> None:
    """Checks that a model has an output for each class; fewer would give NaN losses.

    With sequences of labels, outputs, losses and accuracies need one value for each label.
    """
    has_targets = data.train.has_targets
    if has_targets and model.loss is Model.loss:
        raise ValueError(
            "model: expected a loss for targets, because the labels are floats; use "
            "models.as_regression(model) or models.as_multi_label(model)."
        )
    if not has_targets and model.task != "classification":
        raise ValueError(
            f"model for {model.task}: expected targets, floats [total, outputs], but the labels "
            f"are {data.train.labels.dtype}, which are classes; pass labels.astype(float), "
            "[total, 1] for one target, or a model for classification."
        )
    if model.task == "regression" and model.loss_unit != "1":  # Not `standardize`.
        labels = np.asarray(data.train.labels, np.float64)
        if (size := np.sqrt(np.mean(labels**2))) > _LARGE_LABEL:
            warn(
                f"labels with a mean of {labels.mean():.3g} and a standard deviation of "
                f"{labels.std():.3g}: learning rates are for labels near 1, so that training may "
                f"diverge or take long; use models.as_regression(model, standardize="
                f"data.train.labels), or divide the labels by {size:.1g}."
            )
    if model.task == "multi_label":
        for name in PARTS:
            part = getattr(data, name)
            if part is not None and not np.isin(part.labels, (0, 1)).all():
                raise ValueError(
                    f"{name}.labels span [{np.min(part.labels):g}, {np.max(part.labels):g}]: "
                    "expected 0 and 1 with models.as_multi_label; models.as_regression takes other "
                    "numbers."
                )

    def outputs(variables, features):
        params, state = variables
        return model.apply(params, state, features, train=False, key=None)[0]

    batch = data.num_classes + 1  # Outputs of shape [classes, batch] differ from [batch, classes].
    features, labels = (
        jax.ShapeDtypeStruct((batch, *array.shape[1:]), array.dtype)
        for array in (data.train.features, data.train.labels)
    )
    predicted = jax.eval_shape(outputs, shapes_of_one_run(variables), features)
    shape = getattr(predicted, "shape", ())
    has_axes = len(shape) == 2 or data.train.labels.ndim > 1 or model.loss is not Model.loss
    if shape[:1] != (batch,) or not has_axes or not jnp.issubdtype(predicted.dtype, jnp.floating):
        returned = (
            f"{predicted.dtype}{list(shape)} for {batch} examples"
            if hasattr(predicted, "dtype")
            else type(predicted).__name__
        )
        raise ValueError(
            f"model with outputs {returned}: expected an array of floats whose first axis are the "
            "examples, [batch, outputs], such as logits; return that from apply."
        )
    if has_targets:
        return
    if are_sequences(labels) and predicted.shape[:-1] != labels.shape:
        raise ValueError(
            f"model with outputs {list(predicted.shape[1:])} of an example: expected "
            f"[{labels.shape[1]}, {data.num_classes}], one for each of its labels and classes; "
            "return logits per position, or pass one label per example."
        )
    if (width := predicted.shape[-1]) < data.num_classes:
        raise ValueError(
            f"model with {width} outputs: expected at least {data.num_classes}, one for each "
            "class; widen the last layer."
        )
    if are_sequences(labels):
        for name in ("loss", "accuracy"):
            values = jax.eval_shape(getattr(model, name), predicted, labels)
            if values.shape != labels.shape:
                raise ValueError(
                    f"Model.{name} returns {list(values.shape[1:])} for an example: expected "
                    f"[{labels.shape[1]}], one for each of its labels; return one value per label."
                )


def shapes_of_one_run(tree: PyTree) -> PyTree:
    """Returns the shapes of leaves ``[runs, ...]`` without the axis of runs."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)
