"""Makes submodlib_0_0_3.npz with submodlib-py 0.0.3, which no test needs.

Run it where the requirements of ``experiments/benchmarks/peers/programs/submodlib.txt`` are
installed. Of every seed there are the random data, and for each function the items that naive
greedy selected, and their gains.
"""

from pathlib import Path

import numpy as np
import submodlib as peer
from submodlib_cpp import FeatureBased

SEEDS = range(3)
N, QUERIES, PRIVATE, TOPICS, K = 36, 3, 3, 20, 12


def data(seed):
    """Similarities of items, then queries, then private items; memberships; weights of topics."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(N + QUERIES + PRIVATE, 4))
    apart = np.linalg.norm(points[:, None] - points, axis=-1)
    amounts = rng.gamma(0.3, size=(N, TOPICS))
    amounts -= amounts.min(axis=0)  # As submodlib scales them.
    return {
        "near": np.exp(-(apart**2) / 4).astype(np.float32),
        "members": rng.random((N, TOPICS)) < 0.2,
        "probabilities": (rng.random((N, TOPICS)) ** 3).astype(np.float32),
        "amounts": (amounts / amounts.max(axis=0)).astype(np.float32),
        "weights": rng.gamma(1.0, size=TOPICS).astype(np.float32),
    }


def functions(near, members, probabilities, amounts, weights):
    """The functions by name."""
    inside, queried, private = (
        near[:N, :N].copy(),
        near[:N, N : N + QUERIES].copy(),
        near[:N, N + QUERIES :].copy(),
    )
    covers = [set(np.flatnonzero(row).tolist()) for row in members]
    topics = {"num_concepts": TOPICS, "concept_weights": weights.tolist()}

    def based(mode):
        kind = getattr(FeatureBased, mode)
        return peer.FeatureBasedFunction(N, amounts.tolist(), TOPICS, False, mode=kind)

    return {
        "location": peer.FacilityLocationFunction(N, "dense", separate_rep=False, sijs=inside),
        "rectangular": peer.FacilityLocationFunction(
            N, "dense", separate_rep=True, n_rep=len(near), sijs=near[:, :N].copy()
        ),
        "cut": peer.GraphCutFunction(N, "dense", 0.4, ggsijs=inside),
        "volume": peer.LogDeterminantFunction(N, "dense", 1.0, sijs=inside),
        "coverage": peer.SetCoverFunction(N, covers, **topics),
        "probabilistic": peer.ProbabilisticSetCoverFunction(N, probabilities.tolist(), **topics),
        "sqrt": based("squareRoot"),
        "log": based("logarithmic"),
        "inverse": based("inverse"),
        "sum": peer.DisparitySumFunction(N, "dense", sijs=inside),
        "min": peer.DisparityMinFunction(N, "dense", sijs=inside),
        "gain": peer.FacilityLocationConditionalGainFunction(
            N, PRIVATE, data_sijs=inside, private_sijs=private
        ),
        "information": peer.FacilityLocationMutualInformationFunction(
            N, QUERIES, data_sijs=inside, query_sijs=queried
        ),
        "conditional": peer.FacilityLocationConditionalMutualInformationFunction(
            N, QUERIES, PRIVATE, data_sijs=inside, query_sijs=queried, private_sijs=private
        ),
        "covered queries": peer.SetCoverMutualInformationFunction(
            N, covers, query_concepts=set(range(8)), **topics
        ),
        "covered beside": peer.SetCoverConditionalGainFunction(
            N, covers, private_concepts=set(range(8)), **topics
        ),
    }


def main() -> None:
    arrays = {}
    for seed in SEEDS:
        given = data(seed)
        arrays |= {f"{seed}:{name}": values for name, values in given.items()}
        for name, function in functions(**given).items():
            chosen = function.maximize(
                budget=K,
                optimizer="NaiveGreedy",
                stopIfZeroGain=False,
                stopIfNegativeGain=False,
                verbose=False,
                show_progress=False,
            )
            arrays[f"{seed}:{name}:items"] = np.array([item for item, _ in chosen], np.int16)
            arrays[f"{seed}:{name}:gains"] = np.array([gain for _, gain in chosen])
    np.savez_compressed(Path(__file__).parent / "submodlib_0_0_3.npz", **arrays)


if __name__ == "__main__":
    main()
