"""Theorem 1 of *Equitable Federated Learning with Activation Clustering*, term by term.

    python -m experiments.reproduction.equitable_theorem

The theorem bounds the squared gradient at a random one of ``K`` rounds with ``E`` local steps of
size ``1 / (4 E sqrt(3 L K))`` and a pull ``mu < 1``. With ``R`` for the sum of ``1 / |gamma_q|``
over the ``C`` clusters of the cohort, the bound is ``1 / (1 - mu)`` times

    16 sqrt(3L) f(w_0) / sqrt(K)
    + (sqrt(L) / (2 sqrt(3K) E) + (1 / E^2 + (2 + E) L) / (36 K) + mu / (6 E L K)
       + (L^2 + mu / 2) R / (18 C E L K)) sigma^2

All quantities are measured while the library trains clients of two groups, on losses with known
``L`` (``experiments.theorem1``). Equation 11 of the proof has a factor ``2 L`` that equation 12
drops; ``large_smoothness`` evaluates a deterministic example whose ``L`` is so large that this
matters.
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
from jaxtyping import Array, Bool, Float, Int, Key

from experiments.theorem1 import bounded_score, classification
from fedjax_fair import aggregators, selectors, solvers
from fedjax_fair.data import FederatedData
from fedjax_fair.rounds.round import Round

GROUPS = (8, 12)
EXAMPLES, WIDTH, COHORT, STEPS, BATCH = 30, 10, 8, 5, 5
PULLS = (0.0, 0.1, 0.5)


class Trace(NamedTuple):
    """Measurements at the start of every round.

    Attributes:
        loss: ``f``, in which both groups have equal weights.
        gradient: The squared gradient of ``f``.
        noise: Variance of a minibatch gradient, the largest of any client.
        members: How many of each group are in the cohort.
        found: Whether the clusters are the groups.
    """

    loss: Float[Array, " rounds"]
    gradient: Float[Array, " rounds"]
    noise: Float[Array, " rounds"]
    members: Int[Array, "rounds groups"]
    found: Bool[Array, " rounds"]


def make_data(seed: int) -> tuple[FederatedData, float]:
    """Returns two groups that differ in inputs and labels, and the smoothness of their losses."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(len(GROUPS)), GROUPS)
    shifts = 0.3 * rng.normal(size=(len(GROUPS), 1, WIDTH))
    features = shifts[groups] + 0.6 * rng.normal(size=(groups.size, EXAMPLES, WIDTH))
    truth = rng.normal(size=WIDTH) + rng.normal(size=(len(GROUPS), 1, WIDTH))
    return classification(features, truth[groups], groups)


def follow(
    data: FederatedData, smoothness: float, rounds: int, pull: float, key: Key[Array, ""]
) -> Trace:
    """Runs Equitable-FL with the step size of the theorem."""
    rate = 1 / (4 * STEPS * np.sqrt(3 * smoothness * rounds))
    round = Round(
        bounded_score(),
        selectors.Uniform(COHORT),
        solvers.SGD(rate, BATCH, steps=STEPS, prox=pull, replacement=True),
        aggregators.Equitable(len(GROUPS)),
    )
    features = jnp.asarray(data.train.features).reshape(sum(GROUPS), EXAMPLES, WIDTH)
    labels = jnp.asarray(data.train.labels).reshape(sum(GROUPS), EXAMPLES)
    groups = jnp.asarray(data.groups)
    share = 1 / (len(GROUPS) * jnp.asarray(GROUPS)[groups])

    def step(state, _):
        params = state.variables.params

        def losses(params):
            logits, _ = round.model.apply(params, {}, features, train=True, key=None)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels)

        def total(params):
            return share @ jnp.mean(losses(params), axis=1)

        value, slope = jax.value_and_grad(total)(params)
        each = jax.jacobian(losses)(params)["head"]
        noise = jnp.max(jnp.sum(jnp.var(each, axis=1), axis=-1)) / BATCH
        state, info = round.step(state, data)
        members = jnp.bincount(groups[info.clients], length=len(GROUPS))
        found = info.aggregator["nmi"] > 0.99
        return state, Trace(value, jnp.sum(slope["head"] ** 2), noise, members, found)

    return jax.lax.scan(step, round.init(key, data), length=rounds)[1]


def terms(trace: Trace, smoothness: float, pull: float) -> dict[str, float]:
    """Returns both sides of the theorem, with means over seeds for expectations."""
    rounds = trace.loss.shape[-1]
    sizes = np.asarray(trace.members, float)
    both = np.all(sizes > 0, axis=-1)
    inverse = np.max(np.sum(1 / np.maximum(sizes, 1), axis=-1)[both])
    law, gradient = iterates(rounds, smoothness, pull, STEPS), np.asarray(trace.gradient)
    start = 16 * np.sqrt(3 * smoothness / rounds) * float(np.mean(trace.loss[..., 0]))
    variance = float(np.max(trace.noise))
    noise = variance * noise_factor(rounds, smoothness, pull, inverse)
    return {
        "K": rounds,
        "mu": pull,
        "left": float(np.mean(gradient, axis=0) @ law),
        "right": (start + noise) / (1 - pull),
        "start": start / (1 - pull),
        "noise": noise / (1 - pull),
        "both groups": float(np.mean(both)),
        "groups found": float(np.mean(np.asarray(trace.found)[both])),
    }


def iterates(rounds: int, smoothness: float, pull: float, steps: int) -> np.ndarray:
    """Returns the probability of each round in the theorem."""
    rate = 1 / (4 * steps * np.sqrt(3 * smoothness * rounds))
    reach = rate * steps
    inner = 9 * reach * smoothness**2 + 4 * reach * pull
    zeta = reach**2 * (inner + 6 * smoothness * (1 + 4 * (reach * pull) ** 2 / 18))
    law = (1 + zeta) ** np.arange(rounds - 1, -1, -1)
    return law / law.sum()


def noise_factor(rounds: int, smoothness: float, pull: float, inverse: float) -> float:
    """Returns the factor of the minibatch variance, apart from ``1 / (1 - mu)``.

    Args:
        rounds: ``K``.
        smoothness: ``L``.
        pull: ``mu``.
        inverse: ``R``, the sum of the inverse sizes of the clusters.
    """
    per_round = (
        (1 / STEPS**2 + (2 + STEPS) * smoothness) / 36
        + pull / (6 * STEPS * smoothness)
        + (smoothness**2 + pull / 2) * inverse / (18 * len(GROUPS) * STEPS * smoothness)
    )
    return np.sqrt(smoothness / (3 * rounds)) / (2 * STEPS) + per_round / rounds


def large_smoothness(smoothness: float, rounds: int) -> tuple[float, float]:
    """Returns both sides for two clients with opposite optima, one of which trains per round.

    Client ``+`` and client ``-`` are one cluster, with the losses ``L / 2 (w -+ 1)^2``; they take
    one step with their full gradient, so that ``E = C = 1`` and ``sigma = mu = 0``. From ``w = 0``
    a round maps ``E[w^2]`` to ``(1 - eta L)^2 E[w^2] + (eta L)^2``, and
    ``f(w) = L / 2 (w^2 + 1)``: the expectation of the theorem is exact.

    Raises:
        ValueError: If there are fewer rounds than the theorem assumes.
    """
    if rounds < 3 * smoothness / 32:
        raise ValueError(f"rounds={rounds}: expected at least 3 L / 32 = {3 * smoothness / 32}.")
    reach = smoothness / (4 * np.sqrt(3 * smoothness * rounds))
    square, left = 0.0, 0.0
    for probability in iterates(rounds, smoothness, 0.0, 1):
        left += probability * smoothness**2 * square
        square = (1 - reach) ** 2 * square + reach**2
    return left, 16 * np.sqrt(3 * smoothness / rounds) * smoothness / 2


def measure(rounds: list[int], seeds: int) -> pd.DataFrame:
    """Returns a row per proximal strength and number of rounds."""
    data, smoothness = make_data(0)
    rows = []
    for pull in PULLS:
        for count in rounds:
            run = jax.jit(jax.vmap(partial(follow, data, smoothness, count, pull)))
            trace = run(jax.random.split(jax.random.key(0), seeds))
            rows.append(terms(trace, smoothness, pull))
    return pd.DataFrame(rows)


def main() -> None:
    """Prints and writes both sides, and where the theorem fails."""
    parser = argparse.ArgumentParser(description="Theorem 1 of Equitable-FL, term by term")
    parser.add_argument("--rounds", type=int, nargs="+", default=[9, 36, 144, 576, 2304])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    options = parser.parse_args()
    table = measure(options.rounds, options.seeds)
    table.to_csv(options.output / "equitable-theorem.csv", index=False, float_format="%.6g")
    print(f"L = {make_data(0)[1]:.3f}")
    print(table.to_string(index=False, float_format="%.4g"))
    for smoothness in (2, 20, 200, 2000, 20000):
        rounds = 2 * smoothness
        left, right = large_smoothness(smoothness, rounds)
        print(f"L = {smoothness}, K = {rounds}: left {left:.4g}, right {right:.4g}")


if __name__ == "__main__":
    main()
