"""Overhead of a federated round: ``python -m experiments.benchmarks.round``.

Ratios of times measured in alternation in this process:

* local training inside ``simulate.run`` against a plain jitted ``lax.scan`` of SGD steps over as
  many minibatches of the same data, without clients;
* an evaluation of every client against one inference pass over the same examples;
* a round with 10 participants out of 1,000 and out of 1,000,000 clients.

``--only clients_per_batch`` compares values of this setting instead.
"""

from __future__ import annotations

import resource
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_fair as ff
from experiments.benchmarks.timing import (
    RepeatedRounds,
    alternate,
    federated_round,
    random_data,
    run_parts,
)
from fedjax_fair.evaluation.clients import client_performance
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Model

WORKLOADS = {
    # name: (model, image shape, clients, cohort, examples per client, steps, batch, rounds a call)
    "LeNet, batch 10": (ff.models.lenet, (28, 28, 1), 100, 10, 600, 20, 10, 5),
    "LeNet, batch 50": (ff.models.lenet, (28, 28, 1), 100, 10, 600, 20, 50, 2),
    "MLP, batch 10": (ff.models.mlp, (28, 28, 1), 100, 10, 600, 20, 10, 10),
    "MLP, batch 50": (ff.models.mlp, (28, 28, 1), 100, 10, 600, 20, 50, 5),
    # smaller, since a step takes a quarter of a second; fewer steps only make a round look worse
    "ResNet-18, batch 10": (ff.models.resnet18, (32, 32, 3), 10, 2, 60, 5, 10, 1),
}
SMALL_WORKLOADS = {
    "MLP 64-64-10, batch 10": (
        partial(ff.models.mlp, hidden=(64,)), (8, 8, 1), 50, 10, 30, 15, 10, 10,
    ),
    "logistic 784-10, batch 10": (ff.models.logistic, (28, 28, 1), 50, 10, 30, 15, 10, 10),
}  # fmt: skip
RATE = 0.01


def plain_sgd(model: Model, rows: jax.Array):
    """A jitted loop of SGD steps on given minibatches ``[steps, batch]``, one after another."""

    def loss_fn(params, features, labels):
        logits, _ = model.apply(params, {}, features, train=True, key=jax.random.key(0))
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(params, batch, examples):
        slope = jax.grad(loss_fn)(params, examples.features[batch], examples.labels[batch])
        return jax.tree.map(lambda value, s: value - RATE * s, params, slope), None

    return jax.jit(
        lambda params, examples: jax.lax.scan(partial(step, examples=examples), params, rows)[0]
    )


def prepare(name: str, clients_per_batch: tuple[int | None, ...] = (None,)):
    """The plain loop of a workload, its round in every setting, and the examples of a call."""
    make_model, shape, num_clients, cohort_size, size, steps, batch_size, rounds = (
        WORKLOADS | SMALL_WORKLOADS
    )[name]
    model, data = make_model(num_classes=10), random_data(shape, num_clients, size)
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, num_clients * size, (rounds * cohort_size * steps, batch_size))
    params = model.init(jax.random.key(0), data.train.features[:1]).params
    loop = plain_sgd(model, jnp.asarray(drawn))

    def federated(setting):
        round = federated_round(
            model, cohort_size, batch_size, rate=RATE, steps=steps, clients_per_batch=setting
        )
        state = round.init(jax.random.key(0), data)
        program = jax.jit(lambda state, data: ff.run(round, state, data, rounds)[0].variables)
        return lambda: program(state, data)

    return lambda: loop(params, data.train), [federated(n) for n in clients_per_batch], drawn.size


def compare_training(name: str, options) -> None:
    plain, [federated], examples = prepare(name)
    ours, loop = alternate(federated, plain, repeats=options.repeats)
    print(
        f"{name:22s} round {examples / ours.median:9,.0f} examples/s   plain scan "
        f"{examples / loop.median:9,.0f}   ratio {loop.ratio_to(ours):.3f}"
    )


def compare_clients_per_batch(options) -> None:
    """The speed of a round relative to the plain loop, by ``clients_per_batch``."""
    settings = (1, 2, 5, 10)
    for name in (*SMALL_WORKLOADS, *(name for name in WORKLOADS if "ResNet" not in name)):
        plain, rounds, _ = prepare(name, settings)
        loop, *ours = alternate(plain, *rounds, repeats=options.repeats)
        ratios = zip(settings, (loop.ratio_to(times) for times in ours), strict=True)
        print(f"{name:26s}", *(f"{n}: {ratio:.3f}" for n, ratio in ratios), sep="  ")


def compare_evaluation(options) -> None:
    model, data = ff.models.lenet(10), random_data((28, 28, 1), 100, 600)
    variables = model.init(jax.random.key(0), data.train.features[:1])
    test = data.test
    chunks = jnp.arange(test.labels.size).reshape(-1, 250)

    def infer(rows):
        logits, _ = model.apply(*variables, test.features[rows], train=False, key=None)
        return logits

    flat = jax.jit(lambda: jax.lax.map(infer, chunks))
    clients = jax.jit(lambda: client_performance(model, variables, test))
    ours, plain = alternate(clients, flat, repeats=options.repeats)
    print(
        f"{'evaluation, LeNet':22s} all clients {test.labels.size / ours.median:9,.0f} examples/s "
        f"  flat pass {test.labels.size / plain.median:9,.0f}   ratio {plain.ratio_to(ours):.3f}"
    )


def compare_populations(options) -> None:
    """The same round for a thousand and for a million clients of four examples each."""
    timed = {}
    for num_clients in (1_000, 1_000_000):
        data = jax.device_put(ff.data.synthetic(1.0, 1.0, num_clients, mean_size=5))
        round = federated_round(ff.models.logistic(10), 10, 4, rate=RATE, epochs=20)
        # A round is measured, and not the transfer of the participation counts.
        timed[num_clients] = RepeatedRounds(round, data, 50)
        owned = tree_bytes(data)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{num_clients:9,d} clients: data {owned / 2**30:.2f} GiB, peak memory {peak:.2f} GiB"
        )
    small, large = alternate(*timed.values(), repeats=options.repeats)
    print(
        f"{'a round':22s} of 1,000 clients {small.median * 20:.3f} ms   of 1,000,000 "
        f"{large.median * 20:.3f} ms   ratio {large.ratio_to(small):.3f}"
    )


def main() -> None:
    parts = {name: partial(compare_training, name) for name in WORKLOADS}
    parts |= {"evaluation": compare_evaluation, "populations": compare_populations}
    others = {"clients_per_batch": compare_clients_per_batch}
    run_parts(__doc__, parts | others, repeats=9, usual=parts)


if __name__ == "__main__":
    main()
