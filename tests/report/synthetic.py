"""Results as a run would leave them, of random numbers."""

import io

import numpy as np
import xarray as xr

from fedjax_fair import metrics


def make_results(
    methods=("fedavg", "divfl"),
    seeds=2,
    evaluations=3,
    clients=6,
    rounds=4,
    slots=2,
    classes=3,
    partitions=False,
    groups=False,
    timed=False,
):
    rng = np.random.default_rng(0)
    shape = (len(methods), seeds, evaluations)
    over = ("algorithm", "seed", "round")
    correct = rng.integers(0, 11, (*shape, clients)) / 10
    correct[..., 0] = np.nan  # A client without test examples.
    cohorts = rng.permuted(
        np.broadcast_to(np.arange(clients), (*shape[:2], rounds, clients)), axis=-1
    )[..., :slots]
    at = np.linspace(0, rounds, evaluations).astype(int)
    trained = (cohorts[..., None] == np.arange(clients)).any(axis=-2)
    counts = np.pad(trained.cumsum(axis=2), [(0, 0), (0, 0), (1, 0), (0, 0)])[:, :, at]
    owners = (("seed",) if partitions else (), (seeds,) if partitions else ())
    examples = rng.integers(0, 9, (*owners[1], clients, classes))
    tests = examples.copy()
    tests[..., 0, :] = 0
    columns = {metric.name: (over, rng.uniform(size=shape)) for metric in metrics.SUMMARIES}
    columns |= {
        "accuracy_mean_clients": (over, np.nanmean(correct, axis=-1)),
        "test_accuracy": ((*over, "client"), correct, {"long_name": "Test accuracy"}),
        "participation": ((*over, "client"), counts.astype(float)),
        "cohort_clients": ((*over[:2], "training_round", "slot"), cohorts),
        "train_examples": ((*owners[0], "client", "class"), examples),
        "test_examples": ((*owners[0], "client", "class"), tests),
    }
    if groups:
        columns |= {
            "group": ((*owners[0], "client"), rng.integers(0, 2, (*owners[1], clients))),
            "group_accuracy": ((*over, "planted_group"), rng.uniform(size=(*shape, 2))),
            "group_accuracy_gap": (over, rng.uniform(size=shape)),
            "aggregation_nmi": ((*over[:2], "training_round"), rng.uniform(size=cohorts.shape[:3])),
        }
    coordinates = {"algorithm": list(methods), "seed": range(seeds), "round": at}
    if timed:
        over_slots = columns["cohort_clients"][0]
        update_time = rng.integers(1, 9, cohorts.shape[:3]).cumsum(axis=2).astype(float)
        arrived = update_time[..., None] - rng.uniform(0, 1, cohorts.shape)
        time = np.pad(update_time, [(0, 0), (0, 0), (1, 0)])[..., at]
        columns |= {
            "cohort_responded": (over_slots, rng.integers(0, 2, cohorts.shape)),
            "cohort_weights": (over_slots, rng.uniform(size=cohorts.shape)),
            "cohort_staleness": (over_slots, rng.integers(0, 5, cohorts.shape)),
            "cohort_dispatched": (over_slots, arrived - rng.uniform(1, 2, cohorts.shape)),
            "cohort_arrived": (over_slots, arrived),
            "update_time": (over_slots[:3], update_time),
            "virtual_time": (over, time),
            "client_seconds": (over, 2 * time),
            "is_asynchronous": (over[:2], np.arange(len(methods))[:, None] > [0] * seeds),
            "device_class_of": ("client", np.arange(clients) % 2),
            "class_device_accuracy": ((*over, "device_class"), rng.uniform(size=(*shape, 2))),
        }
        coordinates["device_class"] = ["fast", "slow"]
    dataset = xr.Dataset(columns, coordinates, {"data": "made up", "label_skew_only": 0})
    return dataset.assign(metrics.speed.summarize(dataset)) if timed else dataset


def render(figure):
    """Draws everything, since some mistakes only show then."""
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    return figure
