"""The study of published claims: its endpoints, and its rotated data set."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from experiments.reproduction import methods, methods_plan, methods_results
from fedjax_fair.app.settings.registry import METHODS
from fedjax_fair.data import from_arrays


def test_every_endpoint_compares_methods_of_its_federation():
    for endpoint in methods_plan.ENDPOINTS:
        trained = methods_plan.FEDERATIONS[endpoint.federation].methods
        assert {endpoint.claim, endpoint.reference} <= set(trained)
        assert {name.partition(":")[0] for name in trained} <= METHODS.keys()


def table_of(scaffold, fedavg):
    """Accuracies of two methods over rounds, of each seed."""
    rows = [
        {"federation": "two classes", "algorithm": name, "seed": seed, "round": round,
         "accuracy_mean_clients": accuracy, "agreement": 0.94 + 0.02 * seed}
        for name, runs in {"scaffold": scaffold, "fedavg": fedavg}.items()
        for seed, run in enumerate(runs)
        for round, accuracy in zip((0, 2, methods_plan.ROUNDS), run, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_rounds_to_the_target_are_those_of_the_first_evaluation():
    measured = table_of([[0.1, 0.5, 0.4], [0.1, 0.2, 0.3]], [[0.5, 0.6, 0.7], [0.1, 0.2, 0.5]])
    of_method = [
        methods_results.values_of(measured, "two classes", name, "", 0.5).tolist()
        for name in ("scaffold", "fedavg")
    ]
    assert of_method == [
        [2, methods_plan.ROUNDS + methods_plan.EVAL_EVERY],
        [0, methods_plan.ROUNDS],
    ]


@pytest.mark.parametrize(
    ("sign", "difference", "verdict"),
    [
        (-1, -2, "reproduced"),
        (-1, 2, "refuted"),
        (1, 2, "reproduced"),
        (1, -2, "refuted"),
        (0, 0, "reproduced"),
        (0, -3, "refuted"),
        (-1, 0, "undecided"),
    ],
)
def test_verdicts_are_those_of_the_protocol(monkeypatch, sign, difference, verdict):
    noise = np.array([-0.1, 0.0, 0.1, 0.0, 0.05])
    endpoint = methods_plan.Endpoint(
        "scaffold", "two classes", "accuracy", "accuracy_mean_clients", "fedavg", sign
    )
    monkeypatch.setattr(methods_results, "ENDPOINTS", (endpoint,))
    runs = {
        name: [[0, 0, (50 + value) / 100] for value in values]
        for name, values in {"scaffold": difference + noise, "fedavg": 0 * noise}.items()
    }
    tuning = pd.DataFrame(
        {"federation": ["two classes"], "algorithm": ["fedavg"], "learning_rate": [0.1],
         "seed": [0], "validation_accuracy": [0.5]}
    )  # fmt: skip
    row, ifca = methods_results.summarize(table_of(**runs), tuning).to_dict("records")
    assert ifca["verdict"] == "refuted"  # One of the runs has 0.94.
    assert row["verdict"] == verdict
    assert row["mean"] == pytest.approx(difference + noise.mean())


def test_images_turn_with_their_clients():
    images = np.arange(6 * 2 * 2, dtype=np.uint8).reshape(6, 2, 2, 1)
    clients = [[5], [1], [2], [3], [4, 0]]
    turned = methods.rotated(from_arrays(images, np.arange(6) % 2, clients, test_fraction=0.0))
    assert turned.groups.tolist() == [0, 1, 2, 3, 0]
    for client, indices in enumerate(clients):
        part = turned.train
        own = part.order[part.offsets[client] :][: part.sizes[client]]
        expected = [np.rot90(images[index], client % 4, axes=(0, 1)) for index in indices]
        np.testing.assert_array_equal(part.features[own], expected)
        assert part.labels[own].tolist() == [index % 2 for index in indices]


def test_agreement_is_that_of_the_last_rounds():
    rounds, slots = 12, 8
    clients = np.arange(rounds * slots).reshape(rounds, slots) % 20
    clusters = (clients + 1) % 4
    clusters[:2] = 0
    dims = ("seed", "training_round", "slot")
    done = xr.Dataset(
        {"cohort_clients": (dims, clients[None]), "aggregation_cluster": (dims, clusters[None])},
        {"seed": [5]},
    )
    assert methods.agreement(done, 5) == 1
    done["aggregation_cluster"][0, 2] = 0
    assert methods.agreement(done, 5) < 1
