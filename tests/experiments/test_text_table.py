"""The table of roles with little and with much text."""

import numpy as np
import pandas as pd

from experiments.reproduction import text


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
