"""Selectors as pytrees: what is structure, what is a leaf, and how they print."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair import selectors
from fedjax_fair.numerics.sketch import CountSketch
from fedjax_fair.roles import Selector
from fedjax_fair.selectors.gradients import (
    Fresh,
    GradientSource,
    LastLayer,
    RefreshEvery,
    Stale,
    Updates,
)
from fedjax_fair.submodular import modular


def sizes_of(context):
    return modular(context.sizes)


# Each class with arguments that differ from the defaults, another scalar, and its text.
CASES = {
    "Agnostic": (
        lambda rate=0.2: selectors.Agnostic(rate),
        0.3,
        "Agnostic(mixture_learning_rate=0.2)",
    ),
    "BySize": (lambda: selectors.BySize(3), None, "BySize(cohort_size=3)"),
    "ClusteredBySimilarity": (
        lambda: selectors.ClusteredBySimilarity(3, measure="l1"),
        None,
        "ClusteredBySimilarity(cohort_size=3, measure='l1')",
    ),
    "ClusteredBySize": (
        lambda: selectors.ClusteredBySize(3),
        None,
        "ClusteredBySize(cohort_size=3)",
    ),
    "DRFA": (lambda rate=0.2: selectors.DRFA(rate), 0.3, "DRFA(mixture_learning_rate=0.2)"),
    "DivFL": (
        lambda: selectors.DivFL(3, gradients="stale"),
        None,
        "DivFL(cohort_size=3, gradients='stale')",
    ),
    "FedCor": (
        lambda rate=0.2: selectors.FedCor(3, annealing=rate),
        0.3,
        "FedCor(cohort_size=3, annealing=0.2)",
    ),
    "Full": (selectors.Full, None, "Full()"),
    "Oort": (
        lambda rate=0.3: selectors.Oort(3, min_exploration=rate),
        0.4,
        "Oort(cohort_size=3, min_exploration=0.3)",
    ),
    "PowerOfChoice": (
        lambda: selectors.PowerOfChoice(3, variant="cpow"),
        None,
        "PowerOfChoice(cohort_size=3, variant='cpow')",
    ),
    "Rotation": (lambda: selectors.Rotation(3, 2), None, "Rotation(cohort_size=3, window=2)"),
    "RoundRobin": (lambda: selectors.RoundRobin(3), None, "RoundRobin(cohort_size=3)"),
    "SubTrunc": (
        lambda lam=0.2: selectors.SubTrunc(3, lam),
        0.3,
        "SubTrunc(cohort_size=3, lam=0.2)",
    ),
    "Submodular": (
        lambda: selectors.Submodular(sizes_of, 3),
        None,
        "Submodular(set_function_fn=sizes_of, cohort_size=3)",
    ),
    "Uniform": (lambda: selectors.Uniform(3), None, "Uniform(cohort_size=3)"),
    "UnionFL": (lambda mu=0.2: selectors.UnionFL(3, mu), 0.3, "UnionFL(cohort_size=3, mu=0.2)"),
}
SOURCES = {
    "Fresh": (
        lambda: Fresh(CountSketch(16, seed=2)),
        None,
        "Fresh(project=CountSketch(size=16, seed=2))",
    ),
    "RefreshEvery": (lambda: RefreshEvery(3), None, "RefreshEvery(rounds=3)"),
    "Stale": (lambda: Stale(LastLayer("bias")), None, "Stale(project=LastLayer(name='bias'))"),
    "Updates": (lambda rate=0.2: Updates(rate), 0.3, "Updates(learning_rate=0.2)"),
}
ALL = CASES | SOURCES


def test_every_class_has_a_case():
    public = {name for name in selectors.__all__ if name != "gradients"}
    assert CASES.keys() == public
    assert all(issubclass(getattr(selectors, name), Selector) for name in public)
    kinds = (getattr(selectors.gradients, name) for name in selectors.gradients.__all__)
    sources = {one.__name__ for one in kinds if isinstance(one, type)}
    assert SOURCES.keys() == sources - {"GradientSource", "LastLayer"}


@pytest.mark.parametrize("name", ALL)
def test_equal_settings_are_one_structure(name):
    make, _, _ = ALL[name]
    one, same = make(), make()
    assert one == same
    assert hash(one) == hash(same)
    assert jax.tree.structure(one) == jax.tree.structure(same)
    assert jax.tree.unflatten(jax.tree.structure(one), jax.tree.leaves(one)) == one


@pytest.mark.parametrize("name", [name for name, (_, other, _) in ALL.items() if other])
def test_another_scalar_changes_leaves_only(name):
    make, scalar, _ = ALL[name]
    one, other = make(), make(scalar)
    assert one != other
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert hash(one) == hash(other)
    differ = [a != b for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
    assert sum(differ) == 1
    assert jax.tree.structure(one) == jax.tree.structure(make(jnp.float32(scalar)))


@pytest.mark.parametrize("name", ALL)
def test_defaults_are_not_shown(name):
    make, _, text = ALL[name]
    assert repr(make()) == text


def test_only_scalars_are_leaves():
    leaves = {name: len(jax.tree.leaves(make())) for name, (make, _, _) in ALL.items()}
    some = {name: count for name, count in leaves.items() if count}
    assert some == {
        "Agnostic": 1,
        "DRFA": 1,
        "FedCor": 4,
        "Oort": 7,
        "Rotation": 1,
        "SubTrunc": 2,
        "UnionFL": 2,
        "Updates": 1,
    }


@pytest.mark.parametrize("change", [{"cohort_size": 4}, {"scale": "sum"}, {"gradients": Stale()}])
def test_sizes_strings_and_sources_are_structure(change):
    one = selectors.UnionFL(3)
    assert jax.tree.structure(one.replace(**change)) != jax.tree.structure(one)


def test_settings_of_a_source_are_leaves_of_its_selector():
    def make(rate):
        return selectors.UnionFL(3, 0.3, gradients=Updates(rate, CountSketch(8)))

    assert make(0.1) == make(0.1) != make(0.2)
    assert jax.tree.structure(make(0.1)) == jax.tree.structure(make(0.2))
    assert sorted(jax.tree.leaves(make(0.1))) == [0.1, 0.3, 5]


def test_phi_may_be_a_custom_function():
    one = selectors.SubTrunc(3, phi=jnp.sqrt)
    assert one == selectors.SubTrunc(3, phi=jnp.sqrt) != selectors.SubTrunc(3)
    assert len(jax.tree.leaves(one)) == 2


@pytest.mark.parametrize("kind", [Fresh, Stale, Updates, RefreshEvery])
def test_settings_of_sources_are_their_arguments_in_order(kind):
    names = [field.name for field in dataclasses.fields(kind)]
    assert names[-1] == "project"
    assert issubclass(kind, GradientSource)


@pytest.mark.parametrize(
    "source", [GradientSource, selectors.representative_selector.RepresentativeSelector]
)
def test_interfaces_are_not_made(source):
    with pytest.raises(ValueError, match="method"):
        source() if source is GradientSource else source(3)


def test_projections_compare_by_their_settings():
    assert LastLayer() == LastLayer("head") != LastLayer("bias")
    assert CountSketch(8) == CountSketch(8, 0) != CountSketch(8, 1)
    assert hash(CountSketch(8)) == hash(CountSketch(8))


def test_other_scalars_do_not_recompile():
    """A program of the selector as an argument, whose numbers are arguments of it then."""
    traced = []

    @jax.jit
    def union(selector, last, round):
        traced.append(selector)
        return round - last <= selector.window, selector.mu * 2

    last = jnp.array([1, 4, 7], jnp.int32)
    for mu, window in ((0.5, 2), (0.7, 5), (2.0, 9)):
        recent, twice = union(selectors.UnionFL(3, mu, window), last, jnp.int32(8))
        np.testing.assert_array_equal(recent, 8 - np.asarray(last) <= window)
        np.testing.assert_allclose(twice, 2 * mu, rtol=1e-6)
    assert len(traced) == 1
