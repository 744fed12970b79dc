"""Approximations of contributions, against exact ones in cases in which they agree."""

import numpy as np
import pytest
from test_contributions import METRIC, federation, method

import fedjax_fair as ff
from fedjax_fair.analysis.shapley import agreement


@pytest.fixture(scope="module")
def data():
    return federation()


def exact_and_compared(data, round, **settings):
    given = {"rounds": 1, "seeds": (0, 3), "metric": METRIC} | settings
    exact = ff.analysis.contributions(round, data, **given)
    return exact, ff.analysis.approximate_contributions(round, data, exact)


@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
def test_rounds_are_exact_for_a_single_round(data, weights):
    selector = ff.selectors.Uniform(4)  # All clients, in other orders.
    round = method(data, selector, ff.aggregators.Mean(weights), batch_size=3)
    exact, compared = exact_and_compared(data, round)
    per_round = compared.estimate.sel(approximation="per_round")
    np.testing.assert_allclose(per_round, exact.values, rtol=1e-4)
    np.testing.assert_allclose(compared.rank_correlation.sel(approximation="per_round"), 1)
    sampled = compared.estimate.sel(approximation="gtg_shapley")
    np.testing.assert_allclose(sampled, exact.values, atol=0.1 * exact.values.max())
    # Within the tolerance at which orders end.
    np.testing.assert_allclose(sampled.sum("client"), exact.values.sum(axis=1), atol=1e-3)


def test_sums_over_rounds_are_the_gain_of_the_run(data):
    exact, compared = exact_and_compared(data, method(data, batch_size=3), rounds=3)
    gain = exact.utilities[:, -1] - exact.utilities[:, 0]
    for name in ("per_round", "size"):
        total = compared.estimate.sel(approximation=name).sum("client")
        np.testing.assert_allclose(total, gain, rtol=1e-4)
    errors = np.abs(compared.estimate.sel(approximation="per_round") - exact.values).max("client")
    assert (errors > 0.01).all()  # It is an approximation for more than one round.
    np.testing.assert_allclose(compared.largest_error.sel(approximation="per_round"), errors)
    np.testing.assert_array_equal(
        compared.estimate.sel(approximation="leave_one_out"), exact.leave_one_out
    )
    scores = agreement(exact.leave_one_out[1], exact.values[1])
    of_seed = compared.sel(approximation="leave_one_out").isel(seed=1)
    assert {name: of_seed[name].item() for name in scores} == pytest.approx(scores)


def test_bad_input(data):
    round = method(data)
    exact = ff.analysis.contributions(round, data, rounds=1)
    approximate = ff.analysis.approximate_contributions
    for other in (
        round.replace(aggregator=ff.aggregators.Median()),
        round.replace(faults=ff.faults.Dropout(0.1)),
    ):
        with pytest.raises(ValueError, match=r"expected aggregators\.Mean without faults and"):
            approximate(other, data, exact)
    with pytest.raises(ValueError, match="expected all clients in every round"):
        approximate(round.replace(selector=ff.selectors.Uniform(2)), data, exact)
    with pytest.raises(ValueError, match="exact is a Dataset: expected a Contributions"):
        approximate(round, data, exact.dataset)
    with pytest.raises(ValueError, match="min_gain=-1: expected a number >= 0"):
        approximate(round, data, exact, min_gain=-1)
