"""FedNova, FedDyn and MimeLite: identities of the papers, and a second implementation in NumPy.

Also SCAFFOLD with steps of zero and with control variates that are not finite.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_gradient
from test_client_state import (
    BATCH,
    COHORTS,
    FEDERATION,
    NUM_CLIENTS,
    SGD,
    repeated,
    round_of,
    trained,
    tree_map,
)

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, selectors, solvers
from fedjax_fair.rounds.round import run

LOST = {(1, 2), (3, 0)}  # round, client
SIZES = np.float64(FEDERATION.train.sizes)


class Uneven(ff.Faults):
    """Some clients do not respond, and the number of steps differs between clients."""

    def responds(self, key, context):
        is_lost = [(context.round == r) & (context.client == c) for r, c in sorted(LOST)]
        return ~jnp.any(jnp.stack(is_lost))

    def instruct(self, key, context):
        return {"max_steps": num_steps(context.client)}


def num_steps(client):
    return 1 + client % 3


def descend(slope, x, steps, rate, momentum=0.0):
    """Returns the model after some steps."""
    y, buffer = x, tree_map(np.zeros_like, x)
    for _ in range(steps):
        buffer = tree_map(lambda b, g: momentum * b + g, buffer, slope(y))
        y = tree_map(lambda y, b: y - rate * b, y, buffer)
    return y


def responders(number):
    return [client for client in COHORTS[number] if (number, client) not in LOST]


def uneven(solver, aggregator):
    return trained(round_of(solver, aggregator, repeated(*COHORTS), faults=Uneven()), len(COHORTS))


def test_fednova_equals_numpy():
    """With momentum and a proximal term, whose effective steps come from the same recursion."""
    solver = SGD.replace(momentum=0.5, prox=0.7)
    start, state, info, _ = uneven(solvers.FedNova(solver), aggregators.FedNovaMean())
    x = tree_map(np.float64, start.params)
    for number in range(len(COHORTS)):
        clients = responders(number)
        shares = SIZES[clients] / SIZES[clients].sum()
        sent, effective = [], []
        for client in clients:

            def slope(y, client=client, x=x):
                return tree_map(lambda g, y, x: g + 0.7 * (y - x), linear_gradient(y, client), y, x)

            unit = descend(
                lambda y: {"w": 1 + 0.7 * y["w"]},
                {"w": 0.0 * x["bias"]},
                num_steps(client),
                0.2,
                0.5,
            )
            effective.append(-unit["w"][0] / 0.2)
            y = descend(slope, x, num_steps(client), 0.2, 0.5)
            sent.append(tree_map(lambda y, x, a=effective[-1]: (y - x) / a, y, x))
        scale = shares @ effective * shares
        x = tree_map(
            lambda x, *d, scale=scale: x + np.einsum("c,c...->...", scale, np.stack(d)), x, *sent
        )
        shown = info.aggregator["effective_steps"][number]
        np.testing.assert_allclose(shown[info.responded[number]], effective, rtol=1e-5)
    chex.assert_trees_all_close(state.variables.params, x, atol=2e-6)


def test_fednova_with_equal_steps_is_fedavg():
    solver = solvers.SGD(0.2, 2, steps=4, momentum=0.5, prox=0.3)
    settings = {"faults": faults.Dropout(0.3)}
    fednova = trained(round_of(solvers.FedNova(solver), aggregators.FedNovaMean(), **settings), 4)
    fedavg = trained(round_of(solver, aggregators.Mean("num_examples"), **settings), 4)
    chex.assert_trees_all_close(fednova[1].variables, fedavg[1].variables, atol=1e-6)


def test_fednova_counts_steps_at_a_step_size_of_zero():
    solver = solvers.SGD(0.0, 2, epochs=1, prox=0.3)
    start, state, info, _ = trained(round_of(solvers.FedNova(solver), aggregators.FedNovaMean()), 1)
    chex.assert_trees_all_equal(state.variables, start)
    np.testing.assert_array_equal(info.aggregator["effective_steps"], info.steps)


def test_scaffold_keeps_its_control_variates_at_a_step_size_of_zero():
    """In the first round, as warm-up schedules do, and in a later one."""
    solver = solvers.SGD(lambda round: 0.2 * (round % 2).astype(jnp.float32), 2, epochs=1)
    method = round_of(solvers.Scaffold(solver), aggregators.ScaffoldMean(), selectors.Full())
    start, first, info, rows = trained(method, 1)
    assert info.finite.all()
    assert not info.state_nonfinite.any()
    chex.assert_trees_all_equal(first.variables, start)
    for leaf in jax.tree.leaves((first.aggregator, rows)):
        np.testing.assert_array_equal(leaf, 0)
    (_, before, _, rows), (_, after, _, same_rows) = (trained(method, n) for n in (2, 3))
    chex.assert_trees_all_equal(
        (after.variables, after.aggregator, same_rows), (before.variables, before.aggregator, rows)
    )
    _, state, _, rows = trained(method, 4)
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), rows)
    chex.assert_trees_all_close(state.aggregator, mean, atol=1e-6)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(mean)) > 0.01


class InfiniteControl(solvers.Scaffold):
    """Client 2 sends a finite update and an infinite control variate in the second round."""

    def solve(self, key, variables, client):
        result = super().solve(key, variables, client)
        is_broken = (client.id == 2) & (client.round == 1)
        sends = jax.tree.map(lambda leaf: jnp.where(is_broken, jnp.inf, leaf), result.sends)
        return result._replace(sends=sends)


def test_the_server_of_scaffold_keeps_a_control_variate_that_is_finite():
    method = round_of(InfiniteControl(SGD), aggregators.ScaffoldMean(), selectors.Full())
    (_, before, _, _), (_, after, info, _) = (trained(method, n) for n in (1, 2))
    assert info.finite.all()
    chex.assert_trees_all_equal(after.aggregator, before.aggregator)
    _, state, _, _ = trained(method, 3)
    leaves = jax.tree.leaves((state.variables, state.aggregator))
    assert all(np.isfinite(leaf).all() for leaf in leaves)


def test_feddyn_equals_numpy():
    start, state, _, rows = uneven(solvers.FedDyn(SGD, alpha=0.5), aggregators.FedDynMean())
    x = tree_map(np.float64, start.params)
    zeros = tree_map(np.zeros_like, x)
    server, clients = zeros, [zeros] * NUM_CLIENTS
    for number in range(len(COHORTS)):
        models, moves = [], {}
        for client in responders(number):

            def slope(y, client=client, x=x):
                pulled = tree_map(lambda y, x, g: 0.5 * (y - x) - g, y, x, clients[client])
                return tree_map(np.add, linear_gradient(y, client), pulled)

            models.append(descend(slope, x, num_steps(client), 0.2))
            moves[client] = tree_map(lambda y, x: 0.5 * (y - x), models[-1], x)
        for client, move in moves.items():
            clients[client] = tree_map(np.subtract, clients[client], move)
            server = tree_map(lambda h, m: h - m / NUM_CLIENTS, server, move)
        x = tree_map(lambda h, *y: np.mean(y, axis=0) - h / 0.5, server, *models)
    chex.assert_trees_all_close(state.variables.params, x, atol=5e-6)
    chex.assert_trees_all_close(state.aggregator, tree_map(lambda h: h / 0.5, server), atol=5e-6)
    for client in range(NUM_CLIENTS):
        row = jax.tree.map(lambda leaf, client=client: leaf[client], rows)
        chex.assert_trees_all_close(row, clients[client], atol=5e-6)


def test_the_drift_of_feddyn_is_the_mean_of_the_states():
    """Also with repeated clients, of which the last response counts, and without some responses."""
    solver = solvers.FedDyn(solvers.SGD(0.2, 2, epochs=1, momentum=0.5), alpha=0.3)
    settings = {"faults": faults.Dropout(0.3), "selector": selectors.BySize(4)}
    _, state, _, rows = trained(round_of(solver, aggregators.FedDynMean(), **settings), 5)
    mean = jax.tree.map(lambda leaf: leaf.mean(0) / np.float32(0.3), rows)
    chex.assert_trees_all_close(state.aggregator, mean, atol=1e-5)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(mean)) > 0.01


def test_feddyn_stays_at_the_optimum_with_the_gradients_of_clients():
    """On a strictly convex problem it gets there with some clients per round."""
    solver = solvers.SGD(0.2, BATCH, steps=60, weight_decay=0.1)
    method = round_of(solvers.FedDyn(solver, alpha=0.3), aggregators.FedDynMean())
    _, state, _, rows = trained(method, 150)
    x = tree_map(np.float64, state.variables.params)
    slopes = [
        tree_map(lambda g, w: g + 0.1 * w, linear_gradient(x, client), x)
        for client in range(NUM_CLIENTS)
    ]
    mean = tree_map(lambda *g: np.mean(g, axis=0), *slopes)
    assert max(np.abs(leaf).max() for leaf in mean.values()) < 1e-4
    assert max(np.abs(leaf).max() for leaf in state.aggregator.values()) < 1e-3
    for client, slope in enumerate(slopes):
        row = jax.tree.map(lambda leaf, client=client: leaf[client], rows)
        chex.assert_trees_all_close(row, slope, atol=1e-3)
    assert max(np.abs(leaf).max() for leaf in slopes[0].values()) > 0.01


def test_mime_lite_equals_numpy():
    start, state, _, _ = uneven(solvers.MimeLite(SGD), aggregators.MimeLiteMean(beta=0.6))
    x = tree_map(np.float64, start.params)
    momentum = tree_map(np.zeros_like, x)
    for number in range(len(COHORTS)):
        clients = responders(number)
        models = []
        for client in clients:

            def slope(y, client=client, momentum=momentum):
                return tree_map(
                    lambda g, m: 0.4 * g + 0.6 * m, linear_gradient(y, client), momentum
                )

            models.append(descend(slope, x, num_steps(client), 0.2))
        slopes = [linear_gradient(x, client) for client in clients]
        momentum = tree_map(lambda m, *g: 0.4 * np.mean(g, axis=0) + 0.6 * m, momentum, *slopes)
        x = tree_map(lambda *y: np.mean(y, axis=0), *models)
    chex.assert_trees_all_close(state.variables.params, x, atol=2e-6)
    chex.assert_trees_all_close(state.aggregator, momentum, atol=2e-6)


def test_one_full_step_of_mime_lite_is_centralized_sgd_with_momentum():
    solver = solvers.SGD(0.3, BATCH, steps=1, weight_decay=0.1)
    mean = aggregators.MimeLiteMean("num_examples", beta=0.8)
    method = round_of(solvers.MimeLite(solver), mean, selectors.Full())
    start, state, _, _ = trained(method, 6)
    x = tree_map(np.float64, start.params)
    momentum = tree_map(np.zeros_like, x)
    shares = SIZES / SIZES.sum()
    for _ in range(6):
        slopes = [linear_gradient(x, client) for client in range(NUM_CLIENTS)]
        momentum = tree_map(
            lambda m, x, *g: (
                0.8 * m + 0.2 * (np.einsum("c,c...->...", shares, np.stack(g)) + 0.1 * x)
            ),
            momentum,
            x,
            *slopes,
        )
        x = tree_map(lambda x, m: x - 0.3 * m, x, momentum)
    chex.assert_trees_all_close(state.variables.params, x, atol=2e-6)


def test_mime_lite_without_momentum_is_fedavg():
    solver = solvers.SGD(0.2, 2, epochs=2)
    mime = trained(round_of(solvers.MimeLite(solver), aggregators.MimeLiteMean(beta=0.0)), 4)[1]
    fedavg = trained(round_of(solver), 4)[1]
    chex.assert_trees_all_close(mime.variables, fedavg.variables, atol=1e-6)


MODEL = 4 * (3 * 4 + 3)


@pytest.mark.parametrize(
    ("solver", "aggregator", "up", "down"),
    [
        (solvers.FedNova, aggregators.FedNovaMean, MODEL + 4, MODEL),
        (solvers.FedDyn, aggregators.FedDynMean, MODEL, MODEL),
        (solvers.MimeLite, aggregators.MimeLiteMean, 2 * MODEL, 2 * MODEL + 4),
    ],
)
def test_bytes_and_wrong_pairs(solver, aggregator, up, down, as_users_call):
    def trace(solver, aggregator):
        method = round_of(solver, aggregator)
        return jax.eval_shape(
            lambda key: run(method, method.init(key, FEDERATION), FEDERATION, 1), jax.random.key(0)
        )

    traffic = trace(solver(SGD), aggregator())[1].traffic
    assert (traffic.up, traffic.down) == (up, down)
    with pytest.raises(ValueError, match="aggregator:"):
        trace(solver(SGD), aggregators.Mean())
    with pytest.raises(ValueError, match="sends="):
        trace(SGD, aggregator())
    with pytest.raises(ValueError, match="solver"):
        solver(3)
