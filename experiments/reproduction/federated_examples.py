"""Welfare, public projects and feature selection: what voting can and cannot find.

    python -m experiments.reproduction.federated_examples

Writes one table. Everything is made here or comes with scikit-learn.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids, rounding

AGENTS, ITEMS, NEEDS, ROUNDS = 8, 24, 3, 24
HOSPITALS, FEATURES = 10, 5


def main() -> None:
    parser = argparse.ArgumentParser(description="Examples of federated maximization.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("docs/reproduction"))
    options = parser.parse_args()
    rows = [
        row
        for seed in range(options.seeds)
        for row in [*welfare_and_projects(seed), *features(seed)]
    ]
    table = pd.DataFrame(rows).groupby(["problem", "method"], sort=False).agg("mean")
    table = table.drop(columns="seed")
    file = options.output / "federated-maximization-examples.csv"
    table.to_csv(file, float_format="%.4f")
    print(table.round(4).to_string())


def welfare_and_projects(seed: int) -> list[dict[str, Any]]:
    """The same valuations, once divided among agents and once for all.

    ``extension`` and ``value`` are shares of what centralized greedy finds; ``apart`` is the
    largest distance of the fractional point from the uniform split of every item.
    """
    rng = np.random.default_rng(seed)
    valuations = rng.gamma(0.5, size=(AGENTS, NEEDS, ITEMS)).astype(np.float32)
    projects = fed.combinatorial_public_projects(valuations)
    divided = fed.Welfare(projects)
    rows = voted("welfare", seed, divided, matroids.allocation(ITEMS, AGENTS), 1 / AGENTS)
    chosen = matroids.Uniform(ITEMS // 4, ITEMS)
    return rows + voted("public projects", seed, projects, chosen, 1 / 4)


def voted(name, seed, problem, matroid, uniform) -> list[dict[str, Any]]:
    greedy = float(fed.centralized_greedy(problem, matroid).values[-1])
    rows, key = [], jax.random.key(seed)
    for send in ("base", "gradient"):
        run = fed.fedcg(key, problem, matroid, ROUNDS, send=send)
        rounded = rounding.pipage(jax.random.fold_in(key, 1), matroid, run.x)
        rows.append(
            {
                "problem": name,
                "method": f"fedcg, {send}",
                "seed": seed,
                "extension": float(run.extension[-1]) / greedy,
                "value": float(problem.value(rounded)) / greedy,
                "apart": float(jnp.max(jnp.abs(run.x - uniform))),
            }
        )
    return rows


def features(seed: int) -> list[dict[str, Any]]:
    """Features of breast-cancer patients, chosen by ten hospitals whose patients stay private.

    ``value`` is the share of the mean information that centralized greedy finds; ``accuracy`` is
    that of logistic regression on the chosen features, in 5-fold cross-validation of all.
    """
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    measured, labels = map(np.asarray, load_breast_cancer(return_X_y=True))
    binary = (measured > np.median(measured, axis=0)).astype(int)
    places = np.array_split(np.random.default_rng(seed).permutation(len(labels)), HOSPITALS)
    own = fed.feature_selection(
        [binary[place] for place in places], [labels[place] for place in places], num_examples=500
    )
    pooled = fed.feature_selection([binary], [labels], num_examples=5000)
    matroid, key = matroids.Uniform(FEATURES, measured.shape[1]), jax.random.key(seed)
    factors = np.asarray(fed.importance_factors(own).factors)
    kappa = fed.kappa_for_responses(factors, HOSPITALS // 2)

    def discrete(kappa):
        return fed.discrete_greedy(key, own, matroid, kappa=kappa).chosen

    sets = {
        "centralized": fed.centralized_greedy(own, matroid).chosen,
        "pooled patients": fed.centralized_greedy(pooled, matroid).chosen,
        "discrete greedy, all": discrete(1e30),
        "discrete greedy, half": discrete(kappa),
        "popular": fed.top_singletons(own, matroid),
        "random": fed.random_base(key, matroid),
    }
    best = float(own.value(sets["centralized"]))
    classifier = make_pipeline(StandardScaler(), LogisticRegression())
    return [
        {
            "problem": "features",
            "method": name,
            "seed": seed,
            "value": float(own.value(chosen)) / best,
            "accuracy": cross_val_score(
                classifier, measured[:, np.asarray(chosen)], labels, cv=5
            ).mean(),
        }
        for name, chosen in sets.items()
    ]


if __name__ == "__main__":
    main()
