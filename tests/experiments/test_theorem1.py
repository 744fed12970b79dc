"""The problem of Theorem 1: its smoothness, its algorithm, and the bound."""

import numpy as np
import pytest

from experiments import theorem1


@pytest.mark.parametrize(("rounds", "names"), [(9, theorem1.SELECTORS), (36, ["subtrunc"])])
def test_the_bound_holds(rounds, names, monkeypatch):
    monkeypatch.setattr(theorem1, "SELECTORS", {name: theorem1.SELECTORS[name] for name in names})
    table = theorem1.measure([rounds], seeds=4)
    assert (table["left"] <= table["right"]).all()
    assert (table["left"] > 0).all()
    np.testing.assert_allclose(table["right"], table[["start", "noise", "bias"]].sum(axis=1))
