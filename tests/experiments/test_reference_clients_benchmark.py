"""The benchmark of reference clients: its loss is as defined."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import million, reference_clients
from fedjax_fair.roles import ClientGradients

ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def test_losses_are_those_of_the_cohorts(monkeypatch):
    for name, value in {"COHORT": 3, "POOL": 6, "REFERENCES": (5, 40, 41)}.items():
        monkeypatch.setattr(reference_clients, name, value)
    data = jax.tree.map(jnp.asarray, million.make_federation(40))
    known = ClientGradients(jnp.zeros(40), jnp.asarray(ROWS))
    keys = jax.random.split(jax.random.key(0), 3)
    found = reference_clients.losses(data, known, keys)
    assert set(found) == {5, 40}
    # All other clients are reference clients: nothing is lost, and what is said is right.
    np.testing.assert_allclose(found[40], 0, atol=1e-5)
    assert abs(found[5][:, 0]).max() > 1e-3
    assert (found[5][:, 2] > 0).all()
