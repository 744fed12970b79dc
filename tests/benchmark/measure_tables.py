"""Tables of measures for tests of statistics."""

import numpy as np
import pandas as pd

SEEDS = range(1200, 1212)


def long_table(values, measure="accuracy", criterion="mean", seeds=SEEDS):
    """Makes a table of measures from ``{federation: {method: values by seed}}``."""
    return pd.DataFrame(
        {
            "federation": federation,
            "method": method,
            "model": "global",
            "criterion": criterion,
            "seed": seed,
            "measure": measure,
            "value": value,
            "is_diverged": False,
        }
        for federation, methods in values.items()
        for method, runs in methods.items()
        for seed, value in zip(seeds, runs, strict=True)
    )


def random_values(methods, federations=("digits", "synthetic", "groups"), seed=0, shift=None):
    """Draws normal values; federations differ in mean and spread."""
    rng = np.random.default_rng(seed)
    return {
        federation: {
            method: level + spread * (rng.normal(size=len(SEEDS)) + (shift or {}).get(method, 0))
            for method in methods
        }
        for federation, level, spread in zip(
            federations, (0.5, 0.7, 0.9), (0.1, 0.01, 0.03), strict=False
        )
    }
