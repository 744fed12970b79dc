"""The table of roles with little and with much text."""

import gzip
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.reproduction import text
from fedjax_fair.app.settings.config import ModelConfig, TrainingConfig


def runs_of(slope, seeds=4, roles=12):
    """Accuracies that rise by ``slope`` points per doubling, and those of a method without."""
    rng = np.random.default_rng(0)
    characters = rng.integers(500, 20_000, roles)
    rows = [
        {
            "algorithm": name,
            "seed": seed,
            "role": f"role {role}",
            "characters": characters[role],
            "test_characters": characters[role] // 4,
            "accuracy": 0.3 + rise * np.log2(characters[role]) / 100 + noise[role],
            "loss": 2.0 + role / 10,
        }
        for name, rise in (("fedavg", slope), ("tilted", 0.0))
        for seed, noise in enumerate(0.01 * rng.normal(size=(seeds, roles)))
        for role in range(roles)
    ]
    return pd.DataFrame(rows)


def test_the_table_equals_its_definitions():
    runs = runs_of(1.5)
    table = text.summarize(runs).set_index("method")
    for name, own in runs.groupby("algorithm"):
        by_seed = [of_seed for _, of_seed in own.groupby("seed")]
        fits = [np.polyfit(np.log2(r["characters"]), 100 * r["accuracy"], 1)[0] for r in by_seed]
        np.testing.assert_allclose(table.loc[name, "slope"], np.mean(fits))
        ordered = [100 * r.sort_values("characters")["accuracy"].to_numpy() for r in by_seed]
        gaps = [each[-4:].mean() - each[:4].mean() for each in ordered]
        np.testing.assert_allclose(table.loc[name, "gap"], np.mean(gaps))
        worst = [np.sort(each)[:4].mean() for each in ordered]
        np.testing.assert_allclose(table.loc[name, "worst"], np.mean(worst))
        one = by_seed[0]
        pooled = np.exp(np.average(one["loss"], weights=one["test_characters"]))
        np.testing.assert_allclose(table.loc[name, "perplexity"], pooled)
    assert table.loc["fedavg", "slope low"] < 1.5 < table.loc["fedavg", "slope high"]
    assert table.loc["fedavg", "slope roles low"] > 0.5
    np.testing.assert_allclose(
        table.loc["tilted", "slope less fedavg"],
        table.loc["tilted", "slope"] - table.loc["fedavg", "slope"],
    )
    assert "| tilted |" in text.markdown(table.reset_index())


def test_only_seeds_of_all_methods_count():
    runs: Any = runs_of(1.0)
    some = runs[(runs["algorithm"] == "fedavg") | (runs["seed"] < 2)]
    expected = text.summarize(runs[runs["seed"] < 2])
    pd.testing.assert_frame_equal(text.summarize(some), expected)


def test_interrupted_runs_continue(tmp_path, capsys):
    lines = [
        json.dumps({"play": "hamlet", "role": role, "text": 40 * role}) for role in ("ab", "cd")
    ]
    (tmp_path / "shakespeare.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    config = replace(
        text.CONFIG,
        methods=("fedavg", "tilted"),
        data=replace(text.CONFIG.data, clients=2, length=8, min_characters=50),
        model=ModelConfig(layers=1, width=8),
        selector=replace(text.CONFIG.selector, cohort_size=2),
        training=TrainingConfig(rounds=2, eval_every=2, seeds=(0,)),
    )
    file = tmp_path / "runs.csv"
    text.run_missing(file, str(tmp_path), config)
    done = file.read_text()
    rows = pd.read_csv(file)
    assert len(rows) == 4
    assert rows["accuracy"].between(0, 1).all()
    file.write_text("".join(done.splitlines(keepends=True)[:3]))
    capsys.readouterr()
    text.run_missing(file, str(tmp_path), config)
    assert file.read_text() == done
    assert "tilted, seed 0" in (shown := capsys.readouterr().out)
    assert "fedavg, seed 0" not in shown


def test_slopes_over_roles_contain_the_slope():
    rng = np.random.default_rng(1)
    size = rng.normal(size=40)
    low, high = text.slope_over_roles(size, 2 * size + 0.1 * rng.normal(size=40))
    assert low < 2.0 < high
    assert high - low < 0.3
    assert text.slopes(size, np.ones(40)) == pytest.approx(0, abs=1e-12)
