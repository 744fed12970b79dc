"""Compressed updates: their bytes, their bias, and error feedback."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, normalized_model
from test_conformance import AGGREGATORS, FEDERATION

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, selectors, solvers
from fedjax_fair.communication import (
    AdaptiveClipping,
    DifferentialPrivacy,
    StochasticQuantization,
    TopK,
    pipeline,
)
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator, LocalResult, Solver, Variables
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.rounds.round_state import Traffic

DATA = jax.tree.map(jnp.asarray, FEDERATION)
KEY = jax.random.key(3)
VECTOR = np.random.default_rng(0).normal(size=50).astype(np.float32)


def round_of(selector=None, aggregator=None, solver=None, **settings):
    return Round(
        linear_model(),
        selector or selectors.Uniform(3),
        solver or solvers.SGD(0.1, 2, steps=3),
        aggregator or aggregators.Mean(),
        **settings,
    )


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 5), (1e-9, 1), (1.0, 50), (0.51, 26)])
def test_top_k_sends_the_largest_elements(fraction, count):
    compression = TopK(fraction)
    sent = np.asarray(jax.jit(compression.compress)(KEY, VECTOR))
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
    zeros = np.zeros(20, np.float32)
    for compression in (TopK(0.1), StochasticQuantization(4)):
        compress = jax.jit(compression.compress)
        assert not np.any(compress(KEY, zeros))
        assert np.isnan(compress(KEY, np.where(np.arange(20) == 3, np.nan, zeros))).any()


@pytest.mark.parametrize("bits", [2, 8, 16])
@pytest.mark.parametrize("scale", [1e-33, 1e-35, 1e-37])
def test_quantization_of_tiny_updates_is_finite(bits, scale):
    """Also if a float32 cannot represent the largest element divided by the levels."""
    vector = VECTOR * np.float32(scale)
    sent = np.asarray(jax.jit(StochasticQuantization(bits).compress)(KEY, vector))
    assert (np.abs(sent - vector) <= np.abs(vector).max()).all()


class RandomUpdates(Solver):
    """Sends normal numbers that depend on client and round, and sometimes NaN."""

    def solve(self, key, variables, client):
        key_update = jax.random.fold_in(jax.random.fold_in(KEY, client.id), client.round)
        is_lost = jax.random.bernoulli(key, 0.4)
        update = jax.tree.map(
            lambda leaf: jnp.where(is_lost, jnp.nan, jax.random.normal(key_update, leaf.shape)),
            variables,
        )
        return LocalResult(update, jnp.zeros(()), jnp.int32(1))


class Sums(Aggregator):
    """Sums what arrives from each client; the model stays as it is."""

    def init(self, context):
        width = ravel(context.variables).shape[0]
        return jnp.zeros((context.num_clients, width))

    def aggregate(self, state, cohort, results, context):
        arrived = jax.vmap(ravel)(results.update)
        weights = jnp.full_like(cohort.weights, 1 / len(cohort.weights))
        zeros = jax.tree.map(jnp.zeros_like, context.variables)
        return zeros, state.at[cohort.clients].add(arrived), Aggregation(weights, {})


@pytest.mark.parametrize("clients", [(0, 3, 4), (2, 2, 5), (1, 1, 1)])
def test_error_feedback_loses_nothing(clients):
    """Also of a client that is drawn repeatedly, and of which some responses do not arrive."""
    selector = ff.Selector.from_functions(
        lambda key, state, context: (
            ff.Cohort(jnp.array(clients, jnp.int32), jnp.full(3, 1 / 3)), state, {},
        )
    )  # fmt: skip
    round = round_of(selector, Sums(), RandomUpdates(), compression=TopK(0.2))
    num_rounds = 6

    @jax.jit
    def last_state(key):
        state, info = run(round, round.init(key, DATA), DATA, num_rounds, drop_nonfinite=True)
        return state.aggregator, state.clients.arrays["residual"], info.responded

    arrived, residual, responded = map(np.asarray, last_state(KEY))
    assert 0 < responded.sum() < responded.size
    made = np.zeros_like(residual)
    for number, slots in enumerate(responded):
        for client, has_responded in zip(clients, slots, strict=True):
            key = jax.random.fold_in(jax.random.fold_in(KEY, client), number)
            shapes = jax.eval_shape(round.model.init, KEY, DATA.train.features[:1])
            update = jax.tree.map(lambda leaf, key=key: jax.random.normal(key, leaf.shape), shapes)
            made[client] += has_responded * np.asarray(ravel(update))
    np.testing.assert_allclose(arrived + residual, made, atol=1e-5)
    assert (residual[list(clients)] != 0).any(axis=1).all()
    others = np.setdiff1d(np.arange(DATA.num_clients), clients)
    assert (residual[others] == 0).all()


@pytest.mark.parametrize(
    ("solver", "model"),
    [
        (solvers.FedPer, ff.models.mlp(3, (5,))),
        (solvers.LGFedAvg, ff.models.mlp(3, (5,))),
        (solvers.FedBN, normalized_model()),
    ],
    ids=["fedper", "lg_fedavg", "fedbn"],
)
def test_only_shared_arrays_are_compressed(solver, model):
    """What one client sends and its residual add up to the shared part of its update."""
    plain = Round(
        model, selectors.Uniform(1), solver(solvers.SGD(0.1, 2, steps=3)), aggregators.Mean()
    )
    compressed = plain.replace(compression=TopK(0.3))

    @jax.jit
    def updates(key):
        start = compressed.init(key, DATA)
        state, info = compressed.step(start, DATA)
        exact, _ = plain.step(plain.init(key, DATA), DATA)
        is_personal = plain.solver.is_personal(start.variables, model, DATA.train.features[:1])
        sent, update = (
            ravel(
                pipeline.shared_leaves(
                    jax.tree.map(jnp.subtract, new.variables, start.variables), is_personal
                )
            )
            for new in (state, exact)
        )
        return sent, update, state.clients.arrays["residual"][info.clients[0]], info

    sent, update, residual, info = jax.device_get(updates(KEY))
    num_sent = round(0.3 * update.size)
    assert info.traffic == Traffic(up=8 * num_sent, down=4 * update.size)
    assert residual.shape == update.shape
    assert np.sum(residual == 0) == np.sum(update == 0) + num_sent
    assert np.sum(sent != 0) == num_sent
    np.testing.assert_allclose(sent + residual, update, atol=1e-6)


@pytest.mark.parametrize("compression", [TopK(0.1), StochasticQuantization(4)], ids=["k", "b"])
def test_nothing_is_compressed_without_shared_arrays(compression):
    own = round_of(solver=solvers.Local(solvers.SGD(0.1, 2, steps=3)), compression=compression)
    start = jax.eval_shape(lambda: own.init(KEY, DATA))
    _, info = jax.eval_shape(lambda state: own.step(state, DATA), start)
    assert info.traffic == Traffic(up=0, down=0)


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

    @jax.jit
    def step(key):
        start = round.init(key, DATA)
        state, info = round.step(start, DATA)
        moved = jax.tree.map(lambda new, old: jnp.sum(new != old), state.variables, start.variables)
        return state.clients.arrays["residual"], info, sum(jax.tree.leaves(moved))

    residual, info, num_changed = jax.device_get(step(KEY))
    assert 0 < num_changed <= 2 * np.sum(info.weights > 0)
    assert ((residual != 0).sum(axis=1) <= 13).all()
    assert (residual != 0).any(axis=1).all()


def update_of(vector):
    return Variables({"a": vector}, {})


def send(settings, vector, residual=()):
    """Returns what client 1 sends, and its new residual."""

    @jax.jit
    def compiled(vector, residual):
        update, is_personal = update_of(vector), update_of(False)
        result = LocalResult(update, jnp.zeros(()), jnp.int32(1))
        state = pipeline.init(settings, update)
        sent, new = pipeline.send(
            settings, KEY, state, is_personal, jnp.int32(1), jnp.int32(0), result, residual
        )
        return sent.update.params["a"], new

    return jax.device_get(compiled(vector, residual))


@pytest.mark.parametrize(
    "compression",
    [TopK(0.3), StochasticQuantization(4)],
    ids=["k", "b"],
)
def test_compressed_updates_are_clipped(compression):
    settings = pipeline.Communication(
        compression=compression, privacy=DifferentialPrivacy(0.1, 1.0)
    )
    has_residual = compression.error_feedback
    sent, residual = send(settings, VECTOR, np.zeros_like(VECTOR) if has_residual else ())
    assert abs(np.linalg.norm(sent) - 0.1) < 1e-6
    if has_residual:  # What was clipped away is not in the residual.
        places = np.argsort(-np.abs(VECTOR))
        np.testing.assert_array_equal(residual[places[15:]], VECTOR[places[15:]])
        assert (residual[places[:15]] == 0).all()


def test_nonfinite_updates_leave_the_residual():
    settings = pipeline.Communication(compression=TopK(0.1))
    vector = np.float32([np.nan, 1.0, 1.0, 1.0])
    sent, residual = send(settings, vector, np.ones(4, np.float32))
    assert np.isnan(sent).any()
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
        start = jax.eval_shape(lambda round=round: round.init(KEY, DATA))
        _, info = jax.eval_shape(lambda state, round=round: round.step(state, DATA), start)
        assert info.traffic == Traffic(up=sent, down=4 * size)
    dataset = ff.fit(
        round_of(compression=TopK(0.2), faults=[faults.Dropout(0.4)]),
        FEDERATION, rounds=2, eval_every=2, train_loss=False,
    ).dataset  # fmt: skip
    arrived = int(dataset["cohort_responded"].sum())
    assert 0 < arrived < 2 * participants
    assert dataset["bytes_up"].values.tolist() == [[0, arrived * 24]]
    assert dataset["bytes_down"].values.tolist() == [[0, 2 * participants * 4 * size]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: TopK(0.0), "fraction=0.0"),
        (lambda: TopK(1.5), "fraction=1.5"),
        (lambda: StochasticQuantization(1), "bits=1"),
        (lambda: StochasticQuantization(17), "bits=17"),
        (lambda: round_of(compression=0.1), "compression"),
        (
            lambda: round_of(compression=TopK(0.1), aggregation="secure"),
            "compression",
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
    expected = ff.fit(round, FEDERATION, rounds=3, **settings).dataset
    ff.fit(round, FEDERATION, rounds=1, checkpoints=tmp_path, **settings)
    resumed = ff.fit(round, FEDERATION, rounds=3, checkpoints=tmp_path, **settings).dataset
    assert expected["aggregation_clipping_norm"].values.std() > 0
    for name in ("aggregation_clipping_norm", "test_loss", "cohort_loss"):
        np.testing.assert_array_equal(resumed[name], expected[name])
