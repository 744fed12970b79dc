"""Messages of federated maximization: the server reads secure sums only."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated.problem import Bases, Gains

CLIENTS, N = 7, 6
SCORES = np.random.default_rng(0).gamma(0.3, size=(CLIENTS, N)).astype(np.float32)
KEY = jax.random.key(0)
PARTITION = matroids.Partition([0, 1, 0, 1, 0, 1], [1, 2])


class Opaque:
    """A message that the server can only pass on."""

    __slots__ = ("_secret",)

    def __init__(self, secret):
        object.__setattr__(self, "_secret", secret)

    def __getattribute__(self, name):
        raise AssertionError(f"the server read {name} of a message")


def make_opaque(gains):
    """Makes all messages opaque."""

    def bases(matroid):
        chosen = gains.bases(matroid)
        return Bases(chosen.utility, lambda weights: Opaque(chosen.messages(weights)))

    return Gains(lambda weights: Opaque(gains.messages(weights)), bases, gains.spread, gains.shares)


class OpaqueProblem(fed.FacilityLocation):
    """A problem with opaque messages."""

    def extensions(self, key, x):
        values, gradients = super().extensions(key, x)
        return fed.Extensions(values, make_opaque(gradients))

    def gains(self, mask):
        return make_opaque(super().gains(mask))


ALGORITHMS = {
    "fedcg": lambda key, p: fed.fedcg(key, p, PARTITION, 3).x,
    "fedcg gradient": lambda key, p: fed.fedcg(key, p, PARTITION, 3, send="gradient").x,
    "fedcg cohort": lambda key, p: fed.fedcg(key, p, PARTITION, 3, cohort_size=2).x,
    "fedcg_plus": lambda key, p: fed.fedcg_plus(key, p, PARTITION, 3, 2).x,
    "discrete_greedy": lambda key, p: fed.discrete_greedy(key, p, PARTITION, kappa=3.0).items,
    "importance_factors": lambda key, p: fed.importance_factors(p).singles,
}
SERVERS = ("fedcg", "fedcg_plus", "discrete_greedy", "importance_factors", "trajectory")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_server_reads_messages_only_as_secure_sums(name, monkeypatch):
    """With equal sums the server acts equally, whatever the clients' data are."""
    sums = jnp.array([0.3, 0.9, 0.1, 0.5, 0.2, 0.4])

    def protocol(messages, size, *_):
        assert type(messages) is Opaque
        return sums

    for server in SERVERS:
        module = importlib.import_module(f"fedjax_fair.submodular.federated.{server}")
        monkeypatch.setattr(module, "secure_aggregate", protocol)
        if hasattr(module, "dense_gains"):
            dense_gains = module.dense_gains
            monkeypatch.setattr(
                module, "dense_gains", lambda matrix, wrap=dense_gains: make_opaque(wrap(matrix))
            )

    @jax.jit
    def run(key, scores):
        problem = fed.facility_location(scores)
        return ALGORITHMS[name](key, OpaqueProblem(problem.scores, problem.ranked))

    other = np.random.default_rng(1).gamma(1.0, size=SCORES.shape).astype(np.float32)
    np.testing.assert_array_equal(run(KEY, SCORES), run(KEY, other))


SECURE = {
    "fedcg": lambda p, **options: fed.fedcg(KEY, p, PARTITION, 3, cohort_size=2, **options).x,
    "fedcg gradient": lambda p, **options: (
        fed.fedcg(KEY, p, PARTITION, 3, send="gradient", **options).x
    ),
    "fedcg_plus": lambda p, **options: (
        fed.fedcg_plus(KEY, p, PARTITION, 3, 2, cohort_size=3, **options).x
    ),
    "discrete_greedy": lambda p, **options: (
        fed.discrete_greedy(KEY, p, PARTITION, kappa=0.8, **options).values
    ),
    "importance_factors": lambda p, **options: (
        fed.importance_factors(p, key=KEY, **options).singles
    ),
}


@pytest.mark.parametrize("name", SECURE)
def test_secure_aggregation_equals_plain_aggregation(name):
    """Elements beyond ``max_abs_value`` give NaN."""
    run, sends_bases = SECURE[name], name in ("fedcg", "fedcg_plus")

    @jax.jit
    def runs(scores):
        problem = fed.facility_location(scores)
        settings = ["secure", fed.SecureAggregation(1e-4)] if sends_bases else ["secure"]
        return run(problem), *[run(problem, aggregation=one) for one in settings]

    plain, secure, *out_of_range = runs(SCORES)
    np.testing.assert_allclose(secure, plain, atol=1e-5)
    # Bases are in range whatever the scores are.
    assert np.isnan(out_of_range[0] if sends_bases else runs(1e4 * SCORES)[1]).any()


@pytest.mark.parametrize("sparse", [False, True])
def test_messages_name_their_owners(sparse):
    """The protocol sums the entries of each client separately."""
    scores = np.where(SCORES > 0.5, SCORES, 0).astype(np.float32)
    problem = fed.facility_location(scores)
    if sparse:
        clients, items = np.nonzero(scores)
        problem = fed.facility_location(
            fed.sparse_scores(clients, items, scores[clients, items], num_clients=CLIENTS, size=N)
        )

    def sums(weights):
        gains = problem.gains(jnp.zeros(N, bool))
        protocol = fed.Protocol(KEY, CLIENTS, max_abs_value=8.0)
        every = [part.messages(weights) for part in (gains, gains.bases(matroids.Uniform(2, N)))]
        plain = [fed.secure_aggregate(messages, N) for messages in every]
        return plain, [fed.secure_aggregate(messages, N, protocol) for messages in every]

    plain, secure = jax.jit(jax.vmap(sums))(np.eye(CLIENTS, dtype=np.float32))
    for one, other in zip(plain, secure, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
