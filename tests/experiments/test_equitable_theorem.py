"""Theorem 1 of the Equitable-FL paper: its bound as printed, where it holds and where it fails."""

import numpy as np
import pytest

from experiments.reproduction import equitable_theorem as theorem


def test_the_bound_holds_where_the_smoothness_is_about_one():
    table = theorem.measure([9], seeds=2)
    assert (table["left"] > 0).all()
    assert (table["left"] < table["right"]).all()
    np.testing.assert_allclose(table["right"], table["start"] + table["noise"])
    assert (table["both groups"] == 1).all()  # Assumption 4
    assert (table["groups found"] == 1).all()


def test_two_clients_of_large_smoothness_exceed_the_bound():
    left, right = theorem.large_smoothness(2000, 4000)
    assert left > 10 * right
    held, bound = theorem.large_smoothness(2, 4)
    assert held < bound
    with pytest.raises(ValueError, match="rounds=100"):
        theorem.large_smoothness(2000, 100)
