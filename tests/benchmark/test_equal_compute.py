"""Results after the operations, or the megabytes, that federated averaging takes."""

import numpy as np
import pytest
import xarray as xr

from fedjax_fair.benchmark.measures import Final, at_megabytes, at_round

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


def final_of(method, bytes_per_round, federation="digits", criterion="mean"):
    sent = xr.DataArray(np.multiply.outer(ROUNDS, [1, 1]), dims=("round", "seed"))
    dataset = DATASET.assign(
        bytes_up=sent * bytes_per_round * 1e6, bytes_down=2 * sent * bytes_per_round * 1e6
    )
    rounds, last = np.full(2, 8.0), dataset.isel(round=-1)
    return Final(federation, method, criterion, [{}, {}], rounds, "global", dataset, last)


@pytest.mark.parametrize(
    ("factor", "rounds"), [(1, 8), (0.25, 8), (0, 8), (2, 4), (8 / 3, 3), (4, 2)]
)
def test_a_method_stops_when_it_has_sent_what_fedavg_sends(factor, rounds):
    found = [final_of("fedavg", 3.0), final_of("other", 3.0 * factor)]
    found += [final_of("other", 3.0 * factor, criterion="fairest")]
    fedavg, other = at_megabytes(found, {"digits": 1.0})  # FedAvg's own megabytes come first.
    assert {fedavg.criterion, other.criterion} == {"megabytes"}
    assert (fedavg.rounds.tolist(), other.rounds.tolist()) == ([8, 8], [rounds, rounds])
    assert fedavg.last is not None
    assert other.last is not None
    np.testing.assert_array_equal(fedavg.last["accuracy"], [3, 50])
    expected = at_round(DATASET, rounds)
    assert expected is not None
    np.testing.assert_array_equal(other.last["accuracy"], expected["accuracy"])


def test_megabytes_of_fedavg_can_be_published():
    (other,) = at_megabytes([final_of("other", 5.0)], {"digits": 60.0, "groups": 1.0})
    assert other.rounds.tolist() == [4, 4]
    (costly,) = at_megabytes([final_of("other", 100.0)], {"digits": 60.0})
    assert costly.last is None  # Before the first evaluation after training.
    assert at_megabytes([final_of("other", 5.0)], {"groups": 60.0}) == []
