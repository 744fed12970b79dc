"""The local solver against a second implementation in NumPy, and its laws."""

from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import make_federation

from fedjax_fair import solvers
from fedjax_fair.roles import Client, Model, Variables

LARGE = 100  # a batch that holds every client's examples
sgd = solvers.SGD


def client_of(federation, model, index, round=0, instructions=None):
    train = jax.tree.map(jnp.asarray, federation.train)
    instructions = instructions or {}
    round = jnp.int32(round)
    offset, size = train.offsets[index], train.sizes[index]
    return Client(model, train, offset, size, round, instructions, id=index)


@partial(jax.jit, static_argnames="model")
def run(solver, key, variables, federation, index, round, instructions, model):
    client = client_of(federation, model, index, round, instructions)
    return solver.solve(key, variables, client)


def solve(solver, federation, model, index=1, key=0, round=0, **instructions):
    """Returns the result of one client and its initial variables."""
    variables = model.init(jax.random.key(7), federation.train.features[:1])
    key = jax.random.key(key)
    return run(solver, key, variables, federation, index, round, instructions, model), variables


def numpy_solve(federation, variables, index, steps, rate, momentum=0.0, decay=0.0, prox=0.0):
    """Returns full-batch descent on softmax regression."""
    train = federation.train
    indices = train.order[train.offsets[index] :][: train.sizes[index]]
    x, y = train.features[indices].astype(np.float64), np.eye(3)[train.labels[indices]]
    start = {name: np.asarray(value, np.float64) for name, value in variables.params.items()}
    weights = dict(start)
    velocity = {name: np.zeros_like(value) for name, value in start.items()}
    losses = []
    for _ in range(steps):
        logits = x @ weights["kernel"] + weights["bias"]
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses.append(-np.log((chances * y).sum(axis=1)).mean())
        slope = {"kernel": x.T @ (chances - y) / len(x), "bias": (chances - y).mean(axis=0)}
        for name, value in weights.items():
            pull = slope[name] + decay * value + prox * (value - start[name])
            velocity[name] = momentum * velocity[name] + pull
            weights[name] = value - rate * velocity[name]
    return {name: weights[name] - start[name] for name in start}, np.mean(losses)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"prox": 0.7},
        {"momentum": 0.5, "weight_decay": 0.03, "prox": 2.0},
    ],
    ids=str,
)
def test_equals_numpy(federation, model, settings):
    if settings:  # Arrays, of which zeros are computed as well, share a compiled function.
        zeros = dict.fromkeys(["momentum", "weight_decay", "prox"], 0)
        arrays = {name: np.float32(value) for name, value in (zeros | settings).items()}
    else:
        arrays = {}
    # Its five examples do not divide the 32 positions of a padded batch.
    result, variables = solve(sgd(0.3, LARGE, steps=4, **arrays), federation, model, index=2)
    names = {"momentum": "momentum", "weight_decay": "decay", "prox": "prox"}
    plain = {names[name]: value for name, value in settings.items()}
    update, loss = numpy_solve(federation, variables, 2, 4, 0.3, **plain)
    for name, value in update.items():
        np.testing.assert_allclose(result.update.params[name], value, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-5)


@cache
def counting_model() -> Model:
    """Returns a model whose parameter i changes if example i is in the batch."""

    def init(key, x):
        return Variables({"seen": jnp.zeros(x.shape[-1])}, {})

    def apply(params, state, x, *, train, key):
        score = x @ params["seen"]
        return jnp.stack([score, jnp.zeros_like(score)], axis=1), state

    return Model.from_functions(init, apply, lambda params, state, x: x)


def one_hot(federation):
    total = federation.train.order.shape[0]
    train = federation.train._replace(
        features=np.eye(total, dtype=np.float32), labels=np.zeros(total, np.int32)
    )
    return federation._replace(train=train)


@pytest.mark.parametrize("index", range(6))
def test_an_epoch_visits_every_example_of_the_client_once(federation, index):
    data, train = one_hot(federation), federation.train
    result, _ = solve(sgd(1.0, 1, epochs=1), data, counting_model(), index)
    expected = np.zeros(train.order.shape[0])
    expected[train.order[train.offsets[index] :][: train.sizes[index]]] = 0.5
    np.testing.assert_array_equal(result.update.params["seen"], expected)


def test_blocks_of_steps_join_without_a_gap():
    """Takes more steps than a block has, by epochs and by steps."""
    data = one_hot(make_federation(sizes=(2, 75)))
    by_epochs, _ = solve(sgd(1.0, 1, epochs=1), data, counting_model(), 1)
    by_steps, _ = solve(sgd(1.0, 1, steps=75), data, counting_model(), 1)
    assert sorted(set(by_epochs.update.params["seen"].tolist())) == [0.0, 0.5]
    assert by_epochs.update.params["seen"].sum() == 75 * 0.5
    jax.tree.map(np.testing.assert_array_equal, by_epochs, by_steps)


def test_replacement_visits_some_examples_twice(federation):
    result, _ = solve(
        sgd(1.0, 1, steps=40, replacement=True), one_hot(federation), counting_model(), 5
    )
    own = federation.train.order[federation.train.offsets[5] :][:9]
    moved = np.asarray(result.update.params["seen"])
    assert np.all(moved[np.setdiff1d(np.arange(moved.size), own)] == 0)
    assert len(set(moved[own].tolist())) > 1  # visited unequally often


@pytest.mark.parametrize("index", range(6))
def test_clients_take_their_own_number_of_steps(federation, model, index):
    result, _ = solve(sgd(0.1, 4, epochs=3), federation, model, index)
    assert result.steps == 3 * -(-federation.train.sizes[index] // 4)


def test_vmapped_clients_equal_single_clients(federation, model):
    solver = sgd(0.1, 4, epochs=2, momentum=0.5)
    train = jax.tree.map(jnp.asarray, federation.train)
    variables = model.init(jax.random.key(7), train.features[:1])

    def one(client):
        return solver.solve(jax.random.key(0), variables, client_of(federation, model, client))

    together = jax.jit(jax.vmap(one))(jnp.arange(6))
    alone = jax.jit(one)
    apart = [alone(client) for client in range(6)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *apart)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), together, stacked)


@pytest.mark.parametrize("batch_size", [4, 64])
def test_padded_positions_have_no_effect(federation, model, batch_size):
    exact, _ = solve(sgd(0.1, 3, steps=5), federation, model, index=0)
    padded, _ = solve(sgd(0.1, batch_size, steps=5), federation, model, index=0)
    np.testing.assert_allclose(
        padded.update.params["kernel"], exact.update.params["kernel"], rtol=1e-5, atol=1e-6
    )


def test_a_traced_zero_prox_is_plain_sgd(federation, model):
    plain, _ = solve(sgd(0.2, 2, steps=6), federation, model)
    traced, _ = solve(sgd(0.2, 2, steps=6, prox=np.float32(0)), federation, model)
    jax.tree.map(np.testing.assert_array_equal, traced, plain)


def test_prox_shrinks_updates(federation, model):
    free, held = (
        solve(sgd(0.2, 4, steps=30, prox=np.float32(mu)), federation, model)[0] for mu in (0, 1)
    )
    assert optax.tree.norm(held.update) < 0.9 * optax.tree.norm(free.update)


def test_a_schedule_reads_the_absolute_round(federation, model):
    solver = sgd(lambda round: 0.1 / (1.0 + round.astype(jnp.float32)), LARGE, steps=1)
    first, _ = solve(solver, federation, model, round=0)
    fourth, _ = solve(solver, federation, model, round=3)
    jax.tree.map(
        lambda late, early: np.testing.assert_allclose(4 * late, early, rtol=1e-5, atol=1e-7),
        fourth.update.params,
        first.update.params,
    )


def test_any_optax_optimizer(federation, model):
    with jax.numpy_dtype_promotion("standard"):  # optax divides floats by an integer count
        result, _ = solve(sgd(0.01, LARGE, steps=1, optimizer=optax.adam), federation, model)
    # Adam's first step has the size of the learning rate in every coordinate.
    np.testing.assert_allclose(jnp.abs(result.update.params["kernel"]), 0.01, rtol=1e-3)


def test_the_key_decides_the_minibatches(federation, model):
    solver = sgd(0.1, 2, steps=3)
    first, _ = solve(solver, federation, model, key=0)
    again, _ = solve(solver, federation, model, key=0)
    other, _ = solve(solver, federation, model, key=1)
    jax.tree.map(np.testing.assert_array_equal, again, first)
    assert not np.array_equal(other.update.params["kernel"], first.update.params["kernel"])


def test_epochs_differ_from_each_other(federation):
    """The first step of the second epoch may use any example, not always the first one."""
    data, model = one_hot(federation), counting_model()

    def most_visited(steps):
        solver = sgd(1.0, 1, steps=steps)
        found = (solve(solver, data, model, index=5, key=key)[0] for key in range(8))
        return [int(np.argmax(result.update.params["seen"])) for result in found]

    # Of nine examples one is visited twice in ten steps.
    assert most_visited(10) != most_visited(1)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.1, "batch_size": 4}, "exactly one of steps=None and epochs=None"),
        ({"learning_rate": 0.1, "batch_size": 4, "steps": 1, "epochs": 1}, "exactly one of"),
        (
            {
                "learning_rate": 0.1,
                "batch_size": 4,
                "steps": 1,
                "momentum": 0.9,
                "optimizer": optax.adam,
            },
            "momentum=0.9",
        ),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        sgd(**arguments)


def test_a_loss_weight_scales_the_gradient_of_the_loss_and_nothing_else(model, federation):
    solver = sgd(0.1, LARGE, steps=3, prox=0.5)
    weighted, _ = solve(solver, federation, model, loss_weight=jnp.float32(2.0))
    # Twice the rate doubles every term, so the proximal one is given at half its size.
    plain, _ = solve(sgd(0.2, LARGE, steps=3, prox=0.25), federation, model)
    chex.assert_trees_all_close(weighted.update, plain.update, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(weighted.loss, plain.loss, rtol=1e-6)


@pytest.mark.parametrize("length", [{"steps": 5}, {"epochs": 2}], ids=str)
@pytest.mark.parametrize("count", [1, 3])
def test_a_snapshot_is_the_update_after_its_steps(model, federation, length, count):
    def run(count=None, **length):
        instructions = {} if count is None else {"snapshot_step": jnp.int32(count)}
        return solve(sgd(0.1, 3, **length), federation, model, **instructions)[0]

    long, short = run(count, **length), run(steps=count)
    chex.assert_trees_all_close(long.sends["snapshot"], short.update, rtol=1e-6)
    assert "snapshot" not in run(**length).sends
    beyond = run(100, **length)
    chex.assert_trees_all_equal(beyond.sends["snapshot"], beyond.update)


def test_the_last_minibatch_is_reported(model, federation):
    sizes, order = federation.train.sizes, federation.train.order
    solver = sgd(0.1, 4, epochs=1)
    for index, size in enumerate(sizes):
        result, _ = solve(solver, federation, model, index)
        last_batch = np.asarray(result.reports["last_batch"])
        own = order[federation.train.offsets[index] :][:size]
        # What an epoch leaves for its last batch, and nothing else.
        assert (last_batch >= 0).sum() == (size - 1) % 4 + 1
        assert np.isin(last_batch[last_batch >= 0], own).all()


def test_batches_are_not_larger_than_all_examples(federation, model):
    huge, _ = solve(sgd(0.3, 10**9, steps=3), federation, model)
    large, _ = solve(sgd(0.3, LARGE, steps=3), federation, model)
    chex.assert_trees_all_close(huge.update, large.update, rtol=1e-5)
    assert huge.reports["last_batch"].shape == federation.train.order.shape


def test_with_replacement_a_batch_may_be_larger_than_all_examples(federation, model):
    drawn, _ = solve(sgd(0.3, LARGE, steps=1, replacement=True), federation, model)
    assert drawn.reports["last_batch"].shape == (LARGE,)
