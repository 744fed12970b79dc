"""The study of published claims: its endpoints, and its rotated data set."""

import numpy as np
import pandas as pd
import pytest

from experiments.reproduction import methods_plan, methods_results


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


@pytest.mark.parametrize(
    ("sign", "difference", "verdict"),
    [
        (-1, -2, "reproduced"),
        (-1, 2, "contradicted"),
        (1, 2, "reproduced"),
        (1, -2, "contradicted"),
        (0, 0, "reproduced"),
        (0, -3, "contradicted"),
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
    assert ifca["verdict"] == "contradicted"  # One of the runs has 0.94.
    assert row["verdict"] == verdict
    assert row["mean"] == pytest.approx(difference + noise.mean())
