"""What drawing clients does to a direction (Rafiey 2024, Lemmas 3.3, 3.4, 4.1 and 4.2)."""

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
def drawn(request):
    """One round of clients drawn with many seeds, of all clients, and of each client alone.

    With one local step it is that of FedCG, to which Lemmas 3.3 and 3.4 belong.
    """
    steps = request.param

    def run(key, scores, **settings):
        return fed.fedcg_plus(key, fed.facility_location(scores), PARTITION, 1, steps, **settings)

    @jax.jit
    def runs(keys, scores, weights):
        few = partial(run, cohort_size=COHORT, client_weights=weights)
        return (
            jax.vmap(few, in_axes=(0, None))(keys, scores),
            run(keys[0], scores, client_weights=weights),
            jax.vmap(run, in_axes=(None, 0))(keys[0], scores[:, None]),
        )

    keys = jax.random.split(jax.random.key(0), SEEDS)
    return jax.tree.map(np.asarray, runs(keys, SCORES, jnp.asarray(WEIGHTS)))


def test_clients_take_different_directions(drawn):
    """Otherwise there is no chance in the progress, and nothing to test."""
    _, _, alone = drawn
    gradient = WEIGHTS @ SCORES  # At the empty set, where the round starts.
    assert np.ptp(alone.directions[:, 0] @ gradient) > 0.1


def test_directions_are_unbiased(drawn):
    """In every coordinate, and with them their progress along any gradient."""
    few, full, _ = drawn
    directions = few.directions[:, 0].astype(float)
    errors = directions.std(axis=0) / np.sqrt(SEEDS)
    assert (abs(directions.mean(axis=0) - full.directions[0]) <= 4 * errors + 1e-6).all()


def test_variance_is_that_of_independent_draws_and_below_its_bound(drawn):
    few, full, alone = drawn
    own = (alone.directions[:, 0] @ (WEIGHTS @ SCORES)).astype(float)
    exact = (WEIGHTS @ own**2 - (WEIGHTS @ own) ** 2) / COHORT
    squares = (few.progress[:, 0].astype(float) - WEIGHTS @ own) ** 2
    assert abs(squares.mean() - exact) < 4 * squares.std() / np.sqrt(SEEDS)
    # Gradients are exact, so that the lemma's sigma is 0; with one step there is no bend either.
    rank = PARTITION.rank
    spread, bend = full.spread[0], full.lipschitz[0]
    assert exact <= (6 * rank * spread + 2 * bend * rank**1.5) ** 2 / COHORT
