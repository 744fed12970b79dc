"""Fine-tuning, Per-FedAvg, pFedMe and APFL: identities, and a second implementation in NumPy."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import examples_of, linear_gradient
from test_client_state import (
    COHORTS,
    DATA,
    FEDERATION,
    KEY,
    NUM_CLIENTS,
    SGD,
    repeated,
    round_of,
    trained,
    tree_map,
)

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, server_optimizers, solvers
from fedjax_fair.rounds.client_state import make_client
from fedjax_fair.rounds.round import run
from fedjax_fair.rounds.round_context import make_context

DROPOUT = {"faults": faults.Dropout(0.3)}


@cache
def personalized(round, num_rounds):
    """Returns the first, the last and the personalized models of all clients."""

    @jax.jit
    def train(key):
        start = round.init(key, DATA)
        state, _ = run(round, start, DATA, num_rounds)
        clients = jnp.arange(NUM_CLIENTS, dtype=jnp.int32)
        models = jax.vmap(round.personalize(state, DATA))(clients)
        return start.variables.params, state.variables.params, models.params

    return jax.device_get(train(KEY))


def row(tree, client):
    return jax.tree.map(lambda leaf: leaf[client], tree)


def step(params, slope, rate):
    return tree_map(lambda w, g: w - rate * g, params, slope)


def mean_of(models):
    return tree_map(lambda *leaves: np.mean(leaves, axis=0), *models)


def test_fine_tuning_takes_steps_from_the_global_model():
    round = round_of(solvers.FineTuned(SGD.replace(steps=3), fine_tuning_steps=2))
    _, last, models = personalized(round, 3)
    for client in range(NUM_CLIENTS):
        params = tree_map(np.float64, last)
        for _ in range(2):
            params = step(params, linear_gradient(params, client), 0.2)
        chex.assert_trees_all_close(row(models, client), params, atol=2e-6)


@pytest.mark.parametrize("steps", [0, 3])
def test_evaluations_of_fine_tuned_models_leave_the_global_model_as_it_is(steps):
    settings = {"rounds": 4, "seeds": (0,)}
    solver = solvers.SGD(0.2, 2, epochs=1)
    tuned = round_of(solvers.FineTuned(solver, fine_tuning_steps=steps))
    often = ff.fit(tuned, FEDERATION, eval_every=1, **settings)
    fedavg = ff.fit(round_of(solver), FEDERATION, eval_every=4, **settings)
    chex.assert_trees_all_equal(often.variables, fedavg.variables)
    own, shared = often.dataset.personalized_train_loss, often.dataset.train_loss
    assert np.allclose(own, shared, rtol=1e-5) == (steps == 0)


def test_per_fedavg_equals_numpy():
    solver = solvers.PerFedAvg(SGD, inner_learning_rate=0.4, fine_tuning_steps=2)
    start, last, models = personalized(round_of(solver, selector=repeated(*COHORTS)), 3)
    x = tree_map(np.float64, start)
    for cohort in COHORTS[:3]:
        updated = []
        for client in cohort:
            w = x
            for _ in range(3):
                adapted = step(w, linear_gradient(w, client), 0.4)
                w = step(w, linear_gradient(adapted, client), 0.2)
            updated.append(w)
        x = mean_of(updated)
    chex.assert_trees_all_close(last, x, atol=2e-6)
    for client in range(NUM_CLIENTS):
        params = x
        for _ in range(2):
            params = step(params, linear_gradient(params, client), 0.4)
        chex.assert_trees_all_close(row(models, client), params, atol=5e-6)


def test_per_fedavg_with_an_inner_rate_of_zero_is_fedavg():
    solver = solvers.SGD(0.2, 2, epochs=2)
    meta = trained(round_of(solvers.PerFedAvg(solver, inner_learning_rate=0.0), **DROPOUT), 4)[1]
    fedavg = trained(round_of(solver, **DROPOUT), 4)[1]
    chex.assert_trees_all_close(meta.variables, fedavg.variables, atol=1e-6)


def test_per_fedavg_draws_two_independent_minibatches():
    """Of single examples, whose pair a step reveals."""
    client, rate, inner = 1, 0.2, 0.8
    features, labels = examples_of(client)
    round = round_of(solvers.PerFedAvg(solvers.SGD(rate, 1, steps=1), inner_learning_rate=inner))

    @jax.jit
    def updates(keys):
        start = round.init(KEY, DATA).variables
        context = make_context(round.model, jnp.int32(0), start, DATA)
        train = make_client(context, jnp.int32(client))
        solve = jax.vmap(lambda key: round.solver.solve(key, start, train).update.params)
        return start.params, solve(keys)

    start, moved = jax.device_get(updates(jax.random.split(KEY, 40)))

    def slope(params, place):
        errors = np.exp(features[place] @ params["kernel"] + params["bias"])
        errors = errors / errors.sum() - np.eye(3)[labels[place]]
        return {"kernel": np.outer(features[place], errors), "bias": errors}

    start, count = tree_map(np.float64, start), len(labels)
    pairs = [(first, second) for first in range(count) for second in range(count)]
    expected = [
        -rate * slope(step(start, slope(start, first), inner), second)["kernel"]
        for first, second in pairs
    ]
    distance = np.abs(moved["kernel"][:, None] - np.stack(expected)).max((2, 3))
    assert distance.min(1).max() < 1e-5
    drawn = [pairs[place] for place in distance.argmin(1)]
    assert 0 < sum(first == second for first, second in drawn) < 20
    assert all(len({pair[side] for pair in drawn}) > 4 for side in (0, 1))


def moreau(x, client, steps, rate, prox, inner_rate, inner_steps):
    """Returns the local and the personalized model of pFedMe."""
    w = theta = x
    for _ in range(steps):
        for _ in range(inner_steps):
            slope = tree_map(
                lambda g, t, w: g + prox * (t - w), linear_gradient(theta, client), theta, w
            )
            theta = step(theta, slope, inner_rate)
        w = step(w, tree_map(lambda w, t: prox * (w - t), w, theta), rate)
    return w, theta


def test_pfedme_equals_numpy():
    """With another step size of the server."""
    solver = solvers.PFedMe(SGD, personal_prox=2.0, inner_learning_rate=0.3, inner_steps=2)
    rate = server_optimizers.FedAvgM(0.7, beta1=0.0)
    aggregator = aggregators.WithServerOptimizer(aggregators.Mean(), rate)
    start, last, models = personalized(round_of(solver, aggregator, repeated(*COHORTS)), 3)
    x, settings = tree_map(np.float64, start), (3, 0.2, 2.0, 0.3, 2)
    for cohort in COHORTS[:3]:
        mean = mean_of([moreau(x, client, *settings)[0] for client in cohort])
        x = tree_map(lambda x, m: 0.3 * x + 0.7 * m, x, mean)
    chex.assert_trees_all_close(last, x, atol=2e-6)
    for client in range(NUM_CLIENTS):
        _, theta = moreau(x, client, *settings)
        chex.assert_trees_all_close(row(models, client), theta, atol=5e-6)


def test_one_step_of_pfedme_is_one_of_fedavg():
    """With the product of the three factors as step size."""
    one = solvers.SGD(0.5, 2, steps=1)
    solver = solvers.PFedMe(one, personal_prox=2.0, inner_learning_rate=0.3, inner_steps=1)
    pfedme = trained(round_of(solver, **DROPOUT), 4)[1]
    fedavg = trained(round_of(one.replace(learning_rate=0.5 * 2.0 * 0.3), **DROPOUT), 4)[1]
    chex.assert_trees_all_close(pfedme.variables, fedavg.variables, atol=1e-6)


def test_pfedme_does_not_move_without_inner_steps_or_server_steps():
    rate = server_optimizers.FedAvgM(0.0, beta1=0.0)
    still = aggregators.WithServerOptimizer(aggregators.Mean(), rate)
    for solver, aggregator in (
        (solvers.PFedMe(SGD, inner_learning_rate=0.0), aggregators.Mean()),
        (solvers.PFedMe(SGD, personal_prox=2.0), still),
    ):
        start, state, _, _ = trained(round_of(solver, aggregator), 2)
        chex.assert_trees_all_equal(state.variables, start)


def mixed(alpha, v, w):
    return tree_map(lambda v, w: alpha * v + (1 - alpha) * w, v, w)


def test_apfl_equals_numpy():
    solver = solvers.APFL(SGD, mixing_weight=0.3)
    round = round_of(solver, selector=repeated(*COHORTS))
    start, last, models = personalized(round, 4)
    x = tree_map(np.float64, start)
    local, alphas = [x] * NUM_CLIENTS, [0.3] * NUM_CLIENTS
    for cohort in COHORTS:
        updated, kept = [], {}
        for client in cohort:
            w, v, alpha = x, local[client], alphas[client]
            for number in range(3):
                slope = linear_gradient(mixed(alpha, v, w), client)
                new = step(v, slope, 0.2 * alpha)
                if number == 0:
                    along = sum(np.sum((v[name] - w[name]) * slope[name]) for name in v)
                    alpha = np.clip(alpha - 0.2 * along, 0, 1)
                w, v = step(w, linear_gradient(w, client), 0.2), new
            updated.append(w)
            kept[client] = v, alpha
        for client, (v, alpha) in kept.items():
            local[client], alphas[client] = v, alpha
        x = mean_of(updated)
    chex.assert_trees_all_close(last, x, atol=2e-6)
    for client in range(NUM_CLIENTS):
        expected = mixed(alphas[client], local[client], x)
        chex.assert_trees_all_close(row(models, client), expected, atol=5e-6)
    assert len(set(alphas)) == NUM_CLIENTS  # Each has been drawn, and they differ.


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_apfl_is_between_the_global_model_and_training_alone(weight):
    solver = solvers.APFL(SGD, mixing_weight=weight, adaptive=False)
    selector = repeated(*COHORTS)
    start, last, models = personalized(round_of(solver, selector=selector), 4)
    fedavg = trained(round_of(SGD, selector=selector), 4)[1]
    chex.assert_trees_all_close(last, fedavg.variables.params, atol=1e-6)
    state = trained(round_of(solver, selector=selector), 4)[3]
    if weight == 0:
        chex.assert_trees_all_equal(row(models, 3), last)
        chex.assert_trees_all_equal(row(state.local.params, 2), start)
    else:
        alone = trained(round_of(solvers.Local(SGD), selector=selector), 4)[3]
        chex.assert_trees_all_close(models, alone.params, atol=2e-6)


def test_the_global_model_of_apfl_is_that_of_fedavg():
    solver = solvers.SGD(0.2, 2, epochs=2, momentum=0.5)
    apfl = trained(round_of(solvers.APFL(solver), **DROPOUT), 4)
    fedavg = trained(round_of(solver, **DROPOUT), 4)[1]
    chex.assert_trees_all_close(apfl[1].variables, fedavg.variables, atol=1e-6)
    alphas = apfl[3].alpha
    assert (alphas >= 0).all()
    assert (alphas <= 1).all()
    assert (alphas != 0.5).any()
