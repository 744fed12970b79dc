"""SCAFFOLD, Ditto and Local: identities of the papers, and a second implementation in NumPy."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_gradient, linear_model, make_federation

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, selectors, server_optimizers, solvers
from fedjax_fair.rounds.round import Round, run

FEDERATION = make_federation()
DATA = jax.tree.map(jnp.asarray, FEDERATION)
NUM_CLIENTS = 6
KEY = jax.random.key(4)
BATCH = 100  # Full batches: a step is a gradient of all examples of the client.


def round_of(solver, aggregator=None, selector=None, **settings):
    return Round(
        linear_model(),
        selector or selectors.Uniform(3),
        solver,
        aggregator or aggregators.Mean(),
        **settings,
    )


@cache
def trained(round, num_rounds, **options):
    @jax.jit
    def train(key):
        start = round.init(key, DATA)
        state, info = run(round, start, DATA, num_rounds, **options)
        rows = () if not state.clients else jax.vmap(
            lambda client: state.clients.read(DATA.train, client).state
        )(jnp.arange(NUM_CLIENTS))  # fmt: skip
        return start.variables, state._replace(key=(), clients=()), info, rows

    return jax.device_get(train(KEY))


def repeated(*cohorts):
    """Selects given cohorts in turn."""
    table = np.array(cohorts, np.int32)

    def select(key, state, context):
        clients = jnp.asarray(table)[context.round % len(table)]
        weights = jnp.full(table.shape[1], 1 / table.shape[1])
        return ff.Cohort(clients, weights), state, {}

    return ff.Selector.from_functions(select)


def tree_map(function, *trees):
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


SGD = solvers.SGD(0.2, BATCH, steps=3)
COHORTS = ((0, 1, 2), (3, 2, 5), (4, 4, 1), (2, 0, 5))


def test_scaffold_equals_numpy():
    """With a repeated client, clients without response, and another step size of the server."""
    lost = {(1, 2), (3, 0)}  # round, client

    class Lost(ff.Faults):
        def responds(self, key, context):
            is_lost = [(context.round == r) & (context.client == c) for r, c in sorted(lost)]
            return ~jnp.any(jnp.stack(is_lost))

    rate = server_optimizers.FedAvgM(0.7, beta1=0.0)
    aggregator = aggregators.WithServerOptimizer(aggregators.ScaffoldMean(), rate)
    round = round_of(solvers.Scaffold(SGD), aggregator, repeated(*COHORTS), faults=Lost())
    start, state, _, rows = trained(round, len(COHORTS))
    x = tree_map(np.float64, start.params)
    zeros = tree_map(np.zeros_like, x)
    server, clients = zeros, [zeros] * NUM_CLIENTS
    for number, cohort in enumerate(COHORTS):
        updates, changes = [], {}
        for client in cohort:
            if (number, client) in lost:
                continue
            y = x
            for _ in range(3):
                step = tree_map(
                    lambda g, c, ci: g + c - ci, linear_gradient(y, client), server, clients[client]
                )
                y = tree_map(lambda y, g: y - 0.2 * g, y, step)
            updates.append(tree_map(np.subtract, y, x))
            changes[client] = tree_map(lambda u, c: -u / (3 * 0.2) - c, updates[-1], server)
        x = tree_map(lambda x, *u: x + 0.7 * np.mean(u, axis=0), x, *updates)
        server = tree_map(
            lambda c, *d: c + np.sum(d, axis=0) / NUM_CLIENTS, server, *changes.values()
        )
        for client, change in changes.items():
            clients[client] = tree_map(np.add, clients[client], change)
    chex.assert_trees_all_close(state.variables.params, x, atol=2e-6)
    chex.assert_trees_all_close(state.aggregator.aggregator, server, atol=2e-6)
    for client in range(NUM_CLIENTS):
        row = jax.tree.map(lambda leaf, client=client: leaf[client], rows)
        chex.assert_trees_all_close(row, clients[client], atol=2e-6)


@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
def test_scaffold_starts_as_fedavg_and_keeps_its_invariant(weights):
    """The control variate of the server is the mean of those of all clients."""
    solver = solvers.SGD(0.2, 2, epochs=1, momentum=0.5)
    settings = {"faults": faults.Dropout(0.3), "selector": selectors.BySize(3)}
    average = aggregators.ScaffoldMean(weights)
    _, state, _, rows = trained(round_of(solvers.Scaffold(solver), average, **settings), 5)
    sizes = FEDERATION.train.sizes if weights == "num_examples" else np.ones(NUM_CLIENTS)
    mean = jax.tree.map(lambda leaf: np.average(leaf, axis=0, weights=sizes), rows)
    chex.assert_trees_all_close(state.aggregator, mean, atol=1e-5)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(mean)) > 0.01
    first = trained(round_of(solvers.Scaffold(solver), average, **settings), 1)[1]
    fedavg = trained(round_of(solver, aggregators.Mean(weights), **settings), 1)[1]
    chex.assert_trees_all_equal(first.variables, fedavg.variables)


def test_scaffold_reaches_the_optimum_where_fedavg_does_not():
    """With momentum, on a strictly convex problem."""
    full = selectors.Full()
    weights = FEDERATION.train.sizes / FEDERATION.train.sizes.sum()
    solver = solvers.SGD(0.1, BATCH, steps=8, momentum=0.5, weight_decay=0.1)

    def slope(params):
        parts = [linear_gradient(tree_map(np.float64, params), c) for c in range(NUM_CLIENTS)]
        mean = tree_map(lambda *g: np.einsum("c,c...->...", weights, np.stack(g)), *parts)
        total = tree_map(lambda g, w: g + 0.1 * w, mean, params)
        return np.sqrt(sum(np.sum(leaf**2) for leaf in total.values()))

    average = aggregators.ScaffoldMean("num_examples")
    scaffold = trained(round_of(solvers.Scaffold(solver), average, full), 200)[1]
    fedavg = trained(round_of(solver, aggregators.Mean("num_examples"), full), 200)[1]
    assert slope(scaffold.variables.params) < 1e-4 < 1e-2 < slope(fedavg.variables.params)


def test_displacement_follows_momentum_and_the_proximal_term():
    sgd = solvers.SGD(0.1, 2, steps=1, momentum=0.9, prox=0.7)
    position = buffer = 0.0
    for steps in range(6):
        measured = jax.jit(sgd.displacement)(jnp.int32(0), jnp.int32(steps))
        assert abs(float(measured) + position) < 1e-6
        buffer = 0.9 * buffer + 1 + 0.7 * position
        position -= 0.1 * buffer


@pytest.mark.parametrize("personal_prox", [0.0, 0.5])
def test_ditto_trains_the_global_model_as_fedavg(personal_prox):
    solver = solvers.SGD(0.2, 2, epochs=2)
    settings = {"faults": faults.Dropout(0.3)}
    ditto = trained(round_of(solvers.Ditto(solver, personal_prox), **settings), 4)[1]
    fedavg = trained(round_of(solver, **settings), 4)[1]
    chex.assert_trees_all_equal(ditto.variables, fedavg.variables)


def test_ditto_without_pull_trains_alone():
    """Local training equals that of each client for the rounds in which it responded."""
    cohorts = ((0, 1, 2), (1, 2, 3))
    ditto = trained(round_of(solvers.Ditto(SGD, 0), selector=repeated(*cohorts)), 4)
    local = trained(round_of(solvers.Local(SGD), selector=repeated(*cohorts)), 4)
    chex.assert_trees_all_equal(ditto[3], local[3])
    chex.assert_trees_all_equal(local[1].variables, local[0])
    for client, num_rounds in enumerate((2, 4, 4, 2, 0, 0)):
        params = tree_map(np.float64, local[0].params)
        for _ in range(3 * num_rounds):
            params = tree_map(lambda w, g: w - 0.2 * g, params, linear_gradient(params, client))
        row = jax.tree.map(lambda leaf, client=client: leaf[client], local[3].params)
        chex.assert_trees_all_close(row, params, atol=2e-6)


def test_a_step_of_ditto_with_full_pull_starts_from_the_received_model():
    """At a product of 1 of step size and lambda a step is one from the global model."""
    solver = solvers.SGD(0.25, BATCH, steps=1)
    round = round_of(solvers.Ditto(solver, personal_prox=4.0), selector=selectors.Full())
    before = trained(round, 3)
    after = trained(round, 4)
    received = tree_map(np.float64, before[1].variables.params)
    for client in range(NUM_CLIENTS):
        old = jax.tree.map(lambda leaf, client=client: leaf[client], before[3].params)
        expected = tree_map(lambda x, g: x - 0.25 * g, received, linear_gradient(old, client))
        row = jax.tree.map(lambda leaf, client=client: leaf[client], after[3].params)
        chex.assert_trees_all_close(row, expected, atol=2e-6)


def test_a_state_that_is_not_finite_is_not_stored():
    """Lambda beyond the stable range diverges in a few rounds."""
    solver = solvers.SGD(0.2, 2, steps=5)
    with pytest.warns(UserWarning, match="states"):
        ff.fit(round_of(solvers.Ditto(solver, 1e9)), FEDERATION, rounds=8, train_loss=False)
    _, state, info, rows = trained(round_of(solvers.Ditto(solver, 1e9)), 8)
    assert info.state_nonfinite.any()
    assert not info.nonfinite.any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((rows, state.variables)))


class Overflowing(solvers.Scaffold):
    """Client 2 sends NaN in the second round."""

    def solve(self, key, variables, client):
        result = super().solve(key, variables, client)
        is_broken = (client.id == 2) & (client.round == 1)
        sent = result.update, result.sends
        update, sends = jax.tree.map(lambda leaf: jnp.where(is_broken, jnp.nan, leaf), sent)
        return result._replace(update=update, sends=sends)


def summing_losses(*cohorts):
    """Selects given cohorts in turn, and counts rounds and sums losses and lengths of updates."""

    class Summing(ff.Selector):
        def init(self, context):
            return jnp.zeros((), jnp.int32), jnp.zeros(())

        def select(self, key, state, context):
            cohort, _, info = repeated(*cohorts).select(key, (), context)
            return cohort, (state[0] + 1, state[1]), info

        def observe(self, state, cohort, results, context):
            squares = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(results.update)]
            return state[0], state[1] + sum(squares)

    return Summing()


@pytest.mark.parametrize("lost", [(), faults.Dropout(0.0)])
def test_a_skipped_round_leaves_all_states(lost):
    """Those of server and clients, and what the selector observed; later rounds are finite."""
    settings = {"selector": summing_losses(*COHORTS), "faults": lost}
    optimizer = server_optimizers.FedAvgM(0.7, beta1=0.5)
    aggregator = aggregators.WithServerOptimizer(aggregators.ScaffoldMean(), optimizer)
    round = round_of(Overflowing(SGD), aggregator, **settings)
    (_, before, _, rows), (_, after, info, same_rows) = (
        trained(round, rounds, skip_nonfinite=True) for rounds in (1, 2)
    )
    assert info.finite.tolist() == [True, False]
    chex.assert_trees_all_equal(
        (after.variables, after.aggregator, same_rows), (before.variables, before.aggregator, rows)
    )
    assert after.selector == (2, before.selector[1])
    _, state, info, rows = trained(round, 4, skip_nonfinite=True)
    assert info.finite.tolist() == [True, False, True, True]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, rows)))
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), rows)
    chex.assert_trees_all_close(state.aggregator.aggregator, mean, atol=1e-6)
    options = {"rounds": 4, "eval_every": 2, "on_nonfinite": "skip_round"}
    with pytest.warns(UserWarning, match="skipped"):
        dataset = ff.fit(round, FEDERATION, **options).dataset
    assert dataset.update_nonfinite.values.sum() == 1
    assert np.isfinite(dataset.test_loss).all()


def test_evaluations_measure_both_models():
    """The personalized model of a client is its state; the global one is that of FedAvg."""
    solver = solvers.SGD(0.2, 2, epochs=2)
    settings = {"rounds": 4, "seeds": (0, 5), "eval_every": 2}
    dataset = ff.fit(round_of(solvers.Ditto(solver, 0.5)), FEDERATION, **settings).dataset
    fedavg = ff.fit(round_of(solver), FEDERATION, **settings).dataset
    np.testing.assert_array_equal(dataset.test_accuracy, fedavg.test_accuracy)
    np.testing.assert_array_equal(dataset.accuracy_mean_clients, fedavg.accuracy_mean_clients)
    for run_index, seed in enumerate((0, 5)):
        round = round_of(solvers.Ditto(solver, 0.5))
        state, _ = run(round, round.init(jax.random.key(seed), DATA), DATA, 4)
        for split in ("test", "train"):
            examples = getattr(FEDERATION, split)
            for client in range(NUM_CLIENTS):
                params, _ = state.clients.read(DATA.train, client).state
                first = examples.offsets[client]
                rows = examples.order[first : first + examples.sizes[client]]
                logits = examples.features[rows] @ params["kernel"] + params["bias"][None]
                losses = -jax.nn.log_softmax(logits)[np.arange(len(rows)), examples.labels[rows]]
                measured = dataset[f"personalized_{split}_loss"][run_index, -1, client]
                assert abs(float(measured) - float(losses.mean())) < 1e-5
    first = dataset.isel(round=0)
    np.testing.assert_allclose(first.personalized_test_loss, first.test_loss, rtol=1e-5)
    accuracy = dataset.personalized_test_accuracy.mean("client")
    np.testing.assert_allclose(dataset.personalized_accuracy_mean_clients, accuracy, rtol=1e-6)
    assert "personalized_participation_gini" not in dataset


def test_a_method_without_global_model_reports_none_and_sends_nothing():
    dataset = ff.fit(round_of(solvers.Local(SGD)), FEDERATION, rounds=2, eval_every=2).dataset
    assert np.isnan(dataset.test_accuracy).all()
    assert np.isnan(dataset.accuracy_mean_clients).all()
    assert np.isfinite(dataset.personalized_accuracy_mean_clients).all()
    assert dataset.bytes_up.max() == dataset.bytes_down.max() == 0
    assert dataset.participation.max() > 0


def test_scaffold_counts_control_variates_in_both_directions():
    size = 4 * (3 * 4 + 3)
    dataset = ff.fit(
        round_of(solvers.Scaffold(SGD), aggregators.ScaffoldMean()),
        FEDERATION, rounds=2, eval_every=2,
    ).dataset  # fmt: skip
    assert dataset.bytes_up.values.tolist() == [[0, 2 * 3 * 2 * size]]
    assert dataset.bytes_down.values.tolist() == [[0, 2 * 3 * 2 * size]]


class Growing(ff.Solver):
    """Keeps a state of another shape than the first."""

    def init(self, key, variables, client):
        return jnp.zeros(2)

    def solve(self, key, variables, client):
        zeros = jax.tree.map(jnp.zeros_like, variables)
        return ff.LocalResult(zeros, jnp.zeros(()), jnp.int32(1), state=jnp.zeros(3))


@pytest.mark.parametrize(
    ("round", "said"),
    [
        (
            lambda: round_of(solvers.Scaffold(SGD)),
            "aggregator:",
        ),
        (
            lambda: round_of(SGD, aggregators.ScaffoldMean()),
            "sends=",
        ),
        (lambda: round_of(Growing()), "state"),
        (
            lambda: round_of(
                solvers.Scaffold(SGD),
                aggregators.ScaffoldMean(),
                compression=ff.communication.TopK(0.5),
            ),
            "the solver also sends control, to which it would not apply",
        ),
        (lambda: solvers.Ditto(SGD, -1.0), "personal_prox=-1.0"),
        (lambda: solvers.Ditto(3), "solver"),
    ],
)
def test_wrong_pairs_of_roles_are_one_line(round, said, as_users_call):
    def call():
        made = round()
        run(made, made.init(KEY, DATA), DATA, 1)

    with pytest.raises(ValueError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)
