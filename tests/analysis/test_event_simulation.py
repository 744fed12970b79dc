"""Events without training are those of runs, and parity by chance is that of a formula."""

import jax
import numpy as np
import pytest
from conftest import linear_model, make_federation

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, schedules, selectors, solvers
from fedjax_fair.timing import ClientTimes, Online

DATA = make_federation()
NUM = DATA.num_clients
CLASSES = {"device_class": np.arange(NUM) % 2, "class_names": ("fast", "slow")}
SPEEDS = ClientTimes(np.linspace(0.1, 0.9, NUM), seconds_per_task=0.5, jitter=0.3, **CLASSES)
BY_DAY = SPEEDS.replace(online=Online.from_intervals([[(i, i + 18)] for i in range(NUM)], 25))
SGD = solvers.SGD(0.1, 2, epochs=2)


def method(schedule=None, selector=None, aggregator=None, **settings):
    selector = selector or selectors.Uniform(4)
    aggregator = aggregator or aggregators.Mean("num_examples")
    return ff.Round(linear_model(), selector, SGD, aggregator, schedule=schedule, **settings)


METHODS = {
    "fedbuff": method(
        schedules.Asynchronous(BY_DAY, buffer_size=2, max_staleness=3), None, aggregators.FedBuff()
    ),
    "fed_stale_weight": method(
        schedules.Asynchronous(SPEEDS, buffer_size=2),
        selectors.Full(),
        aggregators.FedStaleWeight(exact=True),
    ),
    "area": method(
        schedules.Asynchronous(BY_DAY, buffer_size=1, offline="pause"),
        selectors.Uniform(3),
        aggregators.AREA(),
    ),
    "over_selection": method(
        schedules.Synchronous(SPEEDS, num_responses=3, deadline=4.0), faults=faults.Dropout(0.2)
    ),
    "rotation": method(schedules.Synchronous(BY_DAY), selectors.Rotation(2, window=1)),
}


@pytest.mark.parametrize("name", METHODS)
def test_events_are_those_of_a_run(name):
    settings = {"rounds": 13, "seeds": (3, 0), "eval_every": 5}
    found = ff.analysis.simulate(METHODS[name], DATA, **settings)
    run = ff.fit(METHODS[name], DATA, **settings).dataset
    assert len(np.unique(found.cohort_clients)) > 3
    assert found.identical(run[list(found)].assign_attrs(found.attrs))
    of_speed = set(ff.metrics.speed.summarize(run)) - {
        "device_accuracy_gap",
        "device_accuracy_minimum",
        "accuracy_over_time",
        "accuracy_over_time_minimum",
    }
    expected = {"cohort_clients", "cohort_arrived", "cohort_weights", "bytes_up", *of_speed}
    of_weights = {"cohort_weights", "class_weight_share", "weight_parity"}
    # AREA ignores results that are not finite.
    assert expected - set(found) == (of_weights if name == "area" else set())


def test_events_of_partitions_are_those_of_their_seeds():
    parts = [ff.data.load("digits", ff.data.quantity_skew(num_clients=NUM), seed=s) for s in (0, 1)]
    round = METHODS["fed_stale_weight"].replace(model=ff.models.logistic(10))
    together = ff.analysis.simulate(round, ff.data.stack(parts), rounds=9, seeds=(5, 6))
    for place, (part, seed) in enumerate(zip(parts, (5, 6), strict=True)):
        alone = ff.analysis.simulate(round, part, rounds=9, seeds=(seed,))
        np.testing.assert_array_equal(alone.cohort_arrived, together.cohort_arrived[[place]])
    assert not together.update_time[0].equals(together.update_time[1])


class Counted(solvers.SGD):
    """Calls Python in local training."""

    def solve(self, key, variables, client):
        result = super().solve(key, variables, client)
        shape = jax.ShapeDtypeStruct((), np.float32)
        counted = jax.pure_callback(count, shape, result.loss, vmap_method="sequential")
        return result._replace(loss=counted)


CALLS = []


def count(loss):
    CALLS.append(loss)
    return loss


def test_simulations_do_not_train():
    round = METHODS["rotation"].replace(solver=Counted(0.1, 2, epochs=2))
    ff.analysis.simulate(round, DATA, rounds=3)
    assert not CALLS
    ff.fit(round, DATA, rounds=3)
    assert len(CALLS) == 6


@pytest.mark.parametrize("selector", [selectors.PowerOfChoice(2, 4), selectors.Oort(2)], ids=str)
def test_cohorts_that_depend_on_models_are_refused(selector):
    round = method(schedules.Synchronous(SPEEDS), selector)
    ff.fit(round, DATA, rounds=1)
    with pytest.raises(ValueError, match=r"selector: \w+ reads models or results of training"):
        ff.analysis.simulate(round, DATA, rounds=2)
    found = ff.analysis.expected_parity(round, DATA, rounds=2, eval_every=1)
    assert np.isnan(found.participation_parity_expected).all()
    assert np.isnan(found.weight_parity_expected).all()


def test_methods_without_a_schedule_are_refused():
    for function in (ff.analysis.simulate, ff.analysis.expected_parity):
        with pytest.raises(ValueError, match=r"round\.schedule=None: expected a schedule"):
            function(method(), DATA, rounds=2)
        with pytest.raises(ValueError, match="rounds=0: expected an integer >= 1"):
            function(METHODS["rotation"], DATA, rounds=0)


def test_parity_of_equally_fast_clients_is_that_of_draws():
    """Cohorts of two draw from two classes of three clients; slow ones never arrive in time."""
    times = ClientTimes(np.where(np.arange(NUM) % 2, 100.0, 0.01), **CLASSES)
    schedule = schedules.Synchronous(times, deadline=10.0)
    round = method(schedule, selectors.Uniform(2))
    equally_fast = times.replace(seconds_per_example=np.full(NUM, np.median([100.0, 0.01])))
    assert equally_fast.seconds_per_example[0] > 10  # Nobody arrives.
    late = ff.analysis.expected_parity(round, DATA, rounds=4)
    assert np.isnan(late.participation_parity_expected).all()
    waits = round.replace(schedule=schedules.Synchronous(times))
    found = ff.analysis.expected_parity(waits, DATA, rounds=4, eval_every=4, draws=400)
    rng = np.random.default_rng(0)
    drawn = np.stack([rng.permuted(np.tile(np.arange(NUM), (20_000, 1)), axis=1)[:, :2]
                      for _ in range(4)], axis=1)  # fmt: skip
    share = (drawn % 2).mean(axis=(1, 2))
    parity = np.minimum(share, 1 - share) / 0.5
    error = 4 * parity.std() / np.sqrt(400)
    assert abs(found.participation_parity_expected[1] - parity.mean()) < error
    run = ff.analysis.simulate(round, DATA, rounds=4)
    assert run.participation_parity[0, -1] == 0
    sizes = np.asarray(DATA.train.sizes)
    weight = sizes[drawn] / sizes[drawn].sum(axis=2, keepdims=True)
    share = (weight * (drawn % 2)).sum(axis=(1, 2)) / 4
    parity = np.minimum(share, 1 - share) / 0.5
    assert abs(found.weight_parity_expected[1] - parity.mean()) < 4 * parity.std() / np.sqrt(400)
