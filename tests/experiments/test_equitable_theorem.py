"""Theorem 1 of the Equitable-FL paper: its bound as printed, where it holds and where it fails."""

import jax
import numpy as np
import pytest

from experiments import theorem1
from experiments.reproduction import equitable_theorem as theorem


def test_no_curvature_exceeds_the_smoothness():
    data, smoothness = theorem.make_data(0)
    features = np.asarray(data.train.features).reshape(sum(theorem.GROUPS), theorem.EXAMPLES, -1)
    grams = np.einsum("cei,cej->cij", features, features) / theorem.EXAMPLES
    bounds = (0.25 + theorem1.SCORE_CURVATURE) * np.linalg.eigvalsh(grams)[:, -1]
    np.testing.assert_allclose(bounds.max(), smoothness, rtol=1e-5)
    assert np.bincount(data.groups).tolist() == list(theorem.GROUPS)


@pytest.mark.parametrize("pull", [0.0, 0.4])
def test_the_noise_is_that_of_equation_8(pull):
    K, L, E, C, R = 17, 1.7, theorem.STEPS, len(theorem.GROUPS), 1.3
    printed = (
        L**0.5 / (2 * (3 * K) ** 0.5 * E)
        + 1 / (36 * E**2 * K)
        + (2 + E) * L / (36 * K)
        + pull / (6 * E * L * K)
        + (L**2 + pull / 2) * R / (18 * C * E * L * K)
    )
    np.testing.assert_allclose(theorem.noise_factor(K, L, pull, R), printed)


def test_the_law_of_iterates_is_the_printed_one():
    K, L, E, mu = 11, 1.3, 5, 0.3
    eta = 1 / (4 * E * (3 * L * K) ** 0.5)
    zeta = (
        eta**2
        * E**2
        * (9 * eta * L**2 * E + 4 * eta * mu * E + 6 * L * (1 + 4 * eta**2 * mu**2 * E**2 / 18))
    )
    law = [(1 + zeta) ** (K - 1 - k) for k in range(K)]
    np.testing.assert_allclose(theorem.iterates(K, L, mu, E), np.array(law) / np.sum(law))


def test_the_bound_holds_where_the_smoothness_is_about_one():
    table = theorem.measure([9], seeds=2)
    assert (table["left"] > 0).all()
    assert (table["left"] < table["right"]).all()
    np.testing.assert_allclose(table["right"], table["start"] + table["noise"])
    assert (table["both groups"] == 1).all()  # Assumption 4
    assert (table["groups found"] == 1).all()


def test_two_clients_of_large_smoothness_exceed_the_bound():
    left, right = theorem.large_smoothness(2000, 4000)
    assert left > 10 * right
    held, bound = theorem.large_smoothness(2, 4)
    assert held < bound
    with pytest.raises(ValueError, match=r"rounds=100: expected at least 3 L / 32 = 187\.5"):
        theorem.large_smoothness(2000, 100)


def test_the_expectation_of_the_counterexample_is_that_of_runs():
    smoothness, rounds = 50.0, 20
    rate = 1 / (4 * np.sqrt(3 * smoothness * rounds))
    signs = np.asarray(jax.random.rademacher(jax.random.key(0), (100_000, rounds)))
    weights, squares = np.zeros(len(signs)), []
    for own in signs.T:
        squares.append(smoothness**2 * weights**2)
        weights = weights - rate * smoothness * (weights - own)
    each = np.stack(squares, axis=1) @ theorem.iterates(rounds, smoothness, 0.0, 1)
    left, _ = theorem.large_smoothness(smoothness, rounds)
    assert abs(left - each.mean()) < 5 * each.std() / np.sqrt(len(each))
    # And the step is the gradient of the loss of the client that trains.
    slope = jax.grad(lambda w: smoothness / 2 * (w - 1) ** 2)(0.3)
    np.testing.assert_allclose(slope, smoothness * (0.3 - 1), rtol=1e-6)
