"""Metrics of virtual time, against loops over the records."""

import numpy as np
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.metrics import speed

METHODS, SEEDS, ROUNDS, SLOTS, CLIENTS = 2, 2, 6, 3, 7
EVALUATED = [0, 2, 3, 6]
CLASSES = np.array([0, 2, 0, 1, 2, 2, 0])


def make_records(seed=0):
    """Made-up records of two methods, some of whose results do not count."""
    rng = np.random.default_rng(seed)
    over, per_slot = ("algorithm", "seed"), ("algorithm", "seed", "training_round", "slot")
    shape = (METHODS, SEEDS, ROUNDS, SLOTS)
    clients = rng.integers(-1, CLIENTS, shape)
    responded = rng.integers(0, 2, shape) & (clients >= 0)
    responded[:, :, 0] = 0  # No result in the first round.
    update_time = rng.integers(1, 9, shape[:3]).cumsum(-1).astype(float)
    arrived = update_time[..., None] - rng.uniform(0, 3, shape)
    times = np.pad(update_time, [(0, 0), (0, 0), (1, 0)])[..., EVALUATED]
    trained = (clients[..., None] == np.arange(CLIENTS)) & (responded[..., None] > 0)
    counts = np.pad(trained.sum(3).cumsum(2), [(0, 0), (0, 0), (1, 0), (0, 0)])[:, :, EVALUATED]
    spent = rng.uniform(1, 9, (*shape[:2], len(EVALUATED), 3)).cumsum(2)
    levels = rng.uniform(size=(*shape[:2], len(EVALUATED), 3))
    evaluations = (*over, "round")
    return xr.Dataset(
        {
            "cohort_clients": (per_slot, clients),
            "cohort_responded": (per_slot, responded),
            "cohort_weights": (per_slot, rng.uniform(size=shape)),
            "cohort_staleness": (per_slot, rng.integers(0, 5, shape)),
            "cohort_arrived": (per_slot, arrived),
            "update_time": (per_slot[:3], update_time),
            "update_nonfinite": (per_slot[:3], rng.integers(0, 2, shape[:3])),
            "aggregation_scale": (per_slot[:3], rng.uniform(size=shape[:3])),
            "virtual_time": (evaluations, times),
            "participation": ((*evaluations, "client"), counts),
            "class_seconds": ((*evaluations, "device_class"), spent),
            "class_lost_seconds": ((*evaluations, "device_class"), 0.25 * spent),
            "class_device_accuracy": ((*evaluations, "device_class"), levels),
            "device_class_of": ("client", CLASSES),
        },
        {
            "algorithm": ["one", "two"],
            "round": EVALUATED,
            "device_class": ["fast", "medium", "slow"],
            "client": list("abcdefg"),
            "training_round": range(ROUNDS),
            "slot": range(SLOTS),
            "seed": range(SEEDS),
        },
    )


def results_until(run, round):
    """Yields (client, weight, staleness, waiting) of the results of the first rounds."""
    for t in range(round):
        for slot in range(SLOTS):
            if run["cohort_responded"].values[t, slot]:
                applied = 1 - run["update_nonfinite"].values[t]
                weight = run["cohort_weights"].values[t, slot] * applied
                weight *= run["aggregation_scale"].values[t] if "aggregation_scale" in run else 1
                waiting = run["update_time"].values[t] - run["cohort_arrived"].values[t, slot]
                client = int(run["cohort_clients"].values[t, slot])
                yield client, weight, run["cohort_staleness"].values[t, slot], waiting


@pytest.mark.parametrize("has_scale", [True, False])
def test_metrics_of_classes_follow_from_the_records(has_scale):
    records = make_records() if has_scale else make_records().drop_vars("aggregation_scale")
    found = speed.summarize(records)
    assert set(found) == speed.DEFINITIONS.keys() - {"class_device_accuracy", "time_to_accuracy"}
    clients_of = np.bincount(CLASSES)
    for method, seed in np.ndindex(METHODS, SEEDS):
        run, own = (each.isel(algorithm=method, seed=seed) for each in (records, found))
        for place, round in enumerate(EVALUATED):
            now = own.isel(round=place)
            rows = np.array(list(results_until(run, round))).reshape(-1, 4)
            assert np.isnan(now["participation_parity"]) == (not len(rows))
            by_class = [rows[CLASSES[rows[:, 0].astype(int)] == c] for c in range(3)]
            counts = np.array([len(each) for each in by_class])
            weights = np.array([each[:, 1].sum() for each in by_class])
            if len(rows):
                weights /= weights.sum() or np.nan  # No update was applied.
                shares = {"participation": counts / len(rows), "weight": weights}
                for name, share in shares.items():
                    np.testing.assert_allclose(now[f"class_{name}_share"], share)
                    lowest = (share / (clients_of / CLIENTS)).min()
                    np.testing.assert_allclose(now[f"{name}_parity"], lowest)
            for c, each in enumerate(by_class):
                expected = each[:, 2:].mean(axis=0) if len(each) else [np.nan, np.nan]
                means = now["class_staleness_mean"][c], now["class_waiting_mean"][c]
                np.testing.assert_allclose(means, expected)
            never = 1 - len(set(rows[:, 0])) / CLIENTS
            np.testing.assert_allclose(now["never_arrived"], never)
        first = np.full(CLIENTS, np.nan)
        arrivals = run[["cohort_clients", "cohort_arrived", "cohort_responded"]]
        for client, time, counts in zip(
            *(arrivals[name].values.ravel() for name in arrivals), strict=True
        ):
            if counts:
                first[client] = np.fmin(first[client], time)
        np.testing.assert_allclose(own["first_arrival_time"], first)
    np.testing.assert_allclose(found["class_lost_share"], 0.25)


def test_accuracies_over_time_are_step_functions():
    records = make_records()
    found = speed.summarize(records, target=0.5)
    for method, seed in np.ndindex(METHODS, SEEDS):
        run, own = (each.isel(algorithm=method, seed=seed) for each in (records, found))
        times, levels = run["virtual_time"].values, run["class_device_accuracy"].values
        fine = np.arange(0, times[-1], 1 / 8) + 1 / 16  # Times of updates are whole.
        steps = levels[np.searchsorted(times, fine, side="right") - 1]
        np.testing.assert_allclose(own["accuracy_over_time"], steps.mean(axis=0))
        np.testing.assert_allclose(own["accuracy_over_time_minimum"], steps.mean(axis=0).min())
        reached = [next((t for t, a in zip(times, of_class, strict=True) if a >= 0.5), np.nan)
                   for of_class in levels.T]  # fmt: skip
        np.testing.assert_allclose(own["time_to_accuracy"], reached)
        np.testing.assert_allclose(own["device_accuracy_gap"], np.ptp(levels, axis=1))
        np.testing.assert_allclose(own["device_accuracy_minimum"], levels.min(axis=1))
    assert np.isnan(speed.summarize(records, target=1.0)["time_to_accuracy"]).all()


def test_methods_with_other_evaluations_have_their_own_metrics():
    """Combined results have NaN at rounds at which only other methods were evaluated."""
    records = make_records()
    one = records.isel(algorithm=0, drop=True)
    two = records.isel(algorithm=1, drop=True)
    two = two.isel(round=[0, 1, 2]).assign_coords(round=[0, 1, 3])
    two = two.isel(training_round=slice(3), slot=slice(2))
    two["device_class_of"] = ("client", CLASSES[::-1])
    alone = [speed.summarize(each) for each in (one, two)]
    together = speed.summarize(ff.results.combine({"one": one, "two": two}))
    for name, each in zip(("one", "two"), alone, strict=True):
        own = together.sel(algorithm=name, drop=True)
        xr.testing.assert_allclose(own.sel(round=each["round"]), each)
        later = own["class_participation_share"].drop_sel(round=each["round"].values)
        assert later.sizes["round"]
        assert np.isnan(later).all()


def test_ground_truth_groups_are_classes_too():
    records = make_records()
    group = np.stack([CLASSES, CLASSES[::-1]])  # One partition per seed.
    grouped = records.assign(
        group=(("seed", "client"), group),
        group_accuracy=(
            ("algorithm", "seed", "round", "planted_group"),
            records["class_device_accuracy"].values,
        ),
    )
    found = speed.summarize(grouped, "planted_group").isel(seed=0)
    expected = speed.summarize(records).isel(seed=0).drop_vars(["class_lost_share", "device_class"])
    xr.testing.assert_identical(found, expected.rename(device_class="planted_group"))
    turned = records.assign(device_class_of=("client", CLASSES[::-1]))
    found = speed.summarize(grouped, "planted_group").isel(seed=1)
    expected = speed.summarize(turned).isel(seed=1)
    for name in ("class_participation_share", "weight_parity"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_mistakes_are_named():
    records = make_records()
    with pytest.raises(ValueError, match="results: expected virtual_time, which runs with a sch"):
        speed.summarize(records.drop_vars("virtual_time"))
    with pytest.raises(ValueError, match="by='planted_group': expected results of data with gro"):
        speed.summarize(records, by="planted_group")
    with pytest.raises(ValueError, match="by='group': expected one of"):
        speed.summarize(records, by="group")
    with pytest.raises(ValueError, match=r"target=1.5: expected a number in \[0, 1\]"):
        speed.summarize(records, target=1.5)
