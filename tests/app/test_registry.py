"""Weights of the mean: those of the papers, and unbiased ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_context, make_federation

from fedjax_fair.app.settings.registry import METHODS, role_classes
from fedjax_fair.roles import Cohort, LocalResult, Variables

SIZES = (60, 5, 33, 12, 5, 21, 48, 9)
SHARES = np.array(SIZES) / sum(SIZES)
AVERAGES = {
    "fedavg": "num_examples",  # McMahan et al., algorithm 1
    "power_of_choice": "uniform",  # Cho et al., algorithm 1
    "oort": "uniform",  # FedScale
    "fedcor": "uniform",  # Tang et al., released code
    "divfl": "num_examples",  # Balakrishnan et al., released code
    "subtrunc": "uniform",  # Castillo et al., algorithm 1
    "unionfl": "uniform",
    "rotation": "uniform",
    "clustered_by_size": "uniform",  # Fraboni et al., equation 4
    "clustered_by_similarity": "uniform",
    "full": "num_examples",
    "round_robin": "num_examples",
    "scaffold": "uniform",  # Karimireddy et al., algorithm 1
    "fednova": "num_examples",  # Wang et al., equation 1
    "feddyn": "uniform",  # Acar et al., algorithm 1
    "mime_lite": "uniform",  # Karimireddy et al., algorithm 1
    "ditto": "num_examples",
    "fine_tuned": "num_examples",
    "per_fedavg": "uniform",  # Fallah et al., algorithm 1
    "pfedme": "uniform",  # Dinh et al., algorithm 1
    "apfl": "uniform",  # Deng et al., algorithm 1
    "local": "num_examples",
    "local_converged": "num_examples",
    "fedper": "num_examples",  # Arivazhagan et al., algorithm 2
    "fedrep": "uniform",  # Collins et al., algorithm 1
    "lg_fedavg": "num_examples",
    "fedbn": "uniform",  # Li et al., 2021, algorithm 1
    "fedbabu": "num_examples",
    "fedit": "num_examples",  # Zhang et al., section 4
    "ffa_lora": "num_examples",
    "fedsa_lora": "num_examples",  # Guo et al., released code
    "rolora": "num_examples",
    "fedex_lora": "num_examples",
    "lora_fair": "num_examples",
    "flexlora": "num_examples",
    "fedprox": "num_examples",
    "propfair": "num_examples",
    "group_penalty": "num_examples",
    "pfedfair": "uniform",  # Lei et al., the mean over clients of its objective
    "fedavgm": "num_examples",  # Reddi et al., experiments; algorithm 2 has uniform weights
    "fedadagrad": "num_examples",
    "fedadam": "num_examples",
    "fedyogi": "num_examples",
}


def context():
    variables = Variables({"w": jnp.zeros(3)}, {})
    return make_context(make_federation(sizes=SIZES).train, variables=variables)


def weights_of(name, clients):
    """Returns the weights of a method for a cohort with other weights of the selector."""
    aggregator = role_classes(METHODS[name])["aggregator"]()
    proposed = jnp.linspace(0.1, 0.4, clients.shape[0])
    return aggregator.compute_weights((), Cohort(clients, proposed), context())


def test_every_method_is_covered():
    """Others have aggregators with weights of their own."""
    averaging = {name for name, method in METHODS.items() if method.aggregator is None}
    assert averaging - {"centralized"} <= AVERAGES.keys() <= METHODS.keys()


@pytest.mark.parametrize("name", AVERAGES)
def test_the_weights_are_those_of_the_paper(name):
    clients = jnp.array([0, 4, 2, 2])
    sizes = np.array(SIZES)[np.asarray(clients)]
    expected = {"uniform": np.full(4, 1 / 4), "num_examples": sizes / sizes.sum()}[AVERAGES[name]]
    np.testing.assert_allclose(weights_of(name, clients), expected, rtol=1e-6)


UNBIASED = ["full", "clustered_by_size", "clustered_by_similarity"]


@pytest.mark.parametrize("name", UNBIASED)
def test_expected_weights_are_proportional_to_size(name):
    """E[weight] = p, with sizes of 5 to 60 (Fraboni et al., proposition 1)."""
    selector = role_classes(METHODS[name])["selector"](
        **({"cohort_size": 4} if name != "full" else {})
    )
    state = selector.init(context())
    if name == "clustered_by_similarity":  # Two directions, so that clusters are not by size.
        updates = np.eye(3)[np.arange(len(SIZES)) % 2] + 0.1
        every = Cohort(jnp.arange(len(SIZES)), jnp.asarray(SHARES, jnp.float32))
        results = LocalResult(
            Variables({"w": jnp.asarray(updates, jnp.float32)}, {}),
            jnp.zeros(len(SIZES)),
            jnp.ones(len(SIZES), jnp.int32),
        )
        state = selector.observe(state, every, results, context())

    def weights(key):
        clients = selector.select(key, state, context())[0].clients
        return jnp.zeros(len(SIZES)).at[clients].add(weights_of(name, clients))

    draws = np.asarray(jax.jit(jax.vmap(weights))(jax.random.split(jax.random.key(0), 40_000)))
    error = draws.std(axis=0) / np.sqrt(len(draws))
    # Five standard errors, and float32 rounding for who weighs the same in every draw.
    assert (np.abs(draws.mean(axis=0, dtype=np.float64) - SHARES) < 5 * error + 1e-6).all()
