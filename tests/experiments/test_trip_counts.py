"""Expected trip counts of loops whose length depends on the data."""

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.benchmarks.accelerators.trip_counts import TripCounts, expected_maximum
from fedjax_fair import data
from fedjax_fair.planning.machines import find

CHIP = find("v5e:1x1")


@pytest.mark.parametrize(("participants", "runs"), [(1, 1), (2, 1), (3, 1), (6, 1), (2, 2), (1, 3)])
def test_the_expected_maximum_is_the_mean_over_all_cohorts(participants, runs):
    values = np.array([7, 1, 4, 4, 20, 2])
    cohorts = [max(cohort) for cohort in itertools.combinations(values, participants)]
    expected = np.mean([max(each) for each in itertools.product(cohorts, repeat=runs)])
    assert expected_maximum(values, participants, runs) == pytest.approx(expected, rel=1e-12)


def test_the_expected_maximum_of_a_million_is_finite():
    values = np.arange(1_000_000)
    assert expected_maximum(values, 100) == pytest.approx(100 / 101 * 1_000_000, rel=1e-6)


def federation(sizes):
    return data.from_arrays(
        np.zeros((sum(sizes), 3), np.float32),
        np.arange(sum(sizes)) % 2,
        [np.arange(stop - size, stop) for size, stop in zip(sizes, np.cumsum(sizes), strict=True)],
        test_fraction=0.5,
    )


def trip_counts(sizes, cohort_size, runs):
    return TripCounts(CHIP, federation(sizes), cohort_size, runs, lambda sizes: 3 * sizes)


def test_a_vmap_takes_the_steps_of_the_largest_participant():
    counts = trip_counts([20, 40, 60], cohort_size=2, runs=1)
    # Half are for training; the largest of two clients: 20, 30 and 30 examples.
    steps = 3 * np.mean([20, 30, 30])
    outer = counts.trip_count(
        "jit(step)/vmap()/while/body/clients/while/body/vmap(step_blocks)/while"
    )
    inner = counts.trip_count(
        "jit(step)/clients/while/body/vmap(step_blocks)/while/body/local_steps/while"
    )
    assert outer == 3
    assert outer * inner == pytest.approx(steps)


def test_a_loop_takes_the_steps_of_each_participant():
    counts = trip_counts([20, 40, 60], cohort_size=2, runs=1)
    outer = counts.trip_count("jit(step)/clients/while/body/step_blocks/while")
    inner = counts.trip_count(
        "jit(step)/clients/while/body/step_blocks/while/body/local_steps/while"
    )
    assert outer * inner == pytest.approx(3 * 20)


def test_chunks_of_clients_follow_from_their_sizes():
    # A chunk is as large as a client of mean size, 20 examples.
    counts = trip_counts([20, 40, 60], cohort_size=2, runs=1)
    assert counts.trip_count("jit(step)/client_chunks/while") == pytest.approx((1 + 1 + 2) / 3)


def test_the_first_partition_counts():
    one = federation([20, 40, 60])
    both = TripCounts(CHIP, data.stack([one, one]), 2, 2, lambda sizes: 3 * sizes)
    alone = TripCounts(CHIP, one, 2, 2, lambda sizes: 3 * sizes)
    for scope in ("client_chunks", "vmap(step_blocks)", "step_blocks"):
        assert both.trip_count(f"jit(step)/{scope}/while") == alone.trip_count(
            f"jit(step)/{scope}/while"
        )


def test_other_loops_are_unknown():
    assert trip_counts([4, 4], 1, 1).trip_count("jit(step)/while/body/while") is None


def test_greedy_selects_as_many_items_as_it_may():
    assert trip_counts([4, 4], 1, 1).trip_count("jit(step)/while/body/selections_17/while") == 17


def test_several_devices_wait_for_the_busiest():
    mesh = Mesh(np.array(4 * jax.devices()[:1]), ("clients",))  # Nothing runs on them.
    sizes = [10] * 8  # Two on each device.
    counts = TripCounts(CHIP, federation(sizes), 3, 1, lambda sizes: sizes, mesh)
    scope = "jit(step)/clients_{}_by_1/while".format
    # Cohorts of eight; cohorts of three, all on different devices in 32 of 56 cases.
    assert counts.trip_count(scope(8)) == 2
    assert counts.trip_count(scope(3)) == pytest.approx((32 * 1 + 24 * 2) / 56, abs=0.1)
    assert counts.trip_count("jit(step)/clients_8_by_2/while") == 1
