"""Clustered sampling: exact sums, and a second implementation of tree and pouring in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from scipy.stats import chi2

from fedjax_fair import selectors
from fedjax_fair.roles import Cohort, LocalResult, Variables
from fedjax_fair.selectors.clustered import rows_by_groups, rows_by_size, ward_groups

# Few shapes, since every one is compiled; sizes and groups vary.
SHAPES = [(1, 1), (3, 1), (5, 4), (12, 5), (40, 10)]
by_size = jax.jit(rows_by_size, static_argnames="cohort_size")
by_groups = jax.jit(rows_by_groups, static_argnames="cohort_size")
tree = jax.jit(ward_groups)


@st.composite
def federations(draw):
    count, slots = draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    kind = draw(st.sampled_from(["equal", "uniform", "heavy"]))
    if kind == "equal":
        sizes = np.full(count, rng.integers(1, 50))
    elif kind == "uniform":
        sizes = rng.integers(1, 100, count)
    else:
        sizes = np.ceil(rng.pareto(0.7, count) + 0.1).clip(max=10_000).astype(int)
    return sizes.astype(np.int32), slots, rng


def assert_sums_hold(rows, sizes, slots):
    rows = np.asarray(rows)
    assert (rows >= 0).all()
    assert (rows.sum(axis=1) == sizes.sum()).all()
    assert (rows.sum(axis=0) == slots * sizes).all()


def test_the_golden_rows():
    assert by_size(np.array([3, 1], np.int32), 2).tolist() == [[4, 0], [2, 2]]
    assert by_size(np.array([1, 3], np.int32), 2).tolist() == [[0, 4], [2, 2]]


@settings(max_examples=200, deadline=None)
@given(federations())
def test_both_sums_hold_exactly_by_size(federation):
    sizes, slots, _ = federation
    assert_sums_hold(by_size(sizes, slots), sizes, slots)


def numpy_groups(distances, masses, capacity):
    """Largest subtrees within the capacity, from SciPy's tree."""
    count = len(masses)
    steps = linkage(squareform(distances, checks=False), "ward") if count > 1 else []
    members = [{i} for i in range(count)]
    groups = {frozenset({i}) for i in range(count)}
    for first, second, *_ in steps:
        both = members[int(first)] | members[int(second)]
        if sum(masses[i] for i in both) <= capacity:
            groups -= {frozenset(members[int(first)]), frozenset(members[int(second)])}
            groups.add(frozenset(both))
        members.append(both)
    return groups


def as_sets(labels):
    labels = np.asarray(labels)
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


@settings(max_examples=100, deadline=None)
@given(federations())
def test_both_sums_hold_exactly_by_similarity(federation):
    sizes, slots, rng = federation
    points = rng.normal(size=(len(sizes), 3))
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    remainders = slots * sizes % sizes.sum()
    groups = tree(distances.astype(np.float32), remainders.astype(np.int32), sizes.sum())
    assert as_sets(groups) == numpy_groups(distances, remainders, sizes.sum())
    rows = by_groups(jax.random.key(0), sizes, slots, groups)
    assert_sums_hold(rows, sizes, slots)
    assert_poured_in_order(np.asarray(rows), sizes, slots, as_sets(groups))


def assert_poured_in_order(rows, sizes, slots, groups):
    """Whole slots, then one slot for each of the heaviest groups, then the others as they fit."""
    capacity = sizes.sum()
    whole = slots * sizes // capacity
    left = slots * sizes % capacity
    place = 0
    for client, count in enumerate(whole):
        assert (rows[place : place + count, client] == capacity).all()
        place += count
    heaviest = sorted(groups, key=lambda group: (-sum(left[list(group)]), min(group)))
    others = []
    for rank, group in enumerate(heaviest):
        clients = list(group)
        if rank < slots - place:
            assert (rows[place + rank, clients] == left[clients]).all()
        elif sum(left[clients]):
            others.append(clients)
    spare = [
        (slot, capacity - sum(left[list(group)]))
        for slot, group in zip(range(place, slots), heaviest, strict=False)
    ]
    # Lightest group first into the lightest slot: the ends of each on the common line agree.
    laid = [slot for slot, room in reversed(spare) for _ in range(int(room))]
    begin = 0
    for clients in reversed(others):
        mass = int(sum(left[clients]))
        expected = np.bincount(laid[begin : begin + mass], minlength=slots)
        assert (rows[:, clients].sum(axis=1) - whole_part(rows, clients, place) == expected).all()
        begin += mass
    assert begin == len(laid)


def whole_part(rows, clients, place):
    part = rows[:, clients].sum(axis=1)
    part[place:] = 0
    return part


def draw_often(selector, state, context, times):
    """Returns cohorts ``[times, slots]``, and the state, initial if None."""

    @jax.jit
    def select(key, state):
        state = selector.init(context) if state is None else state
        keys = jax.random.split(key, times)
        return jax.vmap(lambda key: selector.select(key, state, context)[0].clients)(keys), state

    return map(np.asarray, select(jax.random.key(0), state))


def test_draws_follow_the_rows():
    sizes = np.array([9, 1, 4, 2], np.int32)
    context = make_context(make_federation(sizes=tuple(sizes)).train)
    selector = selectors.ClusteredBySize(3)
    draws, rows = draw_often(selector, None, context, 4000)
    statistic, freedom = 0.0, 0
    for slot, row in enumerate(rows):
        expected = 4000 * row / row.sum()
        observed = np.bincount(draws[:, slot], minlength=4)
        assert (observed[row == 0] == 0).all()
        some = row > 0
        statistic += np.sum((observed[some] - expected[some]) ** 2 / expected[some])
        freedom += some.sum() - 1
    assert statistic < chi2.ppf(0.999, freedom)


def updated(selector, context, updates, clients=None, responded=None):
    """The selector's state after these clients trained."""
    count = len(updates)
    clients = np.arange(count) if clients is None else np.array(clients)
    cohort = Cohort(
        clients.astype(np.int32), np.full(count, 1 / count, np.float32), responded=responded
    )

    @jax.jit
    def observe(updates, cohort):
        results = LocalResult(Variables({"w": updates}, {}), jnp.zeros(count), jnp.ones(count))
        return selector.observe(selector.init(context), cohort, results, context)

    return observe(np.array(updates, np.float32), cohort)


def context_of(sizes, width=3):
    return make_context(
        make_federation(sizes=tuple(sizes)).train,
        variables=Variables({"w": np.zeros(width, np.float32)}, {}),
    )


@pytest.mark.parametrize(
    ("measure", "ward_input"),
    [("arccos", "rows"), ("arccos", "distances"), ("l2", "rows"), ("l1", "distances")],
)
def test_similar_clients_share_a_slot(measure, ward_input):
    rng = np.random.default_rng(0)
    directions = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    context = context_of([4] * 6)
    selector = selectors.ClusteredBySimilarity(3, measure=measure, ward_input=ward_input)
    state = updated(selector, context, directions + 0.01 * rng.normal(size=(6, 3)))
    draws, _ = draw_often(selector, state, context, 50)
    assert all(sorted(kinds) == [0, 1, 2] for kinds in (draws % 3).tolist())
    assert len(np.unique(draws, axis=0)) > 4


def test_untrained_clients_are_sampled_by_size():
    context = context_of([5, 1, 1, 1])
    draws, _ = draw_often(selectors.ClusteredBySimilarity(2), None, context, 200)
    # The largest client has more than a slot of its own.
    assert (draws[:, 0] == 0).all()
    assert set(draws[:, 1].tolist()) == {0, 1, 2, 3}


def test_the_last_update_of_a_client_counts_and_only_finite_ones():
    context = context_of([2, 2, 2])
    selector = selectors.ClusteredBySimilarity(2)
    state = updated(selector, context, [[1.0, 0, 0], [2.0, 0, 0], [np.nan, 0, 0]], [1, 1, 0])
    assert state.tolist() == [[0, 0, 0], [2, 0, 0], [0, 0, 0]]


def test_the_last_response_of_a_client_counts():
    context = context_of([2, 2, 2, 2])
    selector = selectors.ClusteredBySimilarity(2)
    updates = [[1.0, 0, 0], [2.0, 0, 0], [3.0, 0, 0], [0.0, 0, 0], [0.0, 0, 0]]
    responded = np.array([True, True, True, False, False])
    state = updated(selector, context, updates, [3, 1, 3, 3, 0], responded)
    assert state.tolist() == [[0, 0, 0], [2, 0, 0], [0, 0, 0], [3, 0, 0]]


def test_too_many_examples_are_refused():
    examples = make_federation(sizes=(3, 2)).train
    huge = examples._replace(order=np.broadcast_to(np.int32(0), 2**28))
    context = make_context(examples)._replace(examples=huge)
    with pytest.raises(ValueError, match="cohort_size=10"):
        selectors.ClusteredBySize(10).init(context)
