"""Contents of a report from a seeded generator: three federations, twelve methods."""

import numpy as np
import pandas as pd
from measure_tables import long_table

from experiments.benchmark_page.page import About
from fedjax_fair.benchmark import verdicts
from fedjax_fair.benchmark.collected import Collected
from fedjax_fair.benchmark.measure_labels import MEASURES
from fedjax_fair.benchmark.measures import CONSTANTS
from fedjax_fair.benchmark.pool_errors import COLUMNS
from fedjax_fair.benchmark.ranking import chance_shares
from fedjax_fair.benchmark.report_contents import Contents

FEDERATIONS = ("digits", "groups", "<script>alert(1)</script>&")
KINDS = {
    "fedavg": "reference", "centralized": "reference", "local_converged": "reference",
    "fine_tuned": "personalization", "power_of_choice": "selection", "divfl": "selection",
    "q_fedavg": "weighting", "tilted": "loss", "fedadam": "server optimizer",
    "scaffold": "drift correction", "ditto": "personalization",
    "divfl+a_long_name_of_a_method_without_spaces": "pair",
}  # fmt: skip
METHODS = tuple(KINDS)
FOUND_FEDERATIONS = ("digits", "synthetic", "groups")
FOUND_METHODS = ("fedavg", "ditto", "scaffold", "tilted", "entered")
BLOCKS = range(1200, 1208)
REFERENCES = ("fedavg", "centralized", "local_converged")


SHIFTS = {"ditto": -0.05, "scaffold": 0.04}
"""Differences of accuracy and of spread that methods have."""


def make_measures(seed=0, federations=FEDERATIONS, methods=METHODS):
    """Draws a table of measures with eight blocks."""
    rng = np.random.default_rng(seed)
    runs = [("accuracy", "mean"), ("accuracy", "fairest"), ("accuracy", "compute")]
    runs += [("accuracy", "stopped")]
    runs += [(name, "fairest") for name in ("standard_deviation", "worst_10pct", "gini")]
    runs += [("standard_deviation", "mean"), ("standard_deviation", "stopped")]
    runs += [("noise_floor", "mean")]
    return pd.concat([
        long_table(
            {name: {m: rng.normal(0.5 + SHIFTS.get(m, 0), 0.005, len(BLOCKS)) for m in methods}
             for name in federations},
            measure, criterion, BLOCKS,
        )
        for measure, criterion in runs
    ], ignore_index=True)  # fmt: skip


def make_contents(seed=0, federations=FEDERATIONS, methods=METHODS):
    rng = np.random.default_rng(seed)
    results = pd.DataFrame(
        [_result(rng, federation, method) for federation in federations for method in methods]
    )
    table = make_measures(seed, federations, methods)
    options = {"without_spread": ("groups",), "at_limit": {("digits", "tilted")}}
    differences = verdicts.differences(table, "fedavg", **options)
    ranks = verdicts.overall(table, "fedavg", methods, differences, **options)
    curves = pd.concat([
        _curve(rng, federation, method) for federation in federations for method in methods
    ], ignore_index=True)  # fmt: skip
    return Contents(
        list(federations), results, verdicts.statements(ranks, differences), ranks, differences,
        verdicts.undecided(ranks, differences), chance_shares(table, "fedavg"), ("groups",), curves,
    )  # fmt: skip


def make_found(names=FOUND_FEDERATIONS, **changes):
    """Results of a benchmark, as far as the report reads them."""
    units = pd.DataFrame([(name, m) for name in names for m in FOUND_METHODS])
    settings = units.set_axis(["federation", "method"], axis=1).assign(at_limit="")
    constants = pd.DataFrame(columns=[f"constant_{name}" for name in CONSTANTS], dtype=float)
    equal = {name: dict.fromkeys(FOUND_METHODS, [1e6] * len(BLOCKS)) for name in names}
    operations = long_table(equal, "operations", "mean", BLOCKS)
    found = Collected(
        track="embedded",
        environments=[],
        failures=[],
        runs=pd.concat([make_measures(1, names, FOUND_METHODS), operations]),
        clients=pd.DataFrame(columns=["federation", "method", "seed"]),
        losses=pd.DataFrame(columns=["federation", "method", "seed"]),
        settings=settings,
        curves=pd.DataFrame(),
        answers=pd.DataFrame(),
        pool_errors=pd.DataFrame(columns=COLUMNS).astype({"se": float}),
        federations=pd.DataFrame({"federation": names}).join(constants),
        methods=pd.DataFrame(
            {"method": FOUND_METHODS, "kind": "fair", "file": ["", "", "", "", "entered.py"]}
        ),
        cells=pd.DataFrame(),
    )
    return found._replace(**changes)


def make_about(federations=FEDERATIONS, methods=METHODS):
    return About(
        title="Fair federated learning: benchmark of <b>methods</b>",
        protocol="1.0",
        track="embedded",
        environment={"jax": "0.8.1", "device": "2 CPU cores", "note": "</pre><script>x</script>"},
        settings="Every method had 16 settings and 3 tuning seeds; 16 other seeds are shown.",
        command="fedjax-fair benchmark --seed 0",
        federations=pd.DataFrame([
            {
                "name": name, "summary": f"Federation {name}, split by Dirichlet(0.3).",
                "clients": 100, "unseen_clients": 20, "rounds": 100, "model": "logistic",
                "target": np.nan if place else 0.8,
                "constant_accuracy": 0.1, "data_digest": "f" * 64,
            }
            for place, name in enumerate(federations)
        ]),
        methods=pd.DataFrame([
            {
                "method": name, "kind": KINDS[name], "summary": f"Summary of {name} & <i>more</i>.",
                "paper": "Li et al. (2020), Fair resource allocation",
                "link": "https://arxiv.org/abs/1905.10497", "formula": "min F(w)^(q+1)",
                "tuned": dict.fromkeys(federations, "learning_rate=0.1, q=1.0"),
                "command": f"fedjax-fair run {federations[0]} --methods {name} --seeds 100:116",
            }
            for name in methods
        ]),
    )  # fmt: skip


def _result(rng, federation, method):
    row = {
        "federation": federation, "method": method, "kind": KINDS[method],
        "model": "personalized" if KINDS[method] == "personalization" else "global",
        "seeds": len(BLOCKS), "diverged": 0.125 if method == "tilted" else 0.0,
        "is_reference": method in REFERENCES,
        "at_limit": (federation, method) == ("digits", "tilted"),
    }  # fmt: skip
    for name in MEASURES:
        row[name] = rng.uniform(0.6, 0.9) if "accuracy" in name else rng.uniform(0.02, 0.3)
        row[f"{name}_half"] = rng.uniform(0.001, 0.02)
        if name.startswith("megabytes"):
            row[name] *= 10_000
    for name in MEASURES:
        is_people = "parity" in name or "opportunity" in name
        has_reached = method not in ("divfl", "tilted") or "target" not in name
        has_unseen = method != "local_converged" or "unseen" not in name
        if (is_people and federation != "groups") or not has_reached or not has_unseen:
            row[name] = row[f"{name}_half"] = np.nan
    return row


def _curve(rng, federation, method):
    rounds = np.arange(0, 101, 5)
    mean = rng.uniform(0.7, 0.9) * (1 - np.exp(-rounds / rng.uniform(10, 40)))
    table = {"federation": federation, "method": method, "round": rounds, "accuracy": mean}
    return pd.DataFrame(table | {"low": mean - 0.02, "high": mean + 0.02})
