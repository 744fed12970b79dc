"""Makes apricot_0_6_1.npz with apricot-select 0.6.1, which no test needs.

Run it where the requirements of ``experiments/benchmarks/peers/programs/apricot.txt`` are
installed. Each key ``function:setting:optimizer`` has the hundred rows that were selected, and
``gains:`` before it what they gained. The data are the digits of scikit-learn, and ``members``,
packed bits of a random membership.
"""

import warnings
from itertools import product
from pathlib import Path

import apricot
import numpy as np
from scipy import sparse
from sklearn.datasets import load_digits

K = 100
OPTIMIZERS = ("naive", "lazy", "two-stage")
METRICS = ("euclidean", "corr", "cosine")  # Of squares of distances and of correlations.
GRAPHS = {
    "location": apricot.FacilityLocationSelection,
    "saturated": apricot.SaturatedCoverageSelection,
    "cut": apricot.GraphCutSelection,
}


def cases(digits, members):
    """Function, setting, optimizer, model and data of every comparison."""
    for (name, make), metric, optimizer in product(GRAPHS.items(), METRICS, OPTIMIZERS):
        yield name, metric, optimizer, make(K, metric, optimizer=optimizer), digits
    for concave, optimizer in product(("sqrt", "log", "sigmoid"), OPTIMIZERS):
        model = apricot.FeatureBasedSelection(K, concave, optimizer=optimizer)
        yield "features", concave, optimizer, model, digits
    for optimizer in OPTIMIZERS:
        model = apricot.MaxCoverageSelection(K, optimizer=optimizer)
        yield "coverage", "even", optimizer, model, members
    neighbors = sparse.csr_matrix(nearest(digits, 50))
    model = apricot.FacilityLocationSelection(K, "precomputed", optimizer="lazy")
    yield "location", "neighbors", "lazy", model, neighbors


def nearest(digits, count):
    """Squared cosines of every row with the most similar ones, and 0 elsewhere."""
    directions = digits / np.linalg.norm(digits, axis=1, keepdims=True)
    near = (directions @ directions.T) ** 2
    least = np.sort(near, axis=1)[:, -count, None]
    return np.where(near >= least, near, 0)


def main() -> None:
    digits = load_digits().data
    members = np.random.default_rng(0).random((300, 1000)) < 0.01
    arrays = {"members": np.packbits(members)}
    for name, setting, optimizer, model, data in cases(digits, members.astype(float)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(data)
        key = f"{name}:{setting}:{optimizer}"
        arrays |= {key: model.ranking.astype(np.int16), f"gains:{key}": model.gains}
    np.savez_compressed(Path(__file__).parent / "apricot_0_6_1.npz", **arrays)


if __name__ == "__main__":
    main()
