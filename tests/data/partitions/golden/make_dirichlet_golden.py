"""Makes dirichlet_flwr_0_6_1.npz with flwr-datasets 0.6.1 (NumPy 2.4.6), which no test needs.

Run it where ``flwr-datasets==0.6.1`` is installed. Each case ``i`` is the labels, the settings and
what ``DirichletPartitioner`` made of them: all indices, client after client, and the sizes.
"""

import warnings
from pathlib import Path

import datasets
import numpy as np
from flwr_datasets.partitioner import DirichletPartitioner

# Labels, clients, alpha, min_partition_size, seed. The second needs several attempts, the third has
# labels that skip a value, the fourth an alpha of each client.
CASES = [
    (np.random.default_rng(0).integers(0, 10, 500), 10, 0.5, 5, 0),
    (np.random.default_rng(1).integers(0, 3, 200), 8, 0.3, 6, 7),
    (np.random.default_rng(2).choice([0, 2, 5], 150), 4, 5.0, 10, 42),
    (np.random.default_rng(3).integers(0, 4, 120), 3, [0.2, 1.0, 4.0], 2, 11),
]


def main() -> None:
    arrays = {}
    for i, (labels, num_clients, alpha, min_partition_size, seed) in enumerate(CASES):
        partitioner = DirichletPartitioner(
            num_partitions=num_clients,
            partition_by="label",
            alpha=alpha,
            min_partition_size=min_partition_size,
            self_balancing=False,
            seed=seed,
        )
        partitioner.dataset = datasets.Dataset.from_dict(
            {"label": labels, "position": np.arange(len(labels))}
        )
        with warnings.catch_warnings(record=True) as repeated:
            warnings.simplefilter("always")
            parts = [partitioner.load_partition(k)["position"] for k in range(num_clients)]
        print(f"case {i}: {len(repeated)} repeated draws")
        arrays |= {
            f"labels_{i}": labels.astype(np.int32),
            f"alpha_{i}": np.asarray(alpha, float),
            f"settings_{i}": np.array([num_clients, min_partition_size, seed]),
            f"order_{i}": np.concatenate(parts).astype(np.int32),
            f"sizes_{i}": np.array([len(part) for part in parts], np.int32),
        }
    np.savez_compressed(Path(__file__).parent / "dirichlet_flwr_0_6_1.npz", **arrays)


if __name__ == "__main__":
    main()
