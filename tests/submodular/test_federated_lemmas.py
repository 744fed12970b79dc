"""Tests of mean and variance of directions of sampled clients (Rafiey 2024, Lemmas 3.3 to 4.2)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids

CLIENTS, N, COHORT, SEEDS = 7, 6, 3, 4000
RNG = np.random.default_rng(0)
SCORES = RNG.gamma(0.3, size=(CLIENTS, N)).astype(np.float32)
WEIGHTS = RNG.dirichlet(np.ones(CLIENTS)).astype(np.float32)
PARTITION = matroids.Partition([0, 1, 0, 1, 0, 1], [1, 2])


@pytest.fixture(params=[1, 4], scope="module")
def runs(request):
    """One round of sampled clients for many seeds, of all clients, and of each client alone.

    With one local step it is a round of FedCG, the subject of Lemmas 3.3 and 3.4.
    """
    steps = request.param

    def run(key, scores, **settings):
        return fed.fedcg_plus(key, fed.facility_location(scores), PARTITION, 1, steps, **settings)

    @jax.jit
    def run_all(keys, scores, weights):
        few = partial(run, cohort_size=COHORT, client_weights=weights)
        return (
            jax.vmap(few, in_axes=(0, None))(keys, scores),
            run(keys[0], scores, client_weights=weights),
            jax.vmap(run, in_axes=(None, 0))(keys[0], scores[:, None]),
        )

    keys = jax.random.split(jax.random.key(0), SEEDS)
    return jax.tree.map(np.asarray, run_all(keys, SCORES, jnp.asarray(WEIGHTS)))


def test_clients_take_different_directions(runs):
    """Otherwise the progress would not be random."""
    _, _, alone = runs
    gradient = WEIGHTS @ SCORES  # At the empty set, where the round starts.
    assert np.ptp(alone.directions[:, 0] @ gradient) > 0.1


def test_directions_are_unbiased(runs):
    few, full, _ = runs
    directions = few.directions[:, 0].astype(float)
    errors = directions.std(axis=0) / np.sqrt(SEEDS)
    assert (abs(directions.mean(axis=0) - full.directions[0]) <= 4 * errors + 1e-6).all()


def test_variance_equals_that_of_independent_samples_and_is_below_its_bound(runs):
    few, full, alone = runs
    progress = (alone.directions[:, 0] @ (WEIGHTS @ SCORES)).astype(float)  # Of each client.
    exact = (WEIGHTS @ progress**2 - (WEIGHTS @ progress) ** 2) / COHORT
    squares = (few.progress[:, 0].astype(float) - WEIGHTS @ progress) ** 2
    assert abs(squares.mean() - exact) < 4 * squares.std() / np.sqrt(SEEDS)
    # Exact gradients have sigma 0 in the lemma, and with one step the Lipschitz constant is 0 too.
    rank = PARTITION.rank
    spread, lipschitz = full.spread[0], full.lipschitz[0]
    assert exact <= (6 * rank * spread + 2 * lipschitz * rank**1.5) ** 2 / COHORT
