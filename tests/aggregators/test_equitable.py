"""Equitable weights against NumPy and scikit-learn, their limits, and what may go wrong."""

from functools import cache

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import WIDTH, linear_model, make_federation, own
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from fedjax_fair.aggregators import Equitable, Mean
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.roles import Cohort, LocalResult
from fedjax_fair.rounds.round_context import make_context

GROUPS = np.array([0, 0, 1, 1, 1, 2])


@cache
def grouped(groups=tuple(GROUPS), spread=0.05, each=6) -> FederatedData:
    """Returns clients with examples around the point of their group."""
    groups, rng = np.array(groups), np.random.default_rng(0)
    centers = 3 * rng.normal(size=(groups.max() + 1, WIDTH))
    owners = np.repeat(np.arange(groups.size), each)
    features = centers[groups[owners]] + spread * rng.normal(size=(owners.size, WIDTH))
    examples = own(
        features.astype(np.float32),
        rng.integers(0, 3, owners.size).astype(np.int32),
        owners,
        groups.size,
    )
    return FederatedData(examples, examples, groups.astype(np.int32), 3, "grouped")


_contexts: dict = {}


def context_of(data):
    """Returns the context of a dataset, always the same one, which shares compiled functions."""
    if id(data) not in _contexts:
        model = linear_model()
        start = model.init(jax.random.key(0), data.train.features[:1])
        context = make_context(model, jnp.int32(0), start, jax.tree.map(jnp.asarray, data))
        _contexts[id(data)] = context, data
    return _contexts[id(data)][0]


def trained(data, clients, scale=0.1, **changes):
    """Returns cohort, random results and context of a round."""
    context = context_of(data)
    start = context.variables
    clients = jnp.asarray(clients, jnp.int32)
    count = clients.shape[0]
    leaves, tree = jax.tree.flatten(start)
    updates = [
        scale * jax.random.normal(jax.random.key(i), (count, *leaf.shape))
        for i, leaf in enumerate(leaves)
    ]
    results = LocalResult(
        jax.tree.unflatten(tree, updates), jnp.zeros(count), jnp.ones(count, jnp.int32), **changes
    )
    return Cohort(clients, jnp.full(count, 1 / count)), results, context


def aggregate(aggregator, cohort, results, context):
    return conftest.aggregate(aggregator, aggregator.init(context), cohort, results, context)


def log_softmax(values):
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def indices_of(data, client):
    return data.train.order[data.train.offsets[client] :][: data.train.sizes[client]]


@pytest.mark.parametrize("model", ["trained", "received"])
@pytest.mark.parametrize("layer", ["penultimate", "logits"])
@pytest.mark.parametrize("examples", ["all", "last_batch"])
def test_activation_vectors_are_means_of_log_softmax(model, layer, examples):
    data, clients = make_federation(), [4, 1, 4]
    batches = np.array([[7, 3, -1], [2, -1, -1], [5, 6, 8]], np.int32)
    cohort, results, context = trained(data, clients, reports={"last_batch": jnp.asarray(batches)})
    aggregator = Equitable(model=model, layer=layer, examples=examples)
    vectors = aggregator.activation_vectors(cohort, results, context)
    for slot, client in enumerate(clients):
        rows = indices_of(data, client) if examples == "all" else batches[slot][batches[slot] >= 0]
        values = np.float64(data.train.features[rows])
        if layer == "logits":
            kernel, bias = (
                np.float64(context.variables.params[name])
                + (model == "trained") * np.float64(results.update.params[name][slot])
                for name in ("kernel", "bias")
            )
            values = values @ kernel + bias
        np.testing.assert_allclose(
            vectors[slot], log_softmax(values).mean(axis=0), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("settings", [{}, {"center": True}, {"cosine": True}], ids=str)
@pytest.mark.parametrize("clients", [range(6), [5, 0, 3, 2, 0, 0], [1, 1, 2, 4, 5, 2]], ids=str)
def test_a_round_equals_one_in_numpy_and_scikit_learn(settings, clients):
    data, clients = grouped(), np.array(clients)
    count = len(set(GROUPS[clients]))
    cohort, results, context = trained(data, clients)
    update, _, info = aggregate(Equitable(count, **settings), cohort, results, context)

    vectors = np.stack(
        [log_softmax(np.float64(data.train.features[indices_of(data, c)])).mean(0) for c in clients]
    )
    if "center" in settings:
        vectors = vectors - vectors.mean(axis=0)
    if "cosine" in settings:
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    _, basis = np.linalg.eigh(vectors @ vectors.T)
    width = count - ("center" in settings)  # The mean is one direction less.
    labels = KMeans(count, n_init=10, random_state=0).fit(basis[:, -width:]).labels_
    weights = np.array([1 / (count * (labels == label).sum()) for label in labels])
    np.testing.assert_allclose(info.weights, weights, rtol=1e-5)
    for name, stacked in results.update.params.items():
        np.testing.assert_allclose(
            update.params[name], np.tensordot(weights, stacked, 1), rtol=1e-4, atol=1e-6
        )
    planted = GROUPS[clients]
    np.testing.assert_allclose(
        info.info["nmi"], normalized_mutual_info_score(planted, labels), atol=1e-6
    )
    np.testing.assert_allclose(info.info["ari"], adjusted_rand_score(planted, labels), atol=1e-6)
    assert info.info["num_clusters"] == count


def test_permuting_the_cohort_permutes_the_weights():
    data, order = grouped(), np.array([3, 0, 5, 1, 4, 2])
    _, _, info = aggregate(Equitable(3), *trained(data, range(6)))
    _, _, permuted = aggregate(Equitable(3), *trained(data, order))
    np.testing.assert_allclose(permuted.weights, info.weights[order], rtol=1e-5)


def test_one_cluster_is_the_uniform_mean():
    round = trained(grouped(), [0, 2, 5, 2])
    update, _, info = aggregate(Equitable(1), *round)
    expected, _, uniform = aggregate(Mean("uniform"), *round)
    np.testing.assert_allclose(info.weights, uniform.weights, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), update, expected)


def test_oracle_groups_have_equal_weights():
    _, _, info = aggregate(Equitable(2, groups="oracle"), *trained(grouped(), [0, 1, 2, 3, 4]))
    np.testing.assert_allclose(info.weights, [1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6], rtol=1e-6)
    assert info.info["cluster"].tolist() == [0, 0, 2, 2, 2]
    assert info.info["nmi"] == 1


@pytest.mark.parametrize("groups", [[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2]], ids=str)
def test_the_eigengap_finds_the_number_of_groups(groups):
    _, _, info = aggregate(Equitable("eigengap"), *trained(grouped(tuple(groups)), range(6)))
    assert info.info["num_clusters"] == len(set(groups))
    assert info.info["nmi"] == 1


def test_fewer_participants_than_clusters_are_separate_clusters():
    _, _, info = aggregate(Equitable(5), *trained(grouped(), [0, 2, 5]))
    np.testing.assert_allclose(info.weights, np.full(3, 1 / 3), rtol=1e-6)
    assert info.info["num_clusters"] == 3


def test_identical_vectors_are_one_cluster():
    # The same client every time, whose activations do not depend on its own update.
    _, _, info = aggregate(Equitable(3), *trained(grouped(), [2] * 6))
    np.testing.assert_allclose(info.weights, np.full(6, 1 / 6), rtol=1e-6)
    assert info.info["num_clusters"] == 1


def diverged(results, slot):
    return results._replace(
        update=jax.tree.map(lambda leaf: leaf.at[slot].set(jnp.nan), results.update)
    )


def test_a_diverged_participant_is_left_out():
    aggregator = Equitable(2, layer="logits")
    cohort, results, context = trained(grouped(), [0, 3, 1, 2], scale=0.01)
    update, _, info = aggregate(aggregator, cohort, diverged(results, 1), context)
    assert info.weights[1] == 0
    assert info.info["cluster"].tolist()[1] == -1
    kept = np.array([0, 2, 3])
    others = jax.tree.map(lambda leaf: leaf[kept], (cohort, results))
    expected, _, alone = aggregate(aggregator, *others, context)
    np.testing.assert_allclose(info.weights[kept], alone.weights, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), update, expected
    )


def test_if_all_participants_diverged_the_round_is_not_finite():
    cohort, results, context = trained(grouped(), [0, 3, 1])
    update, _, info = aggregate(
        Equitable(2, layer="logits"), cohort, diverged(results, slice(None)), context
    )
    np.testing.assert_allclose(info.weights, np.full(3, 1 / 3), rtol=1e-6)
    assert not np.isfinite(update.params["kernel"]).any()


def test_missing_groups_and_reports_are_named():
    cohort, results, context = trained(make_federation(), [0, 1])
    with pytest.raises(ValueError, match="groups='oracle'"):
        Equitable(2, groups="oracle").init(context)
    with pytest.raises(ValueError, match="examples="):
        aggregate(Equitable(2, examples="last_batch"), cohort, results, context)


def test_a_cohort_of_one_client_is_one_cluster():
    cluster = jax.jit(Equitable("eigengap")._cluster)
    labels = cluster(jax.random.key(0), np.ones((1, 1), np.float32), np.ones(1, bool))
    assert labels.tolist() == [0]
