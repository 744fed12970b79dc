"""Evaluation on unseen clients, against NumPy and against `solvers.FineTuned`."""

import gc

import jax
import numpy as np
import pytest
from compilations import compilations
from conftest import NUM_CLASSES, make_federation

from fedjax_fair import aggregators, models, selectors, solvers
from fedjax_fair.analysis.unseen import evaluate_unseen, has_global_model, undefined_unseen
from fedjax_fair.data.federated import stack
from fedjax_fair.rounds.round import Round
from fedjax_fair.training import Centralized, fit

SEEDS = (3, 0)
RATES = (0.3, 0.05)
STEPS = 4
NAMES = ("unseen_accuracy", "unseen_loss", "adapted_accuracy", "adapted_loss")
MODEL = models.logistic(NUM_CLASSES)


def permuted(part, clients):
    """The part whose client ``i`` is ``clients[i]`` of the given one."""
    owned = [part.order[part.offsets[c] : part.offsets[c] + part.sizes[c]] for c in clients]
    sizes = part.sizes[clients]
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    return part._replace(order=np.concatenate(owned), sizes=sizes, offsets=offsets)


def without_examples(part, client):
    """The part without the examples of one client."""
    start = part.offsets[client]
    order = np.delete(part.order, np.arange(start, start + part.sizes[client]))
    sizes = part.sizes.copy()
    sizes[client] = 0
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    return part._replace(order=order, sizes=sizes, offsets=offsets)


@pytest.fixture(scope="module")
def unseen():
    """Two partitions; client 2 of the first one has no test examples."""
    first = make_federation()
    second = first._replace(
        train=first.train._replace(order=np.roll(first.train.order, 5)),
        test=first.test._replace(order=np.roll(first.test.order, 9)),
    )
    return stack([first._replace(test=without_examples(first.test, 2)), second])


@pytest.fixture(scope="module")
def variables():
    """Models far from each other and from zero."""
    start = jax.eval_shape(MODEL.init, jax.random.key(0), make_federation().train.features[:1])
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.normal(size=(len(SEEDS), *leaf.shape)).astype(np.float32), start
    )


def evaluate(variables, unseen, **settings):
    defaults = {"rates": RATES, "seeds": SEEDS, "batch_size": 2, "steps": STEPS}
    settings = defaults | settings
    return evaluate_unseen(MODEL, variables, settings.pop("rates"), unseen, **settings)


def reference(params, rate, train, test, steps):
    """Accuracy and loss of each client after full-batch steps, in float64."""
    (kernel,), (bias,) = (
        [np.asarray(leaf, float) for leaf in jax.tree.leaves(params) if leaf.ndim == ndim]
        for ndim in (2, 1)
    )
    results = []
    for client in range(len(train.sizes)):
        start, size = train.offsets[client], train.sizes[client]
        mine = train.order[start : start + size]
        x, one_hot = train.features[mine].astype(float), np.eye(NUM_CLASSES)[train.labels[mine]]
        w, b = kernel.copy(), bias.copy()
        for _ in range(steps):
            z = np.exp(x @ w + b)
            error = (z / z.sum(axis=1, keepdims=True) - one_hot) / size
            w, b = w - rate * x.T @ error, b - rate * error.sum(axis=0)
        mine = test.order[test.offsets[client] : test.offsets[client] + test.sizes[client]]
        if not len(mine):
            results.append((np.nan, np.nan))
            continue
        logits, labels = test.features[mine] @ w + b, test.labels[mine]
        loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(mine)), labels]
        results.append(((logits.argmax(axis=1) == labels).mean(), loss.mean()))
    return np.array(results).T


def test_metrics_equal_a_loop_in_numpy(variables, unseen):
    """With full batches no random number matters."""
    found = evaluate(variables, unseen, batch_size=20)
    for run, rate in enumerate(RATES):
        params = jax.tree.map(lambda leaf, run=run: leaf[run], variables.params)
        part = unseen.partition(run)
        for prefix, steps in (("unseen", 0), ("adapted", STEPS)):
            accuracy, loss = reference(params, rate, part.train, part.test, steps)
            np.testing.assert_allclose(found[f"{prefix}_accuracy"][run], accuracy, rtol=1e-6)
            np.testing.assert_allclose(found[f"{prefix}_loss"][run], loss, rtol=1e-4)
    assert found.unseen_accuracy.dims == ("seed", "client")
    assert found.seed.values.tolist() == list(SEEDS)


def test_clients_without_test_examples_have_nan(variables, unseen):
    found = evaluate(variables, unseen)
    for name in NAMES:
        assert np.argwhere(np.isnan(found[name].values)).tolist() == [[0, 2]]


def test_local_steps_are_those_of_fine_tuned():
    """Also their minibatches, at the initial model of a run."""
    data = make_federation()
    solver = solvers.FineTuned(solvers.SGD(RATES[0], 2, epochs=1), fine_tuning_steps=STEPS)
    method = Round(MODEL, selectors.Uniform(3), solver, aggregators.Mean())
    dataset = fit(method, data, rounds=1, seeds=SEEDS).dataset
    starts = [method.init(jax.random.key(seed), data).variables for seed in SEEDS]
    variables = jax.tree.map(lambda *leaves: np.stack(leaves), *starts)
    found = evaluate(variables, data, rates=(RATES[0],) * 2)
    for prefix, name in (("unseen", "test"), ("adapted", "personalized_test")):
        for metric in ("accuracy", "loss"):
            expected = dataset[f"{name}_{metric}"].isel(round=0)
            np.testing.assert_allclose(found[f"{prefix}_{metric}"], expected, rtol=1e-6)


def test_no_local_steps_change_nothing(variables, unseen):
    found = evaluate(variables, unseen, steps=0)
    np.testing.assert_array_equal(found.adapted_accuracy, found.unseen_accuracy)
    np.testing.assert_array_equal(found.adapted_loss, found.unseen_loss)
    stepped = evaluate(variables, unseen)
    np.testing.assert_array_equal(found.unseen_loss, stepped.unseen_loss)
    still = evaluate(variables, unseen, rates=(0, 0))
    np.testing.assert_allclose(still.adapted_loss, found.adapted_loss, rtol=1e-6)


def test_results_are_deterministic_and_depend_on_seeds(variables, unseen):
    first = evaluate(variables, unseen)
    assert first.identical(evaluate(variables, unseen))
    other = evaluate(variables, unseen, seeds=(4, SEEDS[1]))
    np.testing.assert_array_equal(other.unseen_loss, first.unseen_loss)
    np.testing.assert_array_equal(other.adapted_loss[1], first.adapted_loss[1])
    assert (other.adapted_loss[0] != first.adapted_loss[0]).any()


@pytest.mark.parametrize("per_run", [False, True])
def test_permuted_clients_permute_results(variables, unseen, per_run):
    """Minibatches follow the ids of clients, not their places."""
    num_clients = unseen.num_clients
    ids = np.arange(num_clients) + 10
    order = np.array([4, 0, 5, 2, 1, 3])
    moved = stack(
        [
            unseen.partition(run).map_parts(lambda part: permuted(part.without_padding(), order))
            for run in (0, 1)
        ]
    )
    moved_ids = np.tile(ids[order], (2, 1)) if per_run else ids[order]
    found = evaluate(variables, unseen, client_ids=ids)
    after = evaluate(variables, moved, client_ids=moved_ids)
    for name in NAMES:
        np.testing.assert_allclose(after[name], found[name][:, order], rtol=1e-6)
    by_place = evaluate(variables, moved, client_ids=ids)
    assert not np.allclose(by_place.adapted_loss, found.adapted_loss[:, order], equal_nan=True)


def test_other_models_rates_and_seeds_compile_nothing(variables, unseen):
    def first():
        return evaluate(variables, unseen)

    def second():
        trained = jax.tree.map(lambda leaf: 2 * leaf, variables)
        return evaluate_unseen(
            models.logistic(NUM_CLASSES), trained, [0.2, 0.2], unseen,
            seeds=(7, 7), batch_size=2, steps=STEPS,
        )  # fmt: skip

    first()
    gc.collect()
    with compilations() as compiled:
        second()
    assert not compiled
    with compilations() as compiled:
        evaluate(variables, unseen, steps=STEPS + 1)
    assert compiled


def test_names_of_clients_are_a_coordinate(variables):
    data = make_federation()
    names = tuple("abcdef")
    found = evaluate(variables, data._replace(client_names=names))
    assert found.client.values.tolist() == list(names)
    plain = evaluate(variables, data)
    np.testing.assert_array_equal(found.adapted_loss, plain.adapted_loss)


def test_methods_without_a_global_model():
    sgd = solvers.SGD(0.1, 2, epochs=1)

    def method(solver, aggregator=None):
        return Round(MODEL, selectors.Uniform(3), solver, aggregator or aggregators.Mean())

    usual = (sgd, solvers.Ditto(sgd), solvers.FedBABU(sgd, ("bias",)), solvers.FineTuned(sgd))
    assert all(has_global_model(method(solver)) for solver in usual)
    others = (solvers.Local(sgd), solvers.FedPer(sgd, ("bias",)), solvers.FedRep(sgd, ("bias",)))
    assert not any(has_global_model(method(solver)) for solver in others)
    assert not has_global_model(method(solvers.IFCA(sgd), aggregators.IFCAMean()))
    assert has_global_model(Centralized(MODEL, sgd))
    undefined = undefined_unseen(make_federation(), SEEDS)
    assert set(undefined) == set(NAMES)
    assert all(np.isnan(undefined[name]).all() for name in NAMES)
    assert undefined.unseen_loss.shape == (2, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rates": (0.1,)}, "rates="),
        ({"rates": (0.1, -1.0)}, "rates="),
        ({"seeds": (0, 1, 2), "rates": (0.1,) * 3}, "shape .2, 3.: expected a first axis of 3"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"steps": -1}, "steps=-1"),
        ({"client_ids": np.arange(5)}, "client_ids"),
        ({"client_ids": np.arange(6) - 1}, "client_ids"),
    ],
)
def test_bad_arguments(variables, as_users_call, settings, message):
    with pytest.raises(ValueError, match=message):
        evaluate(variables, make_federation(), **settings)


def test_partitions_and_networks_have_to_fit(variables, unseen, as_users_call):
    ones = jax.tree.map(lambda leaf: leaf[:1], variables)
    with pytest.raises(ValueError, match="partitions"):
        evaluate(ones, unseen, seeds=(0,), rates=(0.1,))
    with pytest.raises(ValueError, match="outputs"):
        evaluate(variables, make_federation()._replace(num_classes=4))


def test_a_batch_returns_the_models_of_all_runs():
    """Those of each method, also personalized ones."""
    data = make_federation()

    def method(rate, solver=lambda sgd: sgd):
        sgd = solver(solvers.SGD(rate, 2, epochs=1))
        return Round(MODEL, selectors.Uniform(3), sgd, aggregators.Mean())

    batch = fit([method(rate) for rate in RATES], data, rounds=2, seeds=SEEDS)
    for run, (rate, seed) in enumerate(zip(RATES, SEEDS, strict=True)):
        alone = fit([method(rate)], data, rounds=2, seeds=(seed,))
        for mine, expected in zip(
            jax.tree.leaves(batch.variables), jax.tree.leaves(alone.variables), strict=True
        ):
            assert isinstance(mine, np.ndarray)
            np.testing.assert_allclose(mine[run], expected[0], rtol=1e-5, atol=1e-7)
    assert batch.rounds.tolist() == [2, 2]
    local = [method(rate, solvers.Local) for rate in RATES]
    personalized = fit(local, data, rounds=1, seeds=SEEDS).personalized
    assert personalized is not None
    for run, seed in enumerate(SEEDS):
        alone = fit(local[run], data, rounds=1, seeds=(seed,)).personalized
        assert alone is not None
        models = personalized(run, 1), alone(0, 1)
        for mine, expected in zip(*map(jax.tree.leaves, models), strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-7)
