"""Results as a run would leave them, of random numbers."""

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
    return xr.Dataset(
        columns,
        {"algorithm": list(methods), "seed": range(seeds), "round": at},
        {"data": "made up", "label_skew_only": 0},
    )
