"""A made-up table of people, and ordered classes."""

import numpy as np
import pandas as pd

TOTAL = 120


def make_table(total=TOTAL, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, total),
            "hours": rng.normal(40, 10, total),
            "job": rng.choice(["cook", "clerk", "nurse"], total),
            "owner": rng.random(total) < 0.5,
            "sex": rng.choice(["F", "M"], total),
            "race": rng.choice(["x", "y", "z"], total),
            "town": rng.choice(["north", "south", "west"], total),
            "salary": rng.choice(["<=50K", ">50K"], total),
        }
    )


TABLE = make_table()
BASE = {"label": "salary", "client": "town", "sensitive_features": ["sex", "race"]}
LEVELS = ["low", "medium", "high", "extreme"]


def ordered(values, levels=LEVELS):
    return pd.Categorical(values, levels, ordered=True)
