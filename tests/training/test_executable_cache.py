"""Caches of compiled functions keep the latest ones."""

import gc
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from conftest import make_federation

import fedjax_fair as ff
from fedjax_fair.training import executable_cache
from fedjax_fair.training.executable_cache import MAX_SHAPES, cache_by_shape, compile_in, trimmed


@pytest.fixture(autouse=True)
def empty_cache():
    executable_cache.clear()


def making():
    made = []

    @cache_by_shape
    def make(structure):
        made.append(structure)
        return object()

    return made, make


def test_functions_of_a_structure_are_kept_for_its_latest_shapes():
    made, make = making()
    first = [make(shape, "a") for shape in range(MAX_SHAPES)]
    assert [make(shape, "a") for shape in range(MAX_SHAPES)] == first
    assert make(0, "a") is first[0]  # Now the latest.
    make("new", "a")
    assert make(0, "a") is first[0]
    assert make(1, "a") is not first[1]
    assert len(made) == MAX_SHAPES + 2


def test_other_structures_do_not_displace_few_functions():
    made, make = making()
    structures = range(20)
    kept = [make((), structure) for structure in structures]
    assert [make((), structure) for structure in structures] == kept
    make((), "one more")
    assert make((), 19) is kept[19]
    assert make((), 0) is not kept[0]
    assert len(made) == 22


def lower(size):
    """Lowers a new function, as of a notebook, of a shape."""
    return jax.jit(lambda x: jnp.sum(x * 2)).lower(jnp.ones(size))


@pytest.mark.parametrize(("group", "num_kept"), [("fedavg", MAX_SHAPES), (None, 10)])
def test_executables_of_a_group_are_kept_for_its_latest_shapes(group, num_kept):
    with ThreadPoolExecutor(1) as threads:
        compiled = [compile_in(threads, lower(size), group=group) for size in range(1, 11)]
        again = [compile_in(threads, lower(size), group=group) for size in range(10, 0, -1)]
    assert sum(a is b for a, b in zip(again, reversed(compiled), strict=True)) >= num_kept
    assert again[0] is compiled[-1]
    assert len(executable_cache._latest) == num_kept


def test_caches_of_jax_are_cleared_between_batches_only(monkeypatch):
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    monkeypatch.setattr(executable_cache, "_MAX_COMPILED", 2)
    with ThreadPoolExecutor(1) as threads, trimmed():
        with trimmed():
            for size in range(1, 5):
                compile_in(threads, lower(size)).result()
        assert not cleared
    assert cleared
    with ThreadPoolExecutor(1) as threads, trimmed():
        compile_in(threads, lower(1))
    assert len(cleared) == 1


def test_a_fit_leaves_no_arrays_to_the_garbage_collector():
    data = make_federation()
    fedavg = ff.Round(
        ff.models.logistic(data.num_classes),
        ff.selectors.Uniform(2),
        ff.solvers.SGD(0.1, 2, steps=1),
        ff.aggregators.Mean(),
    )
    gc.collect()
    gc.disable()
    try:
        before = len(jax.live_arrays())
        ff.fit(fedavg, data, rounds=1)
        assert len(jax.live_arrays()) == before
    finally:
        gc.enable()
