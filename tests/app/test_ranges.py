"""Ranges that a benchmark tunes contain the values that papers tune."""

import pytest

from fedjax_fair.app.ranges import RANGES

SERVER_RATES = (10**-2.5, 10.0)  # Reddi et al. (2021), half-decades
TUNED = {
    ("q_fedavg", "q"): (0.001, 10.0),  # Li et al. (2020), q-FFL
    ("fedavgm", "server_learning_rate"): SERVER_RATES,
    ("fedadagrad", "server_learning_rate"): SERVER_RATES,
    ("fedadam", "server_learning_rate"): SERVER_RATES,
    ("fedyogi", "server_learning_rate"): SERVER_RATES,
    ("fedadagrad", "tau"): (1e-5, 1e-1),
    ("fedadam", "tau"): (1e-5, 1e-1),
    ("fedyogi", "tau"): (1e-5, 1e-1),
    ("fedprox", "prox"): (0.001, 1.0),  # Li et al. (2020), FedProx
    ("feddyn", "solver.alpha"): (0.001, 0.1),  # Acar et al. (2021)
    ("pfedme", "personal_prox"): (15.0, 30.0),  # Dinh et al. (2020)
    ("subtrunc", "lam"): (0.1, 0.95),
    ("fairfed", "beta"): (0.1, 5.0),
}


@pytest.mark.parametrize(("key", "values"), TUNED.items(), ids=lambda item: str(item[0]))
def test_ranges_contain_the_values_of_papers(key, values):
    method, setting = key
    low, high, _ = RANGES[method][setting]
    assert low <= min(values)
    assert max(values) <= high
