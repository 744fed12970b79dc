"""Theorem 1 of Castillo et al. (2024), term by term: ``python -m experiments.theorem1``.

The theorem bounds the squared gradient at a random iterate of SubTrunc and UnionFL after ``K``
rounds of ``E`` local steps of size ``1 / (L E sqrt(K))``:

    12 L f(w_0) / sqrt(K)  +  (2/(EnK) + 3/K + 4/(En sqrt(K))) sigma^2  +  (4 + 4/sqrt(K)) gamma

All quantities are measured on a problem with known ``L``: binary classification of Gaussian points
with the logistic loss of a bounded score ``s(u) = 2 tanh(u / 2)``, ``u = x . w``. It is smooth,
nonnegative and not convex; since ``|s'| <= 1``, ``|s''| <= 0.385`` and the logistic loss has slopes
up to 1 and curvature up to 1/4, ``L = 0.635 * max_i lambda_max(X_i' X_i / m)``.

``gamma`` bounds the bias of a cohort, the squared distance of its mean minibatch gradient from that
of all clients, each at its local iterate (equation 33 of the paper needs the square, which
Assumption 3 omits). Therefore all clients train, but only the cohort is aggregated.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jaxtyping import Array, Float

from fedjax_fair import selectors
from fedjax_fair.data import FederatedData, from_arrays
from fedjax_fair.roles import LocalResult, Model, Selector, Variables
from fedjax_fair.rounds.round_context import make_context

CLIENTS, EXAMPLES, WIDTH = 20, 30, 10
COHORT, STEPS, BATCH = 5, 5, 5
SELECTORS = {
    "subtrunc": selectors.SubTrunc(COHORT, 0.5, candidates=COHORT),
    "unionfl": selectors.UnionFL(COHORT, 1.0, 2, candidates=COHORT),
    "full": selectors.Full(),  # Without bias, for comparison.
}
SCORE_CURVATURE = 4 / (3 * np.sqrt(3)) / 2  # Of s, at most.


class Trace(NamedTuple):
    """Measurements in every round.

    Attributes:
        loss: ``f`` at the start of the round.
        gradient: The squared gradient of ``f`` there.
        bias: Squared bias of the cohort, mean over local steps.
        noise: Variance of a minibatch gradient, the largest of any client at any local step.
    """

    loss: Float[Array, " rounds"]
    gradient: Float[Array, " rounds"]
    bias: Float[Array, " rounds"]
    noise: Float[Array, " rounds"]


def make_data(seed: int) -> tuple[FederatedData, float]:
    """Returns clients that differ in inputs and labels, and the smoothness of their losses."""
    rng = np.random.default_rng(seed)
    shifts = 0.3 * rng.normal(size=(CLIENTS, 1, WIDTH))
    features = shifts + rng.normal(size=(CLIENTS, EXAMPLES, WIDTH))
    truth = rng.normal(size=WIDTH) + rng.normal(size=(CLIENTS, 1, WIDTH))
    return classification(features, truth)


def classification(
    features: np.ndarray, truth: np.ndarray, groups: np.ndarray | None = None
) -> tuple[FederatedData, float]:
    """Labels points by a linear function per client.

    Args:
        features: Points, ``[clients, examples, width]``.
        truth: Coefficients of the functions, ``[clients, 1, width]``.
        groups: Groups of the clients.

    Returns:
        The federated dataset, tested on the training examples, and the smoothness ``L``.
    """
    clients, examples, width = features.shape
    labels = (np.sum(features * truth, axis=-1) > 0).astype(np.int32).ravel()
    grams = features.transpose(0, 2, 1) @ features / examples
    smoothness = (0.25 + SCORE_CURVATURE) * float(np.linalg.eigvalsh(grams).max())
    points = features.reshape(-1, width).astype(np.float32)
    rows = list(np.arange(len(points)).reshape(clients, examples))
    tests = {"test_features": points, "test_labels": labels, "test_client_indices": rows}
    data = from_arrays(points, labels, rows, **tests, groups=groups)
    return jax.tree.map(jnp.asarray, data), smoothness


def bounded_score() -> Model:
    """Returns a model with logits 0 and a bounded linear score."""

    def init(key, x):
        return Variables({"head": jax.random.normal(key, x.shape[-1:])}, {})

    def apply(params, state, x, *, train, key):
        score = 2 * jnp.tanh(x @ params["head"] / 2)
        return jnp.stack([jnp.zeros_like(score), score], axis=-1), state

    return Model.from_functions(init, apply, features=lambda params, state, x: x)


def follow(
    selector: Selector,
    data: FederatedData,
    smoothness: float,
    rounds: int,
    key: Array,
    batch: int | None = BATCH,
) -> tuple[Array, Trace]:
    """Runs the algorithm of the paper; returns the last iterate and the measurements.

    Local minibatches are drawn with replacement, or are all examples where ``batch`` is None.
    """
    model = bounded_score()
    rate = 1 / (smoothness * STEPS * np.sqrt(rounds))
    features = data.train.features.reshape(CLIENTS, EXAMPLES, WIDTH)
    labels = data.train.labels.reshape(CLIENTS, EXAMPLES)
    key_init, key_rounds = jax.random.split(key)

    def loss(weights, x, y):
        logits, _ = model.apply({"head": weights}, {}, x, train=True, key=None)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))

    def total(weights):
        return jnp.mean(jax.vmap(partial(loss, weights))(features, labels))

    def context(round, weights):
        return make_context(model, round, Variables({"head": weights}, {}), data)

    def local(weights, x, y, key):
        def step(weights, step_key):
            rows = jnp.arange(EXAMPLES)
            if batch is not None:
                rows = jax.random.randint(step_key, (batch,), 0, EXAMPLES)
            gradient = jax.grad(loss)(weights, x[rows], y[rows])
            each = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, x[:, None], y[:, None])
            noise = jnp.sum(jnp.var(each, axis=0)) / batch if batch else jnp.zeros(())
            return weights - rate * gradient, (gradient, noise)

        return jax.lax.scan(step, weights, jax.random.split(key, STEPS))[1]

    def step(carry, round):
        weights, state = carry
        key_select, key_local = jax.random.split(jax.random.fold_in(key_rounds, round))
        cohort, state, _ = selector.select(key_select, state, context(round, weights))
        keys = jax.random.split(key_local, CLIENTS)
        gradients, noise = jax.vmap(partial(local, weights))(features, labels, keys)
        chosen = jnp.mean(gradients[cohort.clients], axis=0)
        bias = jnp.mean(jnp.sum((chosen - jnp.mean(gradients, axis=0)) ** 2, axis=-1))
        value, slope = jax.value_and_grad(total)(weights)
        update = -rate * jnp.sum(chosen, axis=0)
        after = weights + update
        sent = jnp.broadcast_to(update, (cohort.clients.size, update.size))
        done = jnp.full(cohort.clients.shape, STEPS)
        results = LocalResult(Variables({"head": sent}, {}), jnp.zeros(done.shape), done)
        state = selector.observe(state, cohort, results, context(round, weights))
        return (after, state), Trace(value, jnp.sum(slope**2), bias, jnp.max(noise))

    start = model.init(key_init, features[0]).params["head"]
    state = selector.init(context(jnp.zeros((), jnp.int32), start))
    (weights, _), trace = jax.lax.scan(step, (start, state), jnp.arange(rounds, dtype=jnp.int32))
    return weights, trace


def terms(trace: Trace, smoothness: float, rounds: int) -> dict[str, float]:
    """Returns both sides of the theorem, with means over seeds for expectations."""
    root = np.sqrt(rounds)
    rate = 1 / (smoothness * STEPS * root)
    reach = rate * smoothness * STEPS
    zeta = reach**2 * 9 * reach / 4
    law = (1 + zeta) ** np.arange(rounds - 1, -1, -1)
    mean = [np.asarray(part, np.float64).mean(axis=0) for part in trace]
    noise, gamma = float(np.max(trace.noise)), float(mean[2].max())
    shared = 1 / (STEPS * CLIENTS)
    right = {
        "start": 12 * smoothness * mean[0][0] / root,
        "noise": (2 * shared / rounds + 3 / rounds + 4 * shared / root) * noise,
        "bias": (4 + 4 / root) * gamma,
    }
    return {
        "K": rounds,
        "left": float(law @ mean[1] / law.sum()),
        "right": sum(right.values()),
        **right,
        "gamma": gamma,
    }


def measure(rounds: list[int], seeds: int) -> pd.DataFrame:
    """Returns a row per selector and number of rounds."""
    data, smoothness = make_data(0)
    rows = []
    for name, selector in SELECTORS.items():
        for count in rounds:
            keys = jax.random.split(jax.random.key(0), seeds)
            run = jax.jit(jax.vmap(partial(follow, selector, data, smoothness, count)))
            rows.append({"selector": name, **terms(run(keys)[1], smoothness, count)})
    return pd.DataFrame(rows)


def main() -> None:
    """Prints a table and the slopes over the number of rounds."""
    parser = argparse.ArgumentParser(description="Theorem 1 of Castillo et al., term by term")
    parser.add_argument("--rounds", type=int, nargs="+", default=[9, 36, 144, 576, 2304, 9216])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    options = parser.parse_args()
    if min(options.rounds) < 9:
        parser.error(f"--rounds {min(options.rounds)}: the theorem needs at least 9.")
    table = measure(options.rounds, options.seeds)
    options.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.output / "theorem1.csv", index=False, float_format="%.6g")
    print(table.to_string(index=False, float_format="%.4g"))
    for name, rows in table.groupby("selector"):
        slopes = {
            side: np.polyfit(np.log(rows["K"]), np.log(rows[side]), 1)[0]
            for side in ("left", "right", "start")
        }
        print(f"{name}, slope over K:", ", ".join(f"{k} {v:.2f}" for k, v in slopes.items()))


if __name__ == "__main__":
    main()
