"""Programs to compile: chunks of rounds and evaluations, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import fedjax_fair as ff
from experiments.benchmarks.peers.networks import CHARACTERS, NETWORKS
from experiments.benchmarks.timing import federated_round
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.evaluation.clients import evaluate
from fedjax_fair.numerics.sketch import CountSketch
from fedjax_fair.parallel.mesh import over_mesh
from fedjax_fair.roles import Aggregator, Model, Selector
from fedjax_fair.selectors.gradients import Stale
from fedjax_fair.training.jitted import over_runs

__all__ = ["FORMS", "ROUNDS", "WORKLOADS", "Workload", "federation", "program"]

ROUNDS = 3  # Of a chunk: no workload takes as many local steps, which is how loops are known.
_MNIST, _CIFAR = (28, 28, 1), (32, 32, 3)


@dataclass(frozen=True)
class Workload:
    """A federation to train.

    Attributes:
        network: Makes the model.
        shape: Of an image, or of a window of characters.
        clients: All clients.
        size: Images of each.
        cohort: Clients that train in a round.
        batch: Images of a local step.
        steps: Local steps.
        selector: Chooses the cohort, from its size.
        aggregator: Sums the updates.
        runs: How many learning rates at once, 0 for a single run.
        evaluates: Whether it is an evaluation, and no training.
        characters: Number of different characters, 0 for images.
    """

    network: Callable[[], Model]
    shape: tuple[int, ...]
    clients: int
    size: int
    cohort: int
    batch: int
    steps: int
    selector: Callable[[int], Selector] = ff.selectors.Uniform
    aggregator: Callable[[], Aggregator] = field(default=ff.aggregators.Mean)
    runs: int = 0
    evaluates: bool = False
    characters: int = 0


def _by_pool(cohort_size: int) -> Selector:
    gradients = Stale(CountSketch(32))
    return ff.selectors.DivFL(cohort_size, candidates="all", pool=1000, gradients=gradients)


def _in_bfloat16(workload: Workload) -> Workload:
    """The same with activations and products of half the bytes."""
    return replace(workload, network=lambda: ff.models.in_bfloat16(workload.network()))


_LENET = Workload(NETWORKS["lenet"], _MNIST, 100, 480, 10, 50, 20)
_MLP = Workload(partial(ff.models.mlp, 10), _MNIST, 100, 480, 10, 50, 20)
_RESNET = Workload(NETWORKS["resnet18"], _CIFAR, 100, 480, 4, 32, 2)
_MANY = replace(_LENET, clients=1600, cohort=160)
_LSTM = Workload(
    partial(ff.models.char_lstm, CHARACTERS), (80,), 100, 60, 10, 10, 6, characters=CHARACTERS
)
WORKLOADS = {
    "mlp": _MLP,
    "w1": _LENET,
    "lenet3": replace(_LENET, shape=_CIFAR),
    "w2": Workload(NETWORKS["cnn"], _CIFAR, 1000, 48, 50, 10, 5),
    "w5": _RESNET,
    "femnist": Workload(partial(ff.models.femnist_cnn, 62), _MNIST, 100, 160, 18, 64, 15),
    "mlp_bfloat16": _in_bfloat16(_MLP),
    "w1_bfloat16": _in_bfloat16(_LENET),
    "w5_bfloat16": _in_bfloat16(_RESNET),
    "subtrunc": replace(_LENET, selector=lambda count: ff.selectors.SubTrunc(count, 0.5, 1.1)),
    "divfl": replace(_LENET, selector=ff.selectors.DivFL),
    "divfl_stale": replace(_LENET, selector=partial(ff.selectors.DivFL, gradients="stale")),
    "equitable": replace(_LENET, aggregator=ff.aggregators.Equitable),
    "sweep": replace(_MLP, runs=64),
    "evaluation": replace(_LENET, evaluates=True),
    "w1_1600": _MANY,
    "divfl_1600": replace(_MANY, selector=partial(ff.selectors.DivFL, gradients="stale")),
    "char_lstm": _LSTM,
    "char_transformer": replace(_LSTM, network=partial(ff.models.char_transformer, CHARACTERS)),
    "million": Workload(
        partial(ff.models.logistic, 10), (60,), 1_000_000, 20, 100, 10, 5, selector=_by_pool
    ),
}


class _FlaxConv(nn.Module):
    """Flax's own layers in the place of `Conv`."""

    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: Any = "SAME"
    use_bias: bool = True
    relu_pool: bool = False
    kernel_init: Any = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x):
        settings = {name: getattr(self, name) for name in ("strides", "padding", "use_bias")}
        x = nn.Conv(self.features, self.kernel_size, kernel_init=self.kernel_init, **settings)(x)
        return nn.max_pool(nn.relu(x), (2, 2), (2, 2)) if self.relu_pool else x


@contextmanager
def _flax() -> Iterator[None]:
    of_resnet = partial(_FlaxConv, use_bias=False, kernel_init=nn.initializers.he_normal())
    with (
        mock.patch("fedjax_fair.models.classic.Conv", _FlaxConv),
        mock.patch("experiments.benchmarks.peers.networks.Conv", _FlaxConv),
        mock.patch("fedjax_fair.models.resnet._conv", of_resnet),
    ):
        yield


FORMS = {
    "ours": (nullcontext, None),
    "ours, vmap": (nullcontext, 10**6),
    "ours, loop": (nullcontext, 1),
    "Flax, vmap": (_flax, 10**6),
    "Flax, loop": (_flax, 1),
}
"""Layers, and ``clients_per_batch``."""


def program(workload: Workload, form: str, mesh: Mesh | None = None) -> tuple[Callable, Any]:
    """Returns the function to compile, and the shapes of its arguments other than the data.

    Call it, and trace the function, within ``tracing_for``.
    """
    layers, clients_per_batch = FORMS[form]
    cohort = workload.cohort
    model = workload.network()
    if clients_per_batch is not None:
        clients_per_batch = min(clients_per_batch, cohort)

    def round_of(rate):
        return federated_round(
            model, workload.selector(cohort), workload.batch, rate=rate, steps=workload.steps,
            aggregator=workload.aggregator(), clients_per_batch=clients_per_batch,
        )  # fmt: skip

    round = round_of(0.05)
    with layers():
        state = jax.eval_shape(round.init, jax.random.key(0), federation(workload))

    def measured(variables, data):
        with layers():
            participation = jnp.zeros(workload.clients, jnp.int32)
            return evaluate(model, variables, data, participation, jnp.zeros(cohort, jnp.int32))

    def chunk(state, data):
        with layers():
            return ff.run(round, state, data, ROUNDS)

    def sweep(own, data, store, shared):
        state, rate = own
        with layers():
            return ff.run(round_of(rate), state, data, ROUNDS), store

    if workload.runs:
        runs = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((workload.runs, *leaf.shape), leaf.dtype),
            (state, jax.ShapeDtypeStruct((), np.float32)),
        )
        mapped = over_runs(sweep, mesh)
        return (lambda runs, data: mapped(runs, data)[0]), runs
    function, values = (measured, state.variables) if workload.evaluates else (chunk, state)
    return (function if mesh is None else over_mesh(function, mesh)), values


def federation(workload: Workload) -> FederatedData:
    """A federation on the host, of zeros that take no memory before they are read."""

    def examples(per_client):
        total = workload.clients * per_client
        kind = np.float32 if len(workload.shape) == 1 else np.uint8
        features = np.zeros((total, *workload.shape), np.int32 if workload.characters else kind)
        labels = np.zeros((total, *workload.shape) if workload.characters else total, np.int32)
        sizes = np.full(workload.clients, per_client, np.int32)
        offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
        order = np.arange(total, dtype=np.int32)
        arrays: list[Any] = [features, labels, order, offsets, sizes]
        return ClientExamples(*arrays)

    test = examples(max(1, workload.size // 5))
    classes = workload.characters or 10
    return FederatedData(examples(workload.size), test, None, classes, "zeros")
