"""Training the head on a frozen base of 10 M parameters.

    python -m experiments.benchmarks.adapters

* ``round``: time of a round beside a plain jitted loop of forward passes of the base and SGD steps
  of the head, over as many minibatches of the same data, measured in alternation;
* ``memory``: growth of resident memory in ``fit``, by clients in parallel and seeds, beyond that
  with a base of the same layers and 28 units, each in a new process (Linux). The caller holds one
  copy of the base before.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_fair as ff
from experiments.benchmarks.memory import MIB, resident
from experiments.benchmarks.timing import (
    alternate,
    federated_round,
    in_new_process,
    print_header,
    print_row,
    random_data,
    run_parts,
)
from fedjax_fair.data import FederatedData
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Model, Variables

COHORT, STEPS, ROUNDS, RATE = 10, 10, 2, 0.01


def network(width: int = 2800) -> tuple[Model, Variables]:
    """Returns a perceptron 784-width-width-10 and variables, by default 10 M parameters."""
    model = ff.models.mlp(10, hidden=(width, width))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    rng = np.random.default_rng(0)
    return model, jax.tree.map(
        lambda leaf: rng.normal(0, 0.02, leaf.shape).astype(leaf.dtype), shapes
    )


def plain_steps(model: Model, rows: jax.Array):
    """A jitted loop of steps of the head on given minibatches ``[steps, batch]``."""

    def loss_fn(head, features, labels):
        logits = features @ head["kernel"] + head["bias"][None]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def run(params, examples):
        def step(head, batch):
            features = model.features(params, {}, examples.features[batch])
            slope = jax.grad(loss_fn)(head, features, examples.labels[batch])
            return jax.tree.map(lambda value, s: value - RATE * s, head, slope), None

        return jax.lax.scan(step, params["head"], rows)[0]

    return jax.jit(run)


def compare_rounds(options) -> None:
    print_header("minibatch | clients in parallel | round, ms | plain loop, ms | ratio")
    data = jax.device_put(random_data((28, 28, 1), 100, 200))
    for batch_size in (10, 50):
        for parallel in (1, COHORT):
            functions = prepare(batch_size, parallel, data)
            ours, plain = alternate(*functions, repeats=options.repeats)
            times = (f"{1000 * each.median / ROUNDS:.1f}" for each in (ours, plain))
            print_row(batch_size, parallel, *times, f"{ours.ratio_to(plain):.3f}")


def prepare(batch_size: int, parallel: int, data: FederatedData) -> list[Callable[[], Any]]:
    """Returns rounds of training, and the plain loop over as many minibatches."""
    model, base = network()
    drawn = np.random.default_rng(0).integers(
        0, len(data.train.labels), (ROUNDS * COHORT * STEPS, batch_size)
    )
    loop, params = plain_steps(model, jnp.asarray(drawn)), jax.device_put(base.params)
    # The base is an argument, as in `fit`.
    round = jax.device_put(
        federated_round(
            ff.models.freeze(model, base, ("head",)), COHORT, batch_size,
            rate=RATE, steps=STEPS, clients_per_batch=parallel,
        )
    )  # fmt: skip
    program = jax.jit(lambda round, state, data: ff.run(round, state, data, ROUNDS)[0].variables)
    state = round.init(jax.random.key(0), data)
    return [lambda: program(round, state, data), lambda: loop(params, data.train)]


def measure_growth(width: int, parallel: int, seeds: int) -> tuple[int, int]:
    """Returns the base and the growth in bytes of two rounds of one step, in this process."""
    data, (model, base) = random_data((28, 28, 1), 100, 10), network(width)
    frozen = ff.models.freeze(model, base, ("head",))
    round = federated_round(frozen, 100, 2, steps=1, clients_per_batch=parallel)
    before = resident("VmRSS")
    ff.fit(round, data, rounds=2, eval_every=2, seeds=range(seeds), train_loss=False)
    return tree_bytes(base), resident("VmHWM") - before


def compare_memory(options) -> None:
    print_header("clients in parallel | seeds | base, MiB | growth, MiB | ratio")
    for parallel, seeds in product((1, 100), (1, 8)):
        (_, small), (base, grown) = (
            in_new_process(measure_growth, width, parallel, seeds) for width in (28, 2800)
        )
        sizes = (f"{size / MIB:.0f}" for size in (base, grown - small))
        print_row(parallel, seeds, *sizes, f"{(grown - small) / base:.2f}")


def main() -> None:
    run_parts(__doc__, {"round": compare_rounds, "memory": compare_memory}, repeats=9)


if __name__ == "__main__":
    main()
