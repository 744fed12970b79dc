"""Rules of the pilot, which admit federated datasets to the benchmark."""

import pandas as pd
import pytest

from experiments import pilot
from fedjax_fair.benchmark.protocol import TRACKS
from fedjax_fair.benchmark.ranking import CHANCE_SPREAD

BEST = {
    ("fedavg", "network", 32): (0.90, 0.10),
    ("fedavg", "network", 64): (0.905, 0.10),
    ("centralized", "network", 32): (0.93, 0.10),
    ("fine_tuned", "network", 32): (0.90, 0.10),
    ("local_converged", "network", 32): (0.88, 0.10),
    ("centralized", "linear", 32): (0.91, 0.10),
}


def rows(changes=None, chance=0.3, rate=0.1, name="digits"):
    """Rows of three step sizes, of which one is best."""
    table = []
    for (method, model, rounds), (accuracy, deviation) in (BEST | (changes or {})).items():
        for own in (0.01, 0.1, 1.0):
            worse = 0.2 * (own != rate)
            table.append((name, method, model, rounds, own, accuracy - worse, deviation, chance))
    columns = ["federation", "method", "model", "rounds", "learning_rate", "accuracy"]
    return pd.DataFrame(table, columns=[*columns, "standard_deviation", "chance"])


def failed(table):
    (found,) = pilot.rules(table).to_dict("records")
    return [name for name in ("I1", "I2", "I3", "I4", "I5") if not found[name]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"changes": {("fedavg", "network", 64): (0.912, 0.1)}}, ["I1"]),
        ({"changes": {("centralized", "linear", 32): (0.925, 0.1)}}, ["I2"]),
        ({"changes": {("centralized", "linear", 32): (0.925, 0.1)}, "name": "adult"}, []),
        (
            {
                "changes": {
                    ("centralized", "network", 32): (0.904, 0.1),
                    ("local_converged", "network", 32): (0.896, 0.1),
                },
                "name": "adult",
            },
            ["I3"],
        ),
        ({"chance": 0.51}, ["I4"]),
        ({"rate": 0.01}, ["I5"]),
        ({"rate": 1.0}, ["I5"]),
    ],
)
def test_each_rule_decides_by_its_own_runs(options, expected):
    assert failed(rows(**options)) == expected


def test_a_spread_of_a_reference_is_headroom():
    changes = {
        ("centralized", "network", 32): (0.904, 0.1),
        ("local_converged", "network", 32): (0.896, 0.08),
    }
    assert "I3" not in failed(rows(changes, name="adult"))


def test_the_published_pilot_admits_the_datasets():
    found = pilot.rules(pd.read_csv(pilot.FILE)).set_index("federation")
    assert set(TRACKS["embedded"].federations) <= set(found.index)
    assert found[["I1", "I2", "I3", "I5"]].all(axis=None)
    for track, names in CHANCE_SPREAD.items():
        own = found[found.index.isin(TRACKS[track].federations)]
        assert set(own.index[~own["I4"].astype(bool)]) == set(names) & set(own.index)
