"""The study of adapters: its federated datasets, its choice of step sizes and its comparisons."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.reproduction import adapters_plan as plan
from experiments.reproduction import adapters_results as results

ROOT = Path(__file__).parents[2]
SEEDS = range(4)
BYTES = {"head": 5, "lora r=1": 9, "lora r=4": 12, "lora r=16": 40, "fedsa r=4": 9, "local r=4": 0}


def parts_of(data, seed):
    """Examples of each client by part."""
    partition = data.partition(seed)
    names = ("train", "validation", "test")
    return {name: getattr(partition, name).client_indices for name in names}


def test_clients_of_digits_have_other_images_than_the_base():
    base, data = plan.digits(None, (0, 1))
    of_base = {image.tobytes() for image in np.asarray(base.train.features)}
    assert set(np.unique(base.train.labels)) == set(range(5))
    for seed in (0, 1):
        clients = parts_of(data, seed)
        everyone = np.concatenate([np.concatenate(part) for part in clients.values()])
        assert len(np.unique(everyone)) == len(everyone)
        assert not of_base & {data.train.features[one].tobytes() for one in everyone}
        far = np.asarray(data.partition(seed).groups) == 1
        for part in clients.values():
            labels = [data.train.labels[client] for client in part]
            assert [bool((one >= 5).all()) for one in labels] == list(far)
            assert [bool((one < 5).all()) for one in labels] == list(~far)


def test_roles_are_of_other_plays_than_the_base(tmp_path):
    plays = [*plan.COMEDIES, *plan.HISTORIES]
    letters = {play: chr(ord("a") + index) for index, play in enumerate(plays)}
    with gzip.open(tmp_path / "shakespeare.jsonl.gz", "wt") as file:
        for play, letter in letters.items():
            for role in range(2):
                # Speeches of one window each, of which the first has a mark.
                for speech in range(161):
                    text = ("!" if speech == 0 else letter) + plan.LENGTH * letter
                    file.write(json.dumps({"play": play, "role": str(role), "text": text}) + "\n")
    base, data = plan.shakespeare(str(tmp_path), (3,))
    alphabet = "".join(sorted({*letters.values(), "!"}))

    def plays_of(windows):
        found = {alphabet[token] for token in np.unique(windows) if token < len(alphabet)} - {"!"}
        return {play for play, letter in letters.items() if letter in found}

    windows = np.concatenate([base.train.features, base.test.features])
    assert plays_of(windows) == set(plan.COMEDIES[::2])
    clients, groups = parts_of(data, 0), np.asarray(data.partition(0).groups)
    for client in range(20):
        shown = [clients[part][client] for part in ("train", "validation", "test")]
        assert [len(part) for part in shown] == [80, 20, 60]
        assert max(np.concatenate(shown[:2])) < min(shown[2])
        (play,) = plays_of(data.train.features[np.concatenate(shown)])
        assert play in (plan.HISTORIES if groups[client] else plan.COMEDIES[1::2])


def table_of(values):
    """Rows of runs: full training from 50 % up by a point per round, others by ``values``."""
    rows = []
    for federation in plan.FEDERATIONS:
        for method in plan.METHODS:
            for seed in SEEDS:
                for round in range(0, plan.ROUNDS + 1, 2):
                    accuracy = 0.5 + 0.01 * round + 0.001 * seed
                    row = {"federation": federation, "algorithm": method, "learning_rate": 0.1}
                    row |= {"seed": seed, "round": round, "bytes_up": 100 * round}
                    row |= {"accuracy": accuracy, "worst": accuracy - 0.2, "dissimilarity": 0.1}
                    row |= {"spread": 0.3 - 0.002 * round, "near": accuracy, "far": accuracy - 0.1}
                    if method != plan.ALL:
                        row["bytes_up"] = BYTES.get(method, 7) * round
                        row |= {name: value[seed] for name, value in values.items()}
                    rows.append(row)
    return pd.DataFrame(rows)


SPREADS, ACCURACIES = np.array([0.25, 0.27, 0.22, 0.26]), np.array([0.6, 0.62, 0.7, 0.605])


def test_comparisons_are_paired_at_equal_rounds_bytes_and_means():
    runs = table_of({"spread": SPREADS, "accuracy": ACCURACIES})
    keys = ["federation", "method", "at", "measure"]
    table = results.summarize(runs, runs).set_index(keys).sort_index()
    # Twelve bytes in each of 48 rounds are those of full training in 5.76 rounds.
    rounds = {
        "equal rounds": np.full(4, 48),
        "equal bytes": np.full(4, 4),
        "equal mean": np.array([10, 12, 20, 10]),
    }
    for at, round in rounds.items():
        differences = 100 * (SPREADS - (0.3 - 0.002 * round))
        row = table.loc["digits", "lora r=4", at, "spread"]
        half = stats.sem(differences) * stats.t.ppf(0.975, 3)
        mean = differences.mean()
        np.testing.assert_allclose(row[["low", "difference", "high"]].astype(float),
                                   [mean - half, mean, mean + half])  # fmt: skip
    t = (SPREADS - 0.204).mean() / stats.sem(SPREADS)
    p = 2 * stats.t.sf(abs(t), 3)
    claims = table[table["p"].notna()]
    assert len(claims) == 6
    np.testing.assert_allclose(claims["p"], p)
    np.testing.assert_allclose(claims["p_holm"], 6 * p)
    assert "equal bytes" not in table.loc["digits", "local r=4"].index


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.2, "wider"), (-0.2, "narrower"), (-0.04, "undecided")]
)
def test_verdicts_are_those_of_the_protocol(shift, verdict):
    runs = table_of({"spread": SPREADS + shift})
    table = results.summarize(runs, runs)
    assert set(table.loc[table["p"].notna(), "verdict"]) == {verdict}
    assert set(table.loc[table["p"].isna(), "verdict"]) == {""}


def test_full_training_has_the_best_step_size_for_each_budget():
    runs = table_of({})
    early = runs.assign(learning_rate=1.0)
    # The larger step size is better in the first five rounds, for full training only.
    is_early = (early["algorithm"] == plan.ALL) & (early["round"] < 5)
    early["accuracy"] += np.where(is_early, 0.1, -0.1)
    rates = results.chosen_rates(pd.concat([runs, early]), "digits")
    expected = {(method, 0.1): plan.ROUNDS for method in plan.METHODS}
    assert rates == expected | {(plan.ALL, 1.0): 4}


def test_costs_are_those_of_the_layers():
    costs = pd.read_csv(ROOT / "docs/reproduction/adapters-costs.csv")
    costs = costs.set_index(["federation", "algorithm"])[["parameters", "bytes"]]
    sides, head = [(64, 128), (128, 128)], 128 * 10 + 10
    full = sum(inputs * outputs + outputs for inputs, outputs in sides) + head
    both = sum(map(sum, sides))
    expected = {
        "full": (full, full), "head": (head, head), "ffa r=4": (4 * 256 + head,) * 2,
        "fedsa r=4": (4 * both + head, 4 * 192 + head), "local r=4": (4 * both + head, 0),
        **{f"lora r={rank}": (rank * both + head,) * 2 for rank in (1, 4, 16)},
    }  # fmt: skip
    for method, (parameters, sent) in expected.items():
        assert tuple(costs.loc["digits", method]) == (parameters, 4 * sent), method
