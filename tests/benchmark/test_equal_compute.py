"""Results after the operations that federated averaging takes."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair.benchmark.measures import at_round

ROUNDS = [0, 2, 4, 8]
DATASET = xr.Dataset(
    {
        "accuracy": (("round", "seed"), np.array([[0, 0], [1, 10], [2, 30], [3, 50]], float)),
        "examples": ("client", np.array([3, 5])),
    },
    {"round": ROUNDS, "seed": [7, 8]},
)


@pytest.mark.parametrize("at", [2, 2.5, 3, 4, 5, 7.9, 8, 8.5, 100])
def test_values_are_linear_in_the_logarithm_of_the_round(at):
    found = at_round(DATASET, at)
    assert found is not None
    for place in range(2):
        column = DATASET["accuracy"].values[1:, place]
        expected = np.interp(np.log(at), np.log(ROUNDS[1:]), column)
        assert float(found["accuracy"][place]) == pytest.approx(expected)
    np.testing.assert_array_equal(found["examples"], [3, 5])
    assert found["examples"].dtype == DATASET["examples"].dtype
    assert "round" not in found.variables


def test_there_is_no_model_before_the_first_evaluation_after_training():
    assert at_round(DATASET, 1.9) is None
