"""IFCA: identities, planted groups, and a second implementation in NumPy."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import examples_of, linear_gradient, linear_model, own
from test_client_state import (
    BATCH,
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
from fedjax_fair import aggregators, faults, selectors, server_optimizers, solvers
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.evaluation.clients import client_loss, client_performance
from fedjax_fair.metrics.clustering import adjusted_rand_index
from fedjax_fair.roles import Variables
from fedjax_fair.rounds.round import run

SMALL_BATCHES = solvers.SGD(0.2, 2, epochs=2, momentum=0.5)


def ifca(solver, num_models, weights="uniform", **settings):
    return round_of(solvers.IFCA(solver), aggregators.IFCAMean(num_models, weights), **settings)


def loss(params, client):
    features, labels = examples_of(client)
    logits = features @ params["kernel"] + params["bias"]
    logits -= logits.max(1, keepdims=True)
    normalizer = np.log(np.exp(logits).sum(1))
    return np.mean(normalizer - logits[np.arange(len(labels)), labels])


@cache
def with_models(round, num_rounds):
    """Returns the first, the last and the personalized models, and the info of rounds."""

    @jax.jit
    def train(key):
        start = round.init(key, DATA)
        state, info = run(round, start, DATA, num_rounds)
        clients = jnp.arange(NUM_CLIENTS, dtype=jnp.int32)
        personalized = jax.vmap(round.personalize(state, DATA))(clients)
        return models_of(start), models_of(state), personalized.params, info

    return jax.device_get(train(KEY))


def models_of(state):
    return [model.params for model in (state.variables, *state.aggregator)]


class Lost(ff.Faults):
    """Client 2 does not respond in the second round."""

    def responds(self, key, context):
        return ~((context.round == 1) & (context.client == 2))


@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
@pytest.mark.parametrize("num_models", [2, 3])
def test_ifca_equals_numpy(num_models, weights):
    """With a client that is drawn twice, one that is lost, and clusters that nobody chooses.

    The proximal term pulls to the chosen model.
    """
    settings = {"selector": repeated(*COHORTS), "faults": Lost()}
    start, last, personalized, info = with_models(
        ifca(SGD.replace(prox=0.5), num_models, weights, **settings), 4
    )
    models, choices = [tree_map(np.float64, model) for model in start], []
    for number, cohort in enumerate(COHORTS):
        clusters = [np.argmin([loss(model, client) for model in models]) for client in cohort]
        choices.append([
            -1 if (number, client) == (1, 2) else cluster
            for client, cluster in zip(cohort, clusters, strict=True)
        ])  # fmt: skip
        old = models
        for cluster in range(num_models):
            total, trained_models = 0.0, []
            for client, choice in zip(cohort, choices[-1], strict=True):
                if choice != cluster:
                    continue
                y = old[cluster]
                for _ in range(3):
                    slope = linear_gradient(y, client)
                    y = tree_map(
                        lambda w, g, x: w - 0.2 * (g + 0.5 * (w - x)), y, slope, old[cluster]
                    )
                weight = len(examples_of(client)[1]) if weights == "num_examples" else 1.0
                total += weight
                trained_models.append(tree_map(lambda leaf, weight=weight: weight * leaf, y))
            if trained_models:
                mean = tree_map(lambda *leaves, total=total: sum(leaves) / total, *trained_models)
                models = [*models[:cluster], mean, *models[cluster + 1 :]]
    np.testing.assert_array_equal(info.aggregator["cluster"], choices)
    chex.assert_trees_all_close(last, models, atol=2e-6)
    for client in range(NUM_CLIENTS):
        best = min(models, key=lambda model, client=client: loss(model, client))
        found = jax.tree.map(lambda leaf, client=client: leaf[client], personalized)
        chex.assert_trees_all_close(found, best, atol=2e-6)
    # Clients of one cohort choose different models, so that the test sees more than a mean.
    assert len({cluster for row in choices for cluster in row}) > 2


@pytest.mark.parametrize("weights", ["uniform", "num_examples"])
def test_one_model_is_fedavg(weights):
    settings = {"faults": [faults.Dropout(0.3), faults.Staleness(0.5, max_staleness=2)]}
    one = trained(ifca(SMALL_BATCHES, 1, weights, **settings), 4)
    fedavg = trained(round_of(SMALL_BATCHES, aggregators.Mean(weights), **settings), 4)
    chex.assert_trees_all_equal(one[1].variables, fedavg[1].variables)
    np.testing.assert_array_equal(one[2].weights, fedavg[2].weights)


def test_several_models_of_which_one_is_chosen_are_fedavg():
    """To rounding: the updates of a cluster are summed after training."""
    round = ifca(SMALL_BATCHES, 2, faults=faults.Dropout(0.3))
    start = trained(round, 1)[0]
    far = jax.tree.map(
        lambda leaf: leaf + 9.0 * np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape) ** 2,
        start,
    )
    state = trained_from(round, [far], 4)
    fedavg = trained(round_of(SMALL_BATCHES, faults=faults.Dropout(0.3)), 4)[1]
    chex.assert_trees_all_close(state.variables, fedavg.variables, atol=1e-6)
    chex.assert_trees_all_equal(state.aggregator, (far,))


def test_equal_models_are_all_in_the_first_cluster():
    round = ifca(SGD, 3)
    first = trained(round, 1)[0]
    state = trained_from(round, [first, first], 1)
    fedavg = trained(round_of(SGD), 1)[1]
    chex.assert_trees_all_close(state.variables, fedavg.variables, atol=1e-6)
    chex.assert_trees_all_equal(state.aggregator, (first, first))


def test_other_places_of_the_models_are_other_places_of_the_results():
    round = ifca(SGD, 3)
    start, _, _, _ = with_models(round, 1)
    models = [Variables(params, {}) for params in start]
    swapped = [models[1], models[2], models[0]]
    states = [trained_from(round, each[1:], 3, first=each[0]) for each in (models, swapped)]
    one, other = (models_of(state) for state in states)
    chex.assert_trees_all_close([one[1], one[2], one[0]], other, atol=1e-6)
    assert (
        sum(bool((a["kernel"] != b["kernel"]).any()) for a, b in zip(one, start, strict=True)) > 1
    )


def trained_from(round, others, num_rounds, first=None, data=DATA, key=KEY):
    """Trains from given models in the place of those that the aggregator keeps."""

    @jax.jit
    def train(key, others, first):
        start = round.init(key, data)
        start = start._replace(aggregator=tuple(others))
        if first is not None:
            start = start._replace(variables=first)
        return run(round, start, data, num_rounds)[0]._replace(key=())

    return jax.device_get(train(key, others, first))


def test_models_start_at_different_points_that_depend_on_the_seed():
    round = ifca(SGD, 3)
    kernels = [
        model["kernel"]
        for seed in (0, 1)
        for model in models_of(round.init(jax.random.key(seed), DATA))
    ]
    assert min(abs(a - b).max() for i, a in enumerate(kernels) for b in kernels[:i]) > 0.01
    fedavg = round_of(SGD).init(jax.random.key(0), DATA)
    np.testing.assert_array_equal(kernels[0], fedavg.variables.params["kernel"])


def planted(num_groups, per_group=5, size=12):
    """Clients whose labels follow one of several linear rules, which contradict each other."""
    rng = np.random.default_rng(7)
    num_clients = num_groups * per_group
    owners = np.repeat(np.arange(num_clients), size)
    features = rng.normal(size=(num_clients * size, 4)).astype(np.float32)
    groups = np.arange(num_clients) % num_groups
    labels = (features[:, :3].argmax(1) + groups[owners]) % 3
    part = own(features, labels.astype(np.int32), owners, num_clients)
    return FederatedData(part, part, groups.astype(np.int32), 3, "planted")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_groups", [2, 3])
def test_planted_groups_are_found(num_groups, seed):
    """From models that are nearer to one optimum than to the others, as the theory assumes."""
    data = jax.tree.map(jnp.asarray, planted(num_groups))
    round = ifca(solvers.SGD(0.3, BATCH, steps=5), num_groups, selector=selectors.Uniform(6))
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_groups)
    starts = [
        Variables(
            {
                "kernel": jnp.float32(
                    0.5 * np.eye(4, 3)[:, (np.arange(3) - group) % 3]
                    + 0.1 * rng.normal(size=(4, 3))
                ),
                "bias": jnp.zeros(3),
            },
            {},
        )
        for group in order
    ]
    state = trained_from(round, starts[1:], 12, starts[0], data, jax.random.key(seed))
    models = [state.variables, *state.aggregator]
    losses = np.stack(
        [client_performance(linear_model(), each, data.train).loss for each in models]
    )
    found = jnp.asarray(losses.argmin(0))
    assert adjusted_rand_index(found, data.groups) == 1
    assert losses.min(0).max() < 0.7 * np.sort(losses, 0)[1].min()  # Optima are separated.


def test_an_update_that_is_not_finite_changes_no_model():
    round = ifca(SGD, 2, faults=faults.Byzantine([2], "nan"), selector=repeated((0, 1, 2)))
    start, last, _, info = with_models(round, 2)
    chex.assert_trees_all_equal(start, last)
    assert not info.finite.any()


def test_byzantine_clients_lie_about_their_update_and_not_about_their_cluster():
    cohort = {"selector": repeated((0, 1, 2))}
    honest = with_models(ifca(SGD, 2, **cohort), 1)
    flipped = with_models(ifca(SGD, 2, faults=faults.Byzantine(1.0, "sign_flip"), **cohort), 1)
    np.testing.assert_array_equal(honest[3].aggregator["cluster"], flipped[3].aggregator["cluster"])
    mirrored = jax.tree.map(lambda new, old: 2 * old - new, honest[1], honest[0])
    chex.assert_trees_all_close(flipped[1], mirrored, atol=1e-6)


def test_secure_sums_of_each_cluster_are_the_plain_ones():
    plain = with_models(ifca(SGD, 2, faults=Lost()), 2)
    secure = with_models(ifca(SGD, 2, aggregation="secure", faults=Lost()), 2)
    np.testing.assert_array_equal(secure[3].aggregator["cluster"], plain[3].aggregator["cluster"])
    chex.assert_trees_all_close(secure[1], plain[1], atol=1e-5)


def test_the_loss_of_a_client_is_that_of_evaluations():
    model, variables = linear_model(), trained(round_of(SGD), 1)[0]
    found = [client_loss(model, variables, DATA.train, jnp.int32(i)) for i in range(NUM_CLIENTS)]
    evaluated = client_performance(model, variables, DATA.train).loss
    np.testing.assert_allclose(found, evaluated, rtol=1e-6)
    expected = [loss(tree_map(np.float64, variables.params), i) for i in range(NUM_CLIENTS)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_model_whose_loss_is_nan_is_not_chosen():
    round = ifca(SGD, 2, selector=repeated((0, 1, 2)))
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), trained(round, 1)[0])
    state = trained_from(round, [broken], 1)
    fedavg = trained(round_of(SGD, selector=repeated((0, 1, 2))), 1)[1]
    chex.assert_trees_all_close(state.variables, fedavg.variables, atol=1e-6)


def test_clients_receive_all_models_and_send_one_and_its_index():
    traffic = trained(ifca(SGD, 3), 1)[2].traffic
    model = 4 * 15
    assert (traffic.down, traffic.up) == (3 * model, model + 4)


def test_only_the_personalized_models_are_evaluated():
    results = ff.fit(ifca(SGD, 2), FEDERATION, rounds=2, seeds=(0, 1), eval_every=1).dataset
    assert np.isnan(results.test_loss).all()
    assert np.isfinite(results.personalized_train_loss).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: solvers.IFCA(aggregators.Mean()), "solver"),
        (
            lambda: aggregators.WithServerOptimizer(
                aggregators.IFCAMean(), server_optimizers.FedAdam()
            ),
            "inner=",
        ),
        (
            lambda: jax.eval_shape(round_of(solvers.IFCA(SGD)).init, KEY, DATA),
            "does not broadcast 'models', which IFCA needs",
        ),
    ],
)
@pytest.mark.usefixtures("as_users_call")
def test_bad_roles_are_one_line(make, said):
    with pytest.raises(ValueError, match=said) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_the_aggregator_needs_the_choices():
    round = round_of(SGD, aggregators.IFCAMean())
    with pytest.raises(ValueError, match="cluster"):
        trained(round, 1)
