"""Compressed updates: their bytes, their bias, and error feedback."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model
from test_conformance import AGGREGATORS, FEDERATION

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, selectors, solvers
from fedjax_fair.base import LocalResult, Variables
from fedjax_fair.communication import (
    AdaptiveClipping,
    DifferentialPrivacy,
    StochasticQuantization,
    TopK,
    apply,
)
from fedjax_fair.local_training import occurrences_of
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.simulate import Round, run

DATA = jax.tree.map(jnp.asarray, FEDERATION)
KEY = jax.random.key(3)
VECTOR = np.random.default_rng(0).normal(size=50).astype(np.float32)


def round_of(selector=None, aggregator=None, **settings):
    return Round(
        linear_model(),
        selector or selectors.Uniform(3),
        solvers.SGD(0.1, 2, steps=3),
        aggregator or aggregators.Mean(),
        **settings,
    )


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 5), (1e-9, 1), (1.0, 50), (0.51, 26)])
def test_top_k_sends_the_largest_elements(fraction, count):
    compression = TopK(fraction)
    sent = np.asarray(compression.compress(KEY, VECTOR))
    order = np.argsort(-np.abs(VECTOR))
    assert (sent[order[:count]] == VECTOR[order[:count]]).all()
    assert (sent[order[count:]] == 0).all()
    assert compression.num_bytes(VECTOR.size) == 8 * count


@pytest.mark.parametrize("bits", [2, 3, 8, 16])
def test_quantization_is_unbiased(bits):
    compression = StochasticQuantization(bits)
    keys = jax.random.split(KEY, 4000)
    sent = np.asarray(jax.jit(jax.vmap(compression.compress, (0, None)))(keys, VECTOR), np.float64)
    unit = np.abs(VECTOR).max() / (2 ** (bits - 1) - 1)
    multiples = sent / unit
    np.testing.assert_allclose(multiples, np.round(multiples), atol=1e-2)
    assert np.unique(np.round(multiples)).size <= 2**bits - 1
    assert (np.abs(sent - VECTOR) < unit * (1 + 1e-5)).all()
    error = np.sqrt(np.maximum(sent.var(axis=0), 1e-12) / len(keys))
    assert (np.abs(sent.mean(axis=0) - VECTOR) < 4.5 * error + 1e-6).all()
    assert compression.num_bytes(1001) == -(-1001 * bits // 8) + 4


def test_compression_preserves_zeros_and_nan():
    for compression in (TopK(0.1), StochasticQuantization(4)):
        zeros = compression.compress(KEY, jnp.zeros(20))
        assert (zeros == 0).all()
        assert np.isnan(compression.compress(KEY, jnp.zeros(20).at[3].set(jnp.nan))).any()


@jax.jit
def totals(clients, responded):
    """Runs four rounds; returns each client's sums of updates and of arrivals, and residual."""
    settings = apply.Communication(compression=TopK(0.2))
    round = round_of()
    context = ff.simulate.make_context(
        round.model, jnp.int32(0), round.init(KEY, DATA).variables, DATA
    )
    cohort = ff.base.Cohort(clients, jnp.full(3, 0.5), responded=responded)
    occurrences = occurrences_of(clients)

    def step(carry, key):
        state, made, arrived = carry
        updates = jax.tree.map(
            lambda leaf: jax.random.normal(key, (3, *leaf.shape)), context.variables
        )

        def send(client, occurrence, update):
            result = LocalResult(update, jnp.zeros(()), jnp.int32(1))
            result, residual = apply.send(settings, key, state, client, occurrence, result)
            return result.update, residual

        sent, residuals = jax.vmap(send)(clients, occurrences, updates)
        results = LocalResult(sent, jnp.zeros(3), jnp.ones(3, jnp.int32))
        received = apply.receive(
            settings, key, state, cohort, occurrences, None, results, residuals, context
        )

        def add(total, values):
            return total.at[clients].add(jnp.where(responded[:, None], jax.vmap(ravel)(values), 0))

        return (received.state, add(made, updates), add(arrived, sent)), None

    state = apply.init(settings, DATA.num_clients, context.variables)
    start = (state, jnp.zeros_like(state["residual"]), jnp.zeros_like(state["residual"]))
    (state, made, arrived), _ = jax.lax.scan(step, start, jax.random.split(KEY, 4))
    return made, arrived, state["residual"]


@pytest.mark.parametrize(
    ("responded", "clients"),
    [
        ([True, True, True], [0, 3, 4]),
        ([True, True, True], [2, 2, 5]),
        ([True, False, True], [0, 3, 4]),
        ([False, True, True], [2, 2, 5]),
        ([True, False, True], [2, 2, 5]),
    ],
)
def test_error_feedback_loses_nothing(responded, clients):
    updates, arrived, residual = map(
        np.asarray, totals(jnp.asarray(clients, jnp.int32), jnp.asarray(responded))
    )
    np.testing.assert_allclose(arrived + residual, updates, atol=1e-5)
    took_part = np.unique(np.asarray(clients)[np.asarray(responded)])
    assert (residual[took_part] != 0).any(axis=1).all()
    others = np.setdiff1d(np.arange(DATA.num_clients), took_part)
    assert (residual[others] == 0).all()


def test_top_k_of_all_elements_is_plain_training():
    plain, compressed = (
        jax.jit(lambda key, own=own: run(own, own.init(key, DATA), DATA, 3)[0].variables)(KEY)
        for own in (round_of(), round_of(compression=TopK(1.0)))
    )
    chex.assert_trees_all_close(compressed, plain, atol=1e-7)


@pytest.mark.parametrize("aggregator", ["mean by size", "krum", "q_fedavg"])
def test_aggregators_receive_compressed_updates(aggregator):
    """Each compressed update has two nonzero elements."""
    round = round_of(selectors.Full(), AGGREGATORS[aggregator](), compression=TopK(2 / 15))
    start = round.init(KEY, DATA)
    state, info = jax.jit(round.step)(start, DATA)
    moved = jax.tree.map(lambda new, old: jnp.sum(new != old), state.variables, start.variables)
    participants = int((info.weights > 0).sum())
    assert 0 < sum(jax.tree.leaves(moved)) <= 2 * participants
    residual = np.asarray(state.communication["residual"])
    assert ((residual != 0).sum(axis=1) <= 13).all()
    assert (residual != 0).any(axis=1).all()


@pytest.mark.parametrize(
    "compression",
    [TopK(0.3), StochasticQuantization(4)],
    ids=["k", "b"],
)
def test_compressed_updates_are_clipped(compression):
    settings = apply.Communication(compression=compression, privacy=DifferentialPrivacy(0.1, 1.0))
    update = Variables({"a": jnp.asarray(VECTOR)}, {})
    state = apply.init(settings, 3, update)
    result = LocalResult(update, jnp.zeros(()), jnp.int32(1))
    result, residual = apply.send(settings, KEY, state, jnp.int32(1), jnp.int32(0), result)
    assert abs(jnp.linalg.norm(result.update.params["a"]) - 0.1) < 1e-6
    if residual is not None:  # What was clipped away is not in the residual.
        places = np.argsort(-np.abs(VECTOR))
        np.testing.assert_array_equal(residual[places[15:]], VECTOR[places[15:]])
        assert (residual[places[:15]] == 0).all()


def test_nonfinite_updates_leave_the_residual():
    settings = apply.Communication(compression=TopK(0.1))
    state = {"residual": jnp.ones((3, 4))}
    update = Variables({"a": jnp.array([jnp.nan, 1.0, 1.0, 1.0])}, {})
    result = LocalResult(update, jnp.zeros(()), jnp.int32(1))
    sent, residual = apply.send(settings, KEY, state, jnp.int32(1), jnp.int32(0), result)
    assert np.isnan(sent.update.params["a"]).any()
    np.testing.assert_array_equal(residual, np.ones(4))


def test_results_count_compressed_bytes():
    size, participants = 15, 3
    for settings, sent in (
        ({"compression": TopK(0.2)}, 3 * 8),
        ({"compression": StochasticQuantization(3)}, 6 + 4),
        ({"aggregation": "secure"}, 4 * size),
        ({}, 4 * size),
    ):
        round = round_of(faults=[faults.Dropout(0.4)], **settings)
        variables = jax.eval_shape(lambda round=round: round.init(KEY, DATA).variables)
        assert round.bytes_up(variables) == sent
    dataset = ff.fit(
        round_of(compression=TopK(0.2), faults=[faults.Dropout(0.4)]),
        FEDERATION, rounds=2, eval_every=2, train_loss=False,
    )  # fmt: skip
    arrived = int(dataset["cohort_responded"].sum())
    assert 0 < arrived < 2 * participants
    assert dataset["bytes_up"].values.tolist() == [[0, arrived * 24]]
    assert dataset["bytes_down"].values.tolist() == [[0, 2 * participants * 4 * size]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TopK(0.0), "fraction=0.0: expected a number > 0"),
        (lambda: TopK(1.5), "fraction=1.5: expected a probability"),
        (lambda: StochasticQuantization(1), "bits=1: expected an integer >= 2 and <= 16"),
        (lambda: StochasticQuantization(17), "bits=17: expected an integer >= 2 and <= 16"),
        (lambda: round_of(compression=0.1), "compression is a float: expected a Compression"),
        (
            lambda: round_of(compression=TopK(0.1), aggregation="secure"),
            "compression does not reduce the four bytes per parameter",
        ),
    ],
)
def test_invalid_compression_raises(call, said, as_users_call):
    with pytest.raises(ValueError, match=said):
        call()


def test_resumed_run_equals_uninterrupted_run(tmp_path):
    """The state has residuals and an adaptive clipping norm."""
    round = round_of(compression=TopK(0.2), privacy=AdaptiveClipping(0.5))
    settings = {"eval_every": 1, "train_loss": False}
    expected = ff.fit(round, FEDERATION, rounds=3, **settings)
    ff.fit(round, FEDERATION, rounds=1, checkpoints=tmp_path, **settings)
    resumed = ff.fit(round, FEDERATION, rounds=3, checkpoints=tmp_path, **settings)
    assert expected["aggregation_clipping_norm"].values.std() > 0
    for name in ("aggregation_clipping_norm", "test_loss", "cohort_loss"):
        np.testing.assert_array_equal(resumed[name], expected[name])
