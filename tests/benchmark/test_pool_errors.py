"""Standard errors by the test pool that all blocks share."""

import numpy as np
import pytest
import xarray as xr

import fedjax_fair as ff
from fedjax_fair.benchmark import measures
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.pool_errors import answers, baseline_answers, pool_errors
from fedjax_fair.solvers import SGD, Ditto

PLACES = ("seed", "client", "test_example")


@pytest.mark.integration
@pytest.mark.parametrize("name", ["digits", "synthetic"])
@pytest.mark.parametrize("is_personalized", [False, True])
def test_answers_of_each_client_have_its_accuracy(name, is_personalized):
    """Each run has settings and a partition of its own."""
    seeds = (1000, 1001)
    data = FEDERATIONS[name].load(None, seeds).seen
    methods = []
    for rate in (0.01, 0.1):
        solver = SGD(rate, 10, steps=5)
        solver = Ditto(solver, personal_prox=rate) if is_personalized else solver
        methods.append(
            ff.Round(
                ff.models.mlp(data.num_classes, hidden=(8,)),
                ff.selectors.Uniform(5),
                solver,
                ff.aggregators.Mean(),
            )
        )
    fitted = ff.fit(methods, data, rounds=4, seeds=seeds, eval_every=4)
    found = xr.Dataset(answers(fitted, data))
    of_model = "personalized_" if is_personalized else ""
    expected = fitted.dataset[f"{of_model}test_accuracy"].isel(round=-1)
    assert not np.allclose(expected[0], expected[1])
    correct = found["test_correct"]
    means = correct.where(correct >= 0).mean("test_example")
    np.testing.assert_allclose(means, expected.transpose("seed", "client"), atol=1e-6)
    for run in range(2):
        test = data.partition(run).test
        index = found["test_index"].values[run]
        np.testing.assert_array_equal((index >= 0).sum(axis=1), test.sizes)
        np.testing.assert_array_equal(
            np.asarray(test.labels)[index[index >= 0]],
            found["test_label"].values[run][index >= 0],
        )


def final(method, correct, index, label):
    arrays = {"correct": correct, "index": index, "label": label}
    dataset = xr.Dataset({f"test_{name}": (PLACES, array) for name, array in arrays.items()})
    return measures.Final("digits", method, "mean", [], np.zeros(0), "global", dataset, None)


def errors_of(found):
    return pool_errors(found, baseline_answers(found))


def random_answers(seed, blocks, clients, size, num_examples, natural):
    rng = np.random.default_rng(seed)
    if natural:
        index = np.broadcast_to(
            np.arange(clients * size).reshape(1, clients, size), (blocks, clients, size)
        )
    else:
        draws = [rng.permutation(num_examples)[:size] for _ in range(blocks * clients)]
        index = np.reshape(draws, (blocks, clients, size))
    of_example = rng.integers(0, 3, index.max() + 1)
    methods = [rng.random((blocks, *index.shape[1:])) < p for p in (0.7, 0.8)]
    return index, of_example[index], [one.astype(np.int8) for one in methods]


def test_errors_of_accuracy_are_those_of_the_variance_within_clients():
    index, label, methods = random_answers(0, 4, 5, 40, None, natural=True)
    found = errors_of(
        [final(*pair, index, label) for pair in zip(("fedavg", "ditto"), methods, strict=True)]
    )
    row = found.query("measure == 'accuracy'").iloc[0]
    assert (row["federation"], row["method"], row["criterion"]) == ("digits", "ditto", "mean")
    gaps = methods[1].astype(float).mean(axis=0) - methods[0].mean(axis=0)
    expected = np.sqrt(np.sum(np.var(gaps, axis=1) / 40)) / 5
    # The standard deviation of 500 resamples has a relative error of 3%.
    assert row["se"] == pytest.approx(expected, rel=0.12)


def test_examples_that_clients_share_are_drawn_together():
    """One client has all examples, in each block in another order: the variance within labels."""
    index, label, methods = random_answers(1, 3, 1, 60, 60, natural=False)
    found = errors_of(
        [final(*pair, index, label) for pair in zip(("fedavg", "ditto"), methods, strict=True)]
    )
    gaps, of_example = np.zeros(60), np.zeros(60, int)
    for block in range(3):
        gaps[index[block, 0]] += (methods[1] - methods[0].astype(float))[block, 0] / 3
        of_example[index[block, 0]] = label[block, 0]
    within = sum(
        np.sum(of_example == one) * np.var(gaps[of_example == one]) for one in np.unique(label)
    )
    row = found.query("measure == 'accuracy'").iloc[0]
    assert row["se"] == pytest.approx(np.sqrt(within) / 60, rel=0.12)


def test_equal_methods_have_no_error_and_padding_counts_for_nothing():
    index, label, (correct, _) = random_answers(2, 3, 4, 20, 50, natural=False)
    padding = ((0, 0), (0, 0), (0, 3))
    padded = [np.pad(each, padding, constant_values=-1) for each in (correct, index, label)]
    found = errors_of([final("fedavg", correct, index, label), final("ditto", *padded)])
    assert found["se"].tolist() == [0, 0]


def test_methods_without_fedavg_have_no_rows():
    index, label, (correct, _) = random_answers(3, 2, 2, 5, 9, natural=False)
    found = errors_of([final("ditto", correct, index, label)])
    assert not len(found)
    assert found["se"].dtype == float
