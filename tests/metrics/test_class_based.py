"""Accuracies by the mix of labels: their mean, their noise, and where they are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from conftest import linear_model, make_federation

import fedjax_fair as ff
from fedjax_fair.evaluation.clients import evaluate
from fedjax_fair.metrics import class_based, fairness

TRUTH = np.array([0.95, 0.8, 0.6, 0.9])
EXAMPLES = np.random.default_rng(0).multinomial(12, [0.1, 0.2, 0.3, 0.4], size=9)
EXAMPLES[3] = 0
compute = jax.jit(class_based.class_based_accuracy)


def drawn(rng, examples):
    """Accuracies of classes and of clients on test examples that the truth decides."""
    correct = rng.binomial(examples, TRUTH)
    totals = examples.sum(axis=1)
    measured_accuracy = np.divide(
        correct.sum(1), totals, out=np.full(len(totals), np.nan), where=totals > 0
    )
    return (correct.sum(axis=0) / examples.sum(axis=0)).astype(np.float32), measured_accuracy


def test_class_based_accuracy_is_the_mean_over_labels():
    computed = compute(np.float32(TRUTH), EXAMPLES)
    tested = np.arange(9) != 3
    expected = (EXAMPLES[tested] * TRUTH).sum(axis=1) / EXAMPLES[tested].sum(axis=1)
    np.testing.assert_allclose(computed[tested], expected, rtol=1e-6)
    assert np.isnan(computed[3])


def test_a_class_without_examples_does_not_spread():
    computed = compute(np.float32([0.5, np.nan]), np.array([[2, 0], [5, 0]]))
    np.testing.assert_array_equal(computed, [0.5, 0.5])


def test_class_based_accuracy_converges_to_the_measured_one():
    class_accuracy, measured_accuracy = drawn(np.random.default_rng(1), 100_000 * EXAMPLES)
    computed = compute(class_accuracy, 100_000 * EXAMPLES)
    np.testing.assert_allclose(computed, measured_accuracy, atol=1e-3)


def test_standard_errors_are_nan_only_where_they_are_undefined():
    """For a client without examples, and for a standard deviation of 0, unlike its mean."""
    examples = xr.DataArray([[3, 4], [5, 2], [0, 0]], dims=("client", "class"))
    accuracy = xr.DataArray([[0.5, 0.5], [0.5, 0.75], [0.0, 0.0]], dims=("run", "class"))
    measured = class_based.summarize(accuracy, examples)
    values, errors = measured.pop("test_accuracy_class_based")
    np.testing.assert_array_equal(np.isnan(errors), np.isnan(values))
    undefined = {
        (name, run)
        for name, (_, errors) in measured.items()
        for run in np.flatnonzero(np.isnan(errors.values))
    }
    assert undefined == {
        (f"{name}_class_based", run)
        for name in ("accuracy_standard_deviation", "sigma_acc")
        for run in (0, 2)
    }


def test_runs_without_an_evaluation_have_no_values():
    """NaN pads methods with fewer rounds or other seeds; a class may have no examples."""
    examples = xr.DataArray([[3, 0], [5, 0], [0, 0]], dims=("client", "class"))
    accuracy = xr.DataArray([[0.5, np.nan], [np.nan, np.nan]], dims=("run", "class"))
    for values, errors in class_based.summarize(accuracy, examples).values():
        assert values.isel(run=0).notnull().any()
        assert values.isel(run=1).isnull().all()
        assert errors.isel(run=1).isnull().all()


@pytest.mark.parametrize("summary", [lambda values: values[0], fairness.client_dissimilarity])
def test_the_standard_error_is_what_repeated_test_sets_show(summary):
    examples = jnp.asarray(40 * EXAMPLES)
    rng = np.random.default_rng(2)
    measured = np.array([drawn(rng, 40 * EXAMPLES)[0] for _ in range(4000)])

    @jax.jit
    @jax.vmap
    def values_and_errors(measured):
        values = summary(class_based.class_based_accuracy(measured, examples))
        return values, class_based.standard_error(summary, measured, examples)

    values, errors = map(np.asarray, values_and_errors(measured))
    # A standard deviation of 4,000 numbers is known to 1.1 %; the rest is the first order.
    np.testing.assert_allclose(errors.mean(), values.std(), rtol=0.05)


def test_class_based_accuracy_is_unbiased_with_less_noise():
    rng = np.random.default_rng(3)
    runs = [drawn(rng, EXAMPLES) for _ in range(3000)]
    class_based_accuracies = jax.vmap(compute, (0, None))(
        np.array([classes for classes, _ in runs]), EXAMPLES
    )
    measured_accuracy = np.array([values for _, values in runs])
    tested = np.arange(9) != 3
    error = measured_accuracy.std(axis=0)[tested] / np.sqrt(len(runs))
    assert (
        np.abs(np.asarray(class_based_accuracies).mean(axis=0) - measured_accuracy.mean(axis=0))[
            tested
        ]
        < 5 * error
    ).all()
    assert (
        np.asarray(class_based_accuracies).std(axis=0)[tested]
        < 0.6 * measured_accuracy.std(axis=0)[tested]
    ).all()


def test_classes_are_measured_on_all_owned_test_examples():
    federation, model = make_federation(), linear_model()
    test = federation.test
    kept = test._replace(order=test.order[:-4], sizes=test.sizes - np.array([0] * 5 + [4], "int32"))
    data = federation._replace(test=kept)
    variables = model.init(jax.random.key(1), data.train.features[:1])
    idle = jnp.zeros(6, jnp.int32)
    computed = jax.jit(lambda: evaluate(model, variables, data, idle, idle[:2]))()
    logits = test.features @ np.asarray(variables.params["kernel"])
    correct = (logits.argmax(axis=1) == test.labels)[kept.order]
    labels = test.labels[kept.order]
    expected = [correct[labels == label].mean() for label in range(3)]
    np.testing.assert_allclose(computed.class_accuracy, expected, rtol=1e-6)


def a_run(data):
    method = ff.Round(
        ff.models.logistic(data.num_classes),
        ff.selectors.Uniform(3),
        ff.solvers.SGD(0.1, 10, steps=3),
        ff.aggregators.Mean(),
    )
    return ff.fit(method, data, rounds=2, seeds=(0, 1), eval_every=1)


@pytest.mark.parametrize("seed", [0, (0, 1)], ids=["one partition", "a partition a run"])
def test_results_have_class_based_metrics_of_every_evaluation(seed):
    results = a_run(ff.data.load("digits", ff.data.classes_per_client(10, 3), seed=seed))
    class_based_accuracies = ff.results.class_based(results)
    assert class_based_accuracies.test_accuracy_class_based.dims == ("seed", "round", "client")
    for run in range(2):
        examples = results.test_examples.values[run] if seed else results.test_examples.values
        shares = examples / examples.sum(axis=1, keepdims=True)
        expected = shares @ results.class_accuracy.values[run, 2]
        np.testing.assert_allclose(
            class_based_accuracies.test_accuracy_class_based[run, 2], expected, rtol=1e-5
        )
        for name, summary in (
            ("client_dissimilarity", fairness.client_dissimilarity),
            ("accuracy_standard_deviation", np.std),
            ("accuracy_mean_clients", np.mean),
        ):
            np.testing.assert_allclose(
                class_based_accuracies[f"{name}_class_based"][run, 2],
                summary(jnp.asarray(expected, "float32")),
                rtol=1e-5,
            )
            assert 0 < class_based_accuracies[f"{name}_class_based_se"][run, 2] < 0.1
    # The pooled accuracy is the same however its examples are divided.
    sizes = results.test_examples.sum("class")
    np.testing.assert_allclose(
        class_based_accuracies.test_accuracy_class_based.weighted(sizes).mean("client"),
        results.accuracy_mean_examples,
        rtol=1e-5,
    )


def test_class_based_needs_label_skew_only():
    digits = ff.data.load("digits", ff.data.iid(10))
    owners = np.repeat(np.arange(10), digits.train.sizes)
    natural = ff.data.from_arrays(
        digits.train.features,
        digits.train.labels,
        [digits.train.order[owners == client] for client in range(10)],
    )
    with pytest.raises(ValueError, match="differ in their labels alone"):
        ff.results.class_based(a_run(natural))


def test_partitions_by_label_say_so_and_others_do_not():
    labels = np.repeat(np.arange(4), 60)
    by_label = [
        ff.data.iid(4), ff.data.quantity_skew(4), ff.data.classes_per_client(4, 2),
        ff.data.dirichlet(4, 1.0), ff.data.shards(4, 2), ff.data.planted_clusters("mnist"),
    ]  # fmt: skip
    assert all(partitioner.label_skew_only for partitioner in by_label)
    assert not ff.data.by_column("writer").label_skew_only
    assert not ff.data.from_indices([range(3), range(3, len(labels))]).label_skew_only
