"""The mixture of agnostic learning on its own: its step, its draws, and what may go wrong."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation, nearest_mixture
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_fair import selectors
from fedjax_fair.roles import Cohort, LocalResult, Variables

TRAIN = make_federation().train
DRFA = selectors.DRFA(0.1, cohort_size=4, local_steps=3)


def six(elements):
    return st.lists(elements, min_size=6, max_size=6)


@cache
def afl_select():
    def select(step, mixture, losses):
        context = make_context(TRAIN, losses=losses)
        return selectors.Agnostic(step).select(jax.random.key(0), mixture, context)

    return jax.jit(select)


@settings(deadline=None)
@given(
    step=st.sampled_from([0.0, 0.01, 1.0, 1e4]),
    before=six(st.integers(0, 5)).filter(any),
    losses=six(st.floats(0, 100, width=32)),
)
def test_the_mixture_climbs_and_is_projected(step, before, losses):
    mixture = np.array(before, np.float32) / sum(before)
    cohort, after, info = afl_select()(np.float32(step), mixture, np.array(losses, np.float32))
    expected = nearest_mixture(mixture + np.float64(step) * np.array(losses))
    # Single precision resolves the values before projection to 1e-7 of the largest.
    np.testing.assert_allclose(after, expected, atol=1e-6 * max(1, step * max(losses)))
    np.testing.assert_allclose(np.sum(after), 1, rtol=1e-6)
    assert (after >= 0).all()
    np.testing.assert_array_equal(cohort.weights, after)
    np.testing.assert_array_equal(cohort.clients, range(6))
    np.testing.assert_allclose(info["effective_clients"], 1 / (after**2).sum(), rtol=1e-5)


def test_a_large_step_leaves_the_highest_loss_and_equal_losses_change_nothing():
    mixture = np.float32([0.1, 0.0, 0.3, 0.2, 0.4, 0.0])
    _, after, _ = afl_select()(np.float32(1e4), mixture, np.float32([1, 2, 3, 5, 2, 4]))
    np.testing.assert_array_equal(after, np.eye(6)[3])
    _, after, _ = afl_select()(np.float32(0.5), mixture, np.full(6, 3, np.float32))
    np.testing.assert_allclose(after, mixture, atol=1e-6)


def test_the_projection_counts_the_last_kept_client():
    """A known wrong threshold leaves out one client of its sum, and gives 1.025 here."""
    zeros = np.zeros(6, np.float32)
    _, after, _ = afl_select()(np.float32(1), zeros, np.float32([1.2, 0.15, 0, 0, 0, 0]))
    np.testing.assert_allclose(after, np.eye(6)[0], atol=1e-6)


def test_a_loss_that_is_not_finite_leaves_the_mixture_sound():
    mixture, losses = np.full(6, 1 / 6), np.array([1.0, np.nan, 1.0, np.inf, 0.0, 1.0])
    _, after, _ = afl_select()(np.float32(0.1), np.float32(mixture), np.float32(losses))
    np.testing.assert_allclose(after, np.where([1, 0, 1, 0, 0, 1], 13 / 60, 7 / 60), rtol=1e-5)


def test_draws_follow_the_mixture_and_reports_do_not():
    context = make_context(TRAIN)
    mixture = np.array([0.0, 0.6, 0.0, 0.3, 0.1, 0.0], np.float32)

    @jax.jit
    def select(mixture):
        state = DRFA.init(context)._replace(mixture=mixture)
        keys = jax.random.split(jax.random.key(0), 2000)
        return jax.vmap(lambda key: DRFA.select(key, state, context))(keys)

    cohort, state, _ = select(mixture)

    def frequencies(values, count):
        return np.bincount(np.ravel(values), minlength=count) / np.size(values)

    # Standard deviations are at most 0.006 and 0.011.
    np.testing.assert_allclose(frequencies(cohort.clients, 6), mixture, atol=0.025)
    np.testing.assert_allclose(frequencies(state.reporting, 6), np.full(6, 1 / 6), atol=0.025)
    steps = frequencies(cohort.instructions["snapshot_step"][:, 0], 4)
    np.testing.assert_allclose(steps[1:], np.full(3, 1 / 3), atol=0.045)
    assert set(np.unique(cohort.clients)) == {1, 3, 4}
    assert all(len(set(row)) == 4 for row in np.asarray(state.reporting).tolist())


def test_a_diverged_snapshot_leaves_the_mixture_alone():
    context = make_context(TRAIN, Variables({"w": jnp.zeros(2)}, {}), losses=jnp.full(6, jnp.nan))
    mixture = np.array([0.5, 0.0, 0.25, 0.25, 0.0, 0.0], np.float32)

    @jax.jit
    def observe(mixture, snapshots):
        state = DRFA.init(context)._replace(mixture=mixture)
        cohort = Cohort(jnp.arange(4, dtype=jnp.int32), jnp.full(4, 0.25))
        copies = Variables({"w": jnp.ones((4, 2))}, {})
        sends = dict.fromkeys(snapshots, copies)
        results = LocalResult(copies, jnp.zeros(4), jnp.ones(4, jnp.int32), sends=sends)
        return DRFA.observe(state, cohort, results, context).mixture

    np.testing.assert_allclose(observe(mixture, {"snapshot": 0}), mixture, atol=1e-6)
    with pytest.raises(ValueError, match="snapshot"):
        observe(mixture, {})
