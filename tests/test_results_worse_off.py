"""Shares of clients that are worse off than with a reference."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair.results import share_worse_off

DIMS = ("algorithm", "seed", "round", "client")


def make_results(methods=("fedavg", "ditto", "local")):
    """Accuracies of two seeds, two evaluations and seven clients, one without test examples."""
    rng = np.random.default_rng(0)
    accuracy = rng.integers(0, 4, (2, len(methods), 2, 2, 7)) / 4
    accuracy[..., 3] = np.nan
    models, personalized = accuracy
    models[-1], personalized[0] = np.nan, np.nan  # `local` has no global model, FedAvg no others.
    values = {"test_accuracy": (DIMS, models), "personalized_test_accuracy": (DIMS, personalized)}
    return xr.Dataset(values, {"algorithm": list(methods)}), models, personalized


def test_the_share_counts_clients_with_lower_accuracy():
    """The last evaluation counts, of the reference's personalized models; ties do not count."""
    results, models, personalized = make_results()
    shares = share_worse_off(results, "local")
    assert shares["algorithm"].values.tolist() == [
        "fedavg", "ditto", "ditto (personalized)", "local (personalized)",
    ]  # fmt: skip
    served = [models[0], models[1], personalized[1]]
    for model, share in zip(served, shares.values[:3], strict=True):
        for seed in range(2):
            worse = [
                model[seed, -1, client] < personalized[2, seed, -1, client]
                for client in range(7)
                if client != 3
            ]
            assert share[seed] == pytest.approx(sum(worse) / 6)
    assert np.isnan(shares.values[3]).all()


def test_the_reference_is_a_method_of_the_results():
    with pytest.raises(ValueError, match=r"^reference='local'"):
        share_worse_off(make_results(("fedavg", "ditto", "alone"))[0], "local")
