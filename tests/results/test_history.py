"""Variables of virtual time and of bytes in results."""

import numpy as np
from conftest import linear_model, make_federation

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, results, schedules, selectors, solvers, timing
from fedjax_fair.metrics import speed
from fedjax_fair.roles import ClientMetrics
from fedjax_fair.rounds.round_state import RoundInfo, RoundTiming, Traffic
from fedjax_fair.timing import Clock

SEEDS, SLOTS, NAMES = (3, 4), 2, ("fast", "slow")
CHUNKS = (2, 3)  # Rounds between evaluations.


def clock(seconds, milliseconds):
    return Clock(np.int32(seconds), np.int32(milliseconds))


def make_history(data, timed=True):
    """Made-up records, and the timing of all rounds."""
    rng = np.random.default_rng(0)
    history, now, timings = results.History(), np.zeros((len(SEEDS), 1), int), []

    def evaluate():
        shape = (len(SEEDS), data.num_clients)
        accuracy, loss = rng.uniform(size=(2, *shape))
        counts = np.ones(shape, int)
        metrics = ClientMetrics(accuracy, loss, loss, counts, counts, counts, counts[:, :SLOTS])
        history.add_evaluation(sum(CHUNKS[: len(timings)]), {}, metrics)

    evaluate()
    for length in CHUNKS:
        per_round = (len(SEEDS), length)
        clients = rng.integers(0, data.num_clients, (*per_round, SLOTS))
        values = rng.uniform(size=clients.shape)
        true = np.ones(clients.shape, bool)
        durations = rng.integers(1, 5000, per_round).cumsum(axis=1) + now
        now = durations[:, -1:]
        starts = rng.integers(0, 9000, clients.shape)
        spent = rng.integers(0, 9000, (*per_round, len(NAMES)))
        # Beyond 24 bits of float32.
        timing = RoundTiming(
            clock(2**30 + durations // 1000, durations % 1000),
            true,
            rng.integers(0, 4, clients.shape),
            clock(starts // 1000, starts % 1000),
            clock(2**30 + starts // 1000, 1),
            clock(spent // 1000, spent % 1000),
            clock(spent // 2000, 0 * spent),
            rng.integers(0, 3, per_round),
        )
        timings.append(timing)
        history.add_rounds(
            RoundInfo(
                clients, values, values, 1 + 0 * clients, true.all(axis=2), true, ~true, {}, {},
                Traffic(1, 1), timing=timing if timed else None,
            )
        )  # fmt: skip
        evaluate()
    return history, timings


def joined(timings, name):
    parts = (getattr(timing, name) for timing in timings)
    parts = (part.as_seconds() if isinstance(part, Clock) else part for part in parts)
    return np.concatenate(list(parts), axis=1)


def test_times_are_recorded_in_seconds_of_double_precision():
    data = make_federation()
    history, timings = make_history(data)
    classes = np.arange(data.num_clients) % 2
    devices = results.Devices(NAMES, classes, is_asynchronous=True)
    # A run that continues from a checkpoint has the records as arrays.
    for records in (history, results.History.from_arrays(history.arrays())):
        dataset = results.to_dataset(records, SEEDS, data, Traffic(1, 1), devices=devices)
        for name in ("staleness", "dispatched", "arrived"):
            np.testing.assert_array_equal(dataset[f"cohort_{name}"], joined(timings, name))
        time = joined(timings, "clock")
        np.testing.assert_array_equal(dataset["update_time"], time)
        assert (time % 1 > 0).any()
        assert dataset["update_time"].dtype == np.float64
        assert (dataset["virtual_time"][:, 0] == 0).all()
        np.testing.assert_array_equal(dataset["virtual_time"][:, 1:], time[:, [1, 4]])
        for name, kind in (("class_seconds", "spent"), ("class_lost_seconds", "lost")):
            sums = joined(timings, kind).cumsum(axis=1)[:, [1, 4]]
            assert (dataset[name][:, 0] == 0).all()
            np.testing.assert_array_equal(dataset[name][:, 1:], sums)
        total = joined(timings, "spent").sum(axis=2)
        np.testing.assert_allclose(dataset["client_seconds"][:, 2], total.sum(axis=1))
        assert dataset["device_class"].values.tolist() == list(NAMES)
        for c in range(2):
            own = dataset["test_accuracy"][..., classes == c].mean("client")
            np.testing.assert_allclose(dataset["class_device_accuracy"][..., c], own)
        assert (dataset["is_asynchronous"] == 1).all()
        # The metrics of `speed` are part of the results.
        found = speed.summarize(dataset)
        assert all(dataset[name].identical(found[name]) for name in found)


def test_classes_may_differ_between_runs():
    data = make_federation()
    history, _ = make_history(data)
    classes = np.stack([np.arange(data.num_clients) % 2, np.zeros(data.num_clients, int)])
    dataset = results.to_dataset(
        history, SEEDS, data, Traffic(1, 1), devices=results.Devices(NAMES, classes, False)
    )
    assert dataset["device_class_of"].dims == ("seed", "client")
    for run in range(2):
        own = dataset["test_accuracy"][run][..., classes[run] == 0].mean("client")
        np.testing.assert_allclose(dataset["class_device_accuracy"][run, :, 0], own)
    assert np.isnan(dataset["class_device_accuracy"][1, :, 1]).all()
    np.testing.assert_array_equal(dataset["class_participation_share"][1, 1:, 0], 1)


def test_without_a_schedule_results_have_no_times():
    data = make_federation()
    dataset = results.to_dataset(make_history(data, timed=False)[0], SEEDS, data, Traffic(1, 1))
    assert "device_class" not in dataset.dims
    times = {"virtual_time", "update_time", "client_seconds", *speed.DEFINITIONS}
    assert not times & set(dataset)


def test_a_run_without_rounds_has_classes_but_no_times():
    data = make_federation()
    history = results.History()
    ones = np.ones((len(SEEDS), data.num_clients))
    counts = ones.astype(int)
    history.add_evaluation(
        0, {}, ClientMetrics(ones, ones, ones, counts, counts, counts, counts[:, :SLOTS])
    )
    devices = results.Devices(NAMES, np.arange(data.num_clients) % 2, False)
    dataset = results.to_dataset(history, SEEDS, data, Traffic(1, 1), devices=devices)
    assert (dataset["class_device_accuracy"] == 1).all()
    assert "virtual_time" not in dataset


def test_runs_have_the_devices_and_times_of_their_schedule():
    """Also runs of one batch with other devices."""
    data = make_federation()
    classes = np.arange(data.num_clients) % 2

    def round(kinds):
        times = timing.ClientTimes(
            np.where(kinds == 0, 1.0, 8.0), device_class=kinds, class_names=NAMES
        )
        return ff.Round(
            linear_model(),
            selectors.Full(),
            solvers.SGD(0.1, 2, steps=1),
            aggregators.Mean(),
            schedule=schedules.Asynchronous(times, buffer_size=2),
        )

    settings = {"rounds": 6, "eval_every": 3}
    alone = [ff.fit(round(kinds), data, **settings).dataset for kinds in (classes, 1 - classes)]
    methods = [round(classes), round(1 - classes)]
    both = ff.fit(methods, data, seeds=(0, 0), **settings).dataset
    for run, (kinds, single) in enumerate(zip((classes, 1 - classes), alone, strict=True)):
        np.testing.assert_array_equal(single["device_class_of"], kinds)
        assert (single["is_asynchronous"] == 1).all()
        # A step takes two examples, or the only one of a client.
        length = (single["cohort_arrived"] - single["cohort_dispatched"]).values
        trained = single["cohort_clients"].values
        examples = np.minimum(data.train.sizes, 2)
        expected = (examples * np.where(kinds == 0, 1.0, 8.0))[trained]
        np.testing.assert_allclose(length, expected)
        arrivals = [single["participation"][..., kinds == c].sum("client") for c in range(2)]
        shares = single["class_participation_share"].sel(device_class=list(NAMES))
        expected = arrivals[1] / (arrivals[0] + arrivals[1])
        np.testing.assert_allclose(shares[..., 1], expected)
        np.testing.assert_array_equal(both["device_class_of"][run], kinds)
        for name in ("update_time", "class_weight_share", "first_arrival_time"):
            np.testing.assert_allclose(both[name][run], single[name][0])


def test_unavailable_clients_receive_no_model(tmp_path):
    """Others do, also if they drop out; as well after a run continues from a checkpoint."""
    table = np.array([[1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 0, 0]])
    round = ff.Round(
        linear_model(),
        selectors.Full(),
        solvers.SGD(0.1, 2, steps=1),
        aggregators.Mean(),
        faults=[faults.Trace(table), faults.Dropout(0.5)],
    )
    settings = {"eval_every": 1, "train_loss": False}
    ff.fit(round, make_federation(), rounds=2, checkpoints=tmp_path, **settings)
    dataset = ff.fit(round, make_federation(), rounds=4, checkpoints=tmp_path, **settings).dataset
    size = 4 * 15
    num_responses = dataset["cohort_responded"].values[0].sum(axis=1)
    assert 0 < num_responses.sum() < 12
    assert dataset["bytes_down"].values.tolist() == [[0, 2 * size, 6 * size, 8 * size, 12 * size]]
    np.testing.assert_array_equal(dataset["bytes_up"][0, 1:], num_responses.cumsum() * size)
