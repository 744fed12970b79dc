"""Contributions of clients, against separate trainings."""

import numpy as np
import pytest
from compilations import compilations
from test_shapley import by_permutations

import fedjax_fair as ff
from fedjax_fair.training.compiled_runs import CompiledRuns

CLIENTS, ROUNDS, SEEDS = 4, 3, (0, 3)


def arrays():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = (rng.normal(size=(60, 4)) + 2 * np.eye(3, 4)[labels]).astype(np.float32)
    clients = rng.choice(CLIENTS, 60, p=[0.4, 0.3, 0.2, 0.1])
    return features, labels, clients


FEATURES, LABELS, OWNERS = arrays()
METRIC = "test_loss_mean_examples"


def federation(clients=range(CLIENTS), labels=LABELS, owners=OWNERS):
    """Clients with their training examples; all have some of the same test examples."""
    kept = np.isin(owners, clients)
    return ff.data.from_arrays(
        FEATURES[kept],
        labels[kept],
        clients=owners[kept],
        test_features=FEATURES[::2] + 0.1,
        test_labels=LABELS[::2],
        test_clients=np.resize(clients, 30),
        num_classes=3,
    )


def largest_client(data):
    return int(data.train.sizes.max())


def method(data, selector=None, aggregator=None, batch_size=None, **settings):
    # Full batches, so that local training does not depend on the ids of clients.
    return ff.Round(
        ff.models.logistic(3),
        selector or ff.selectors.Full(),
        ff.solvers.SGD(0.5, batch_size or largest_client(data), epochs=2),
        aggregator or ff.aggregators.Mean("num_examples"),
        **settings,
    )


@pytest.fixture(scope="module")
def data():
    return federation()


def find(data, round=None, **settings):
    given = {"rounds": ROUNDS, "seeds": SEEDS, "metric": METRIC} | settings
    return ff.analysis.contributions(round or method(data), data, **given)


@pytest.fixture(scope="module")
def found(data):
    return find(data)


def final(round, data, metric=METRIC, rounds=ROUNDS):
    fitted = ff.fit(round, data, rounds=rounds, seeds=SEEDS, eval_every=rounds, train_loss=False)
    return fitted.dataset[metric].values


def test_values_are_those_of_permutations_and_share_the_gain(found):
    assert found.utilities.shape == (2, 16)
    for seed, utilities in enumerate(found.utilities):
        expected = by_permutations(utilities, CLIENTS)
        np.testing.assert_allclose(found.values[seed], expected, atol=1e-12)
    gain = found.utilities[:, -1] - found.utilities[:, 0]
    np.testing.assert_allclose(found.values.sum(axis=1), gain, atol=1e-6)
    assert (gain > 0.1).all()
    for client in range(CLIENTS):
        others = found.utilities[:, 15 - 2**client]
        np.testing.assert_array_equal(
            found.leave_one_out[:, client], found.utilities[:, -1] - others
        )


def test_a_coalition_trains_as_a_federation_of_its_clients(found):
    members = found.dataset["member"].values
    for coalition in (1, 6, 13):
        alone = federation(np.flatnonzero(members[coalition]))
        np.testing.assert_allclose(
            -found.utilities[:, coalition], final(method(alone), alone)[:, -1], rtol=1e-5
        )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"selector": ff.selectors.Uniform(2), "batch_size": 3},
        {"aggregator": ff.aggregators.QFedAvg(0.5, learning_rate=0.5)},
        {"faults": ff.faults.Dropout(0.5), "batch_size": 3},
    ],
    ids=["full", "uniform", "q_fedavg", "dropout"],
)
def test_all_clients_are_the_method_and_none_is_the_initial_model(data, settings):
    """Bit for bit."""
    round = method(data, **settings)
    expected = final(round, data)
    found = find(data, round)
    np.testing.assert_array_equal(-found.utilities[:, -1], expected[:, -1])
    np.testing.assert_array_equal(-found.utilities[:, 0], expected[:, 0])


ALL_ROLES = {
    "mean": ff.aggregators.Mean(),
    "q_fedavg": ff.aggregators.QFedAvg(1.0, learning_rate=0.5),
    "tilted": ff.aggregators.Tilted(1.0),
    "median": ff.aggregators.Median(),
}


@pytest.mark.parametrize("name", ALL_ROLES)
def test_other_clients_have_no_effect(data, name):
    """Other labels of client 0 change the coalitions with it, and no others."""
    labels = np.where(OWNERS == 0, (LABELS + 1) % 3, LABELS)
    round = method(data, aggregator=ALL_ROLES[name])
    found, changed = find(data, round), find(federation(labels=labels), round)
    is_member = found.dataset["member"].values[:, 0]
    np.testing.assert_array_equal(found.utilities[:, ~is_member], changed.utilities[:, ~is_member])
    assert (found.utilities != changed.utilities)[:, is_member].all()


def test_batches_have_one_compiled_function_and_the_same_utilities(data, found):
    steps = []
    find(data, runs_per_batch=11)
    with compilations() as compiled:
        batches = find(data, runs_per_batch=11, show=steps.append)
    assert not compiled
    assert steps == [f"trainings {i} to {j} of 32" for i, j in ((1, 11), (12, 22), (23, 32))]
    np.testing.assert_allclose(batches.utilities, found.utilities, rtol=1e-5)


def test_an_interrupted_call_continues(data, found, tmp_path, monkeypatch):
    def interrupt(step):
        if step.startswith("trainings 17"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find(data, folder=tmp_path, runs_per_batch=16, show=interrupt)
    trained, step = [], CompiledRuns.step

    def counted(self, state, length):
        trained.append(length)
        return step(self, state, length)

    monkeypatch.setattr(CompiledRuns, "step", counted)
    continued = find(data, folder=tmp_path, runs_per_batch=16)
    assert sum(trained) == ROUNDS
    np.testing.assert_allclose(continued.utilities, found.utilities, rtol=1e-5)
    with pytest.raises(ValueError, match="learning_rate"):
        find(
            data,
            method(data).replace(solver=ff.solvers.SGD(0.1, largest_client(data), epochs=2)),
            folder=tmp_path,
            runs_per_batch=16,
        )


def test_the_default_is_the_accuracy_on_pooled_examples(data):
    found = find(data, metric=None)
    assert found.dataset.attrs["metric"] == "accuracy_mean_examples"
    expected = final(method(data), data, "accuracy_mean_examples")
    np.testing.assert_array_equal(found.utilities[:, -1], expected[:, -1].astype(float))
    low, high = found.interval.low, found.interval.high
    assert (low < found.values.mean(axis=0)).all()
    assert (found.values.mean(axis=0) < high).all()


def test_a_partition_per_seed(data):
    other = federation(owners=(OWNERS + LABELS) % CLIENTS)
    round = method(data, batch_size=5)
    both = find(ff.data.stack([data, other]), round)
    for seed, each in enumerate((data, other)):
        alone = find(each, round, seeds=SEEDS[seed : seed + 1])
        np.testing.assert_allclose(both.utilities[seed], alone.utilities[0], rtol=1e-5)


def test_the_table_has_every_client(data):
    named = ff.data.from_arrays(
        FEATURES, LABELS, clients=np.array(["a", "b", "c", "d"])[OWNERS], num_classes=3
    )
    found = find(named, method(named), metric=None)
    title, heading, *rows, total = repr(found).splitlines()
    assert title.startswith("Contributions to accuracy_mean_examples (%): 16 coalitions, 2 seeds")
    assert heading.split()[:2] == ["client", "examples"]
    sizes = found.dataset["train_examples"].values
    assert [row.split()[:2] for row in rows] == [
        [name, str(size)] for name, size in zip("abcd", sizes, strict=True)
    ]
    shown = [float(row.split()[2]) for row in rows]
    np.testing.assert_allclose(shown, 100 * found.values.mean(axis=0), atol=0.051)
    assert f"{100 * found.utilities[:, -1].mean():.1f}" in total


def test_bad_input(data):
    many = ff.data.from_arrays(np.ones((26, 4)), np.arange(26) % 2, clients=np.arange(26) % 13)
    with pytest.raises(ValueError, match=r"13 clients, which need 16,384 trainings: expected 2 to"):
        find(many, method(data))
    with pytest.raises(ValueError, match="data of 1 clients: expected 2 to 12"):
        find(federation([0]), method(data))
    with pytest.raises(ValueError, match=r"method.selector=DivFL\(cohort_size=2\): expected a"):
        find(data, method(data, ff.selectors.DivFL(2)))
    with pytest.raises(ValueError, match=r"method\.selector=RoundRobin"):
        find(data, method(data, ff.selectors.RoundRobin(2)))
    with pytest.raises(ValueError, match="metric='accuracy': expected one of 'accuracy_mean"):
        find(data, metric="accuracy")
    with pytest.raises(ValueError, match="method is a Centralized: expected a Round"):
        find(data, ff.Centralized(ff.models.logistic(3), ff.solvers.SGD(0.1, 5, steps=1)))
    with pytest.raises(ValueError, match=r"seeds=.*: expected 2, one for each partition"):
        find(ff.data.stack([data, data]), method(data), seeds=(0,))
    with pytest.raises(ValueError, match="runs_per_batch=0: expected an integer >= 1"):
        find(data, runs_per_batch=0)


def test_a_metric_without_a_value_is_named(data):
    round = method(data)
    local = round.replace(solver=ff.solvers.Local(round.solver))  # It has no global model.
    with pytest.raises(ValueError, match=r"is nan for seed 0 and clients \[\]: expected a finite"):
        find(data, local)
