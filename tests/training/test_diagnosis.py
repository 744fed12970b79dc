"""Warnings of constant cohorts, invalid ids and models that do not learn."""

import re
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import NUM_CLASSES, make_federation
from flax import nnx

from fedjax_fair import aggregators, faults, models, selectors, solvers
from fedjax_fair.data.arrays import from_arrays
from fedjax_fair.data.federated import stack
from fedjax_fair.roles import Aggregation, Cohort, Selector
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.training.diagnosis import TrainingMonitor, check_participants, is_constant
from fedjax_fair.training.fit import fit

SOLVER = solvers.SGD(0.1, 2, epochs=1)


@pytest.fixture
def model():
    """An installed model, whose rounds of equal structure are traced once."""
    return models.logistic(NUM_CLASSES)


def selecting(clients_of, weights=None):
    """A selector of ``clients_of(key, context)``."""

    def select(key, state, context):
        clients = clients_of(key, context)
        shares = jnp.full(len(clients), 1 / len(clients), jnp.float32)
        return Cohort(clients, shares if weights is None else weights), state, {}

    return Selector.from_functions(select)


def method(model, selector):
    return Round(model, selector, SOLVER, aggregators.Mean())


def trace(model, selector, data):
    round = method(model, selector)
    state = jax.eval_shape(round.init, jax.random.key(0), data)
    traced = jax.jit(lambda state, data: run(round, state, data, 3)).trace(state, data)
    return is_constant(traced, traced.out_info[1])


def drawn_with_numpy(key, context):
    return jnp.asarray(np.random.default_rng(0).choice(6, 2, replace=False))


CONSTANT = {
    "numpy": selecting(drawn_with_numpy),
    "python": selecting(lambda key, context: jnp.array([0, 1])),
    "disguised": selecting(lambda key, context: jnp.sort(jnp.arange(4)[::-1])[:2]),
    "full": selectors.Full(),
}
VARIED = {
    "by key": selecting(lambda key, context: jax.random.randint(key, (2,), 0, 6)),
    "by round": selecting(lambda key, context: (context.round + jnp.arange(2)) % 6),
    "by loss": selecting(lambda key, context: jnp.argsort(context.losses(context.variables))[:2]),
    "by size": selecting(lambda key, context: jnp.argsort(context.sizes)[:2]),
    "uniform": selectors.Uniform(2),
    "round robin": selectors.RoundRobin(2),
    "power of choice": selectors.PowerOfChoice(2, 3),
    "clustered": selectors.ClusteredBySize(2),
    "divfl": selectors.DivFL(2),
}


@pytest.mark.parametrize("name", [*CONSTANT, *VARIED])
def test_a_cohort_is_constant_if_it_depends_on_no_input(name, model, federation):
    assert trace(model, (CONSTANT | VARIED)[name], federation) == (name in CONSTANT)


def test_a_cohort_drawn_with_numpy_is_warned_of(model, federation):
    with pytest.warns(UserWarning, match="same") as caught:
        fit(method(model, CONSTANT["numpy"]), federation, rounds=2, eval_every=1)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_cohort_of_all_clients_is_not_warned_of(model, federation):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(method(model, selectors.Full()), federation, rounds=1)


def test_a_client_that_does_not_exist_is_named_with_its_round_and_seed(model, federation):
    def clients_of(key, context):
        return jnp.stack([context.round, jnp.where(context.round == 3, 99, 0)])

    with pytest.raises(ValueError, match=r"of round 3, seed 7, names client 99: .* \[0, 6\)"):
        fit(method(model, selecting(clients_of)), federation, rounds=6, seeds=(7,), eval_every=2)


def test_the_first_round_counts_and_then_the_first_seed():
    clients = np.zeros((3, 4, 2), int)
    check_participants(clients, 1, 0, (5, 6, 7))
    clients[0, 3, 0], clients[2, 1, 1], clients[1, 1, 0] = 8, 9, -1
    with pytest.raises(ValueError, match=r"round 11, seed 6, names client -1: .* \[0, 1\)"):
        check_participants(clients, 1, 10, (5, 6, 7))


def test_a_cohort_of_numpy_arrays_and_lists_is_one(model, federation, as_users_call):
    for clients in (np.array([0, 1]), [0, 1]):
        assert trace(model, selecting(lambda *_, given=clients: given), federation)


def warnings_of(data, rounds, evaluations, seeds=(7,)):
    """Warnings of evaluations: round, test loss and accuracy, for all seeds or each."""
    monitor = TrainingMonitor(data, rounds, seeds)
    tested = np.asarray(data.test.sizes) > 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for done, *numbers in evaluations:
            loss, accuracy = (np.broadcast_to(np.float32(n), len(seeds)) for n in numbers)
            summaries = {"test_loss_mean_examples": loss, "accuracy_mean_examples": accuracy}
            losses = np.where(tested, loss[:, None], np.float32(np.nan))
            monitor.update(done, summaries, losses, np.full((len(seeds), 3), np.float32(0.5)))
    return [str(warning.message) for warning in caught]


GUESSING = np.log(3)


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ([(0, 1.2, 0.3), (5, 11.9, 0.9), (10, 1e-3, 0.9)], None),
        (
            [(0, 1.2, 0.3), (5, 12.1, 0.9), (10, 99, 0.9)],
            "round 5, seed 7: the test loss is 12.1, ",
        ),
        (
            [(0, 1.2, 0.3), (5, np.nan, 0.9), (10, 99, 0.9)],
            "round 5, seed 7: the test loss of 6 cl",
        ),
        ([(0, 0.01, 0.9), (5, 0.5, 0.9)], None),  # A pretrained model may become worse.
        ([(0, 0.01, 0.9), (5, 10.1 * GUESSING, 0.9)], r"or of guessing 1\.099"),
        ([(0, np.inf, 0.3), (5, 1.0, 0.9)], "round 0, seed 7: the test loss of 6 clients is not"),
    ],
)
def test_a_diverging_loss_is_warned_of_once(evaluations, expected, federation):
    messages = warnings_of(federation, 10, evaluations)
    assert len(messages) == (expected is not None)
    assert all(re.search(expected, message) for message in messages)


SHARE = np.bincount(make_federation().test.labels).max() / sum(make_federation().test.sizes)


@pytest.mark.parametrize(
    ("rounds", "accuracies", "expected"),
    [
        (20, {0: 0.9, 5: 0.1, 9: 0.1}, False),  # Not yet.
        (20, {0: 0.9, 5: 0.1, 10: SHARE}, True),
        (20, {0: 0.9, 5: 0.1, 10: np.nextafter(np.float32(SHARE), np.float32(1))}, True),
        (20, {0: 0.9, 5: 0.1, 10: SHARE + 1 / 32}, False),
        (20, {5: SHARE + 1 / 32, 10: 0.1, 20: 0.1}, False),  # It learned before.
        (20, {5: 0.1, 10: 0.1, 15: 0.1, 20: 0.1}, True),
        (19, {5: 0.1, 10: 0.1, 19: 0.1}, False),  # Too short.
        (20, {10: np.nan, 20: np.nan}, False),
    ],
)
def test_an_accuracy_of_guessing_is_warned_of_after_half_of_the_rounds(
    rounds, accuracies, expected, federation
):
    messages = warnings_of(federation, rounds, [(done, 1.0, a) for done, a in accuracies.items()])
    assert len(messages) == expected
    assert all(f"round 10, seed 7: no test accuracy so far is above {SHARE:.4g}" in m
               for m in messages)  # fmt: skip


def test_the_seed_that_does_not_learn_is_named(federation):
    evaluations = [(0, 1.0, 0.9), (10, [1.0, 99.0, 99.0], [0.9, 0.9, 0.1])]
    messages = warnings_of(federation, 20, evaluations, seeds=(3, 4, 5))
    assert [expected.split(":")[0] for expected in messages] == [
        "round 10, seed 4",
        "round 10, seed 5",
    ]


def test_guessing_uses_the_classes_of_each_partition(federation):
    one = jax.tree.map(np.array, federation)
    other = one._replace(test=one.test._replace(order=one.test.order[::-1].copy()))
    monitor = TrainingMonitor(stack([one, other]), 20, (0, 1))
    assert monitor._guessing_accuracy.tolist() == [SHARE, SHARE]


def test_regression_has_no_accuracy_of_guessing(federation):
    def with_targets(part):
        return part._replace(labels=part.labels.astype(np.float32))

    data = federation._replace(train=with_targets(federation.train),
                               test=with_targets(federation.test))  # fmt: skip
    assert warnings_of(data, 20, [(0, 5.0, np.nan), (20, 49.0, np.nan)]) == []
    assert len(warnings_of(data, 20, [(0, 5.0, np.nan), (20, 51.0, np.nan)])) == 1
    assert warnings_of(data, 20, [(0, 0.0, np.nan), (20, 51.0, np.nan)]) == []


def test_a_run_with_a_large_learning_rate_is_warned_of(model, federation, tmp_path):
    round = Round(model, selectors.Full(), solvers.SGD(1e6, 2, steps=3), aggregators.Mean())
    for _ in range(2):  # The second time from the checkpoint.
        with pytest.warns(UserWarning, match="round 1, seed 0: the test loss is .* untrained"):
            fit(round, federation, rounds=1, checkpoints=tmp_path)


def test_clients_without_test_examples_are_ignored(federation):
    own = federation.test.sizes.copy()
    own[-1] = 0
    test = federation.test._replace(sizes=own, order=federation.test.order[: own.sum()])
    assert warnings_of(federation._replace(test=test), 10, [(0, 1.0, 0.5), (5, 1.0, 0.5)]) == []


ONE, MIXED, NONE = [0.0, 1.0, 0.0], [0.0, 0.9, 0.1], [0.0, 0.0, 0.0]


def constant_warnings(data, rounds, evaluations, seeds=(7, 8)):
    """Warnings of accuracies per class by round, one list for all seeds or one for each."""
    monitor = TrainingMonitor(data, rounds, seeds)
    losses = np.where(np.asarray(data.test.sizes) > 0, 1.0, np.nan).astype(np.float32)
    summary = {
        "test_loss_mean_examples": np.ones(len(seeds)),
        "accuracy_mean_examples": np.full(len(seeds), 0.9),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for done, values in evaluations.items():
            accuracy = np.broadcast_to(np.float32(values), (len(seeds), 3))
            monitor.update(done, summary, np.stack([losses] * len(seeds)), accuracy)
    return [str(warning.message).split(". ")[0] for warning in caught]


def of_type(data, dtype):
    def cast(part):
        return part._replace(features=np.asarray(part.features).astype(dtype))

    return data._replace(train=cast(data.train), test=cast(data.test))


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ({0: ONE, 1: ONE, 2: MIXED, 9: MIXED}, None),  # Before training, and once.
        ({1: ONE, 2: ONE, 3: ONE}, "round 2, seed 7"),
        ({1: ONE, 2: MIXED, 3: ONE, 9: ONE}, "round 9, seed 7"),
        ({1: [ONE, MIXED], 2: [ONE, MIXED], 9: [MIXED, MIXED]}, None),
        ({1: [ONE, MIXED], 9: [MIXED, ONE]}, "round 9, seed 8"),
        ({9: NONE}, None),
        ({9: [1.0, 1.0, 0.0]}, None),
        ({9: [np.nan, 1.0, 0.0]}, "round 9, seed 7"),
        ({9: [np.nan, 1.0, np.nan]}, None),  # There is only one class.
    ],
)
def test_constant_predictions_are_warned_of(evaluations, expected, federation):
    messages = constant_warnings(of_type(federation, np.uint8), 9, evaluations)
    assert messages == [f"{expected}: the prediction is class 1 for all test examples"] * (
        expected is not None
    )
    assert constant_warnings(of_type(federation, np.float32), 9, evaluations) == []


class Scaled(nnx.Module):
    """A linear classifier of features divided by a number."""

    def __init__(self, divisor, *, rngs):
        self.divisor = divisor
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return self.linear(x / self.divisor)


@pytest.mark.parametrize("divisor", [1.0, 255.0])
def test_images_that_a_module_divides_once_more_are_named(divisor):
    """Then only biases are trained, and the most frequent class is predicted."""
    labels = np.tile([0, 1, 1, 1, 2], 20)
    features = np.eye(3)[labels] * 255
    data = from_arrays(features.astype(np.uint8), labels, clients=np.arange(100) % 4)
    solver = solvers.SGD(0.5, 20, steps=20)
    model = models.from_flax(partial(Scaled, divisor))
    round = Round(model, selectors.Full(), solver, aggregators.Mean())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fit(round, data, rounds=3, eval_every=1).dataset
    expected = ["round 2, seed 0: the prediction is class 1 for"] * (divisor == 255)
    assert [str(warning.message)[: len(expected[0])] for warning in caught] == expected
    assert (result.accuracy_mean_examples[0, -1] > 0.9) == (divisor == 1)


class Weighting(aggregators.Mean):
    """Reports weights that a function makes of the right ones, and applies the right update."""

    function: Any = None
    compute_weights = None

    def aggregate(self, state, cohort, results, context):
        weights = cohort.renormalize_weights(jnp.full(3, 1 / 3, jnp.float32))
        update = context.weighted_sum(weights, results.update)
        return update, state, Aggregation(self.function(weights, context), {})


def warnings_of_fit(round, rounds=4):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(round, make_federation(), rounds=rounds, eval_every=2)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda weights, context: weights, None),
        (lambda weights, context: weights * jnp.nan, "round 0, seed 0: the weights of the cohort"),
        (lambda weights, context: weights.at[1].set(jnp.nan), "the weights .* nan, .* expected"),
        (lambda weights, context: weights.at[1].set(jnp.inf), "the weights of the cohort are"),
        (lambda weights, context: weights.at[1].set(-jnp.inf), "the weights of the cohort are"),
        (lambda weights, context: weights * 0, "round 0, seed 0: all weights .* are 0, so that no"),
        (
            lambda weights, context: jnp.where(context.round == 3, 0.0, weights),
            "round 3, seed 0: all weights of the cohort are 0",
        ),
        (lambda weights, context: jnp.array([-1.0, 0.0, 1.0]), "the weights of the cohort are"),
    ],
)
def test_weights_that_an_aggregator_reports_are_checked(function, message, model):
    found = warnings_of_fit(
        Round(model, selectors.Uniform(3), SOLVER, Weighting(function=function))
    )
    assert len(found) == (message is not None)
    assert all(re.search(message, each) for each in found)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_zero_weights_are_right_only_without_responses(rate, model):
    """As of a selector that gives zeros, and of clients that all dropped out."""

    class Zeros(selectors.Uniform):
        def select(self, key, state, context):
            cohort, state, info = super().select(key, state, context)
            return cohort._replace(weights=cohort.weights * 0), state, info

    found = warnings_of_fit(
        Round(model, Zeros(3), SOLVER, aggregators.Mean("selector"), faults=faults.Dropout(rate))
    )
    assert sum("all weights of the cohort are 0" in each for each in found) == (rate == 0)


@pytest.mark.parametrize(
    ("clients_fn", "rounds", "is_warned"),
    [
        (lambda key, context: jnp.full(3, jax.random.randint(key, (), 0, 6)), 4, True),
        (lambda key, context: jnp.full(3, context.round % 6), 4, True),
        (lambda key, context: jnp.full(3, jnp.argmax(context.sizes)), 4, True),
        (lambda key, context: jnp.full(3, context.round % 6), 2, False),
        (lambda key, context: (context.round + jnp.arange(3) // 2) % 6, 4, False),
        (lambda key, context: jax.random.randint(key, (1,), 0, 6), 20, False),
    ],
)
def test_cohorts_of_one_repeated_client_are_warned_of(clients_fn, rounds, is_warned, model):
    found = warnings_of_fit(method(model, selecting(clients_fn)), rounds)
    assert sum("every cohort of seed 0 is one client" in each for each in found) == is_warned


def test_draws_with_replacement_are_not_warned_of(model):
    for selector in (selectors.ClusteredBySize(3), selectors.BySize(3)):
        assert not warnings_of_fit(method(model, selector))


@pytest.mark.parametrize("renormalizes", [True, False])
def test_weights_of_missing_results_are_warned_of(model, renormalizes):
    class Uniform(aggregators.Mean):
        compute_weights = None

        def aggregate(self, state, cohort, results, context):
            weights = jnp.full(cohort.clients.size, 1 / cohort.clients.size, jnp.float32)
            weights = cohort.renormalize_weights(weights) if renormalizes else weights
            update = context.weighted_sum(weights, results.update)
            return update, state, Aggregation(weights, {})

    selector = selectors.Uniform(4)
    round = Round(model, selector, SOLVER, Uniform(), faults=faults.Dropout(0.5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(round, make_federation(), rounds=4)
    found = [str(each.message) for each in caught]
    expected = "results that did not arrive have weights, and count as zeros"
    assert sum(expected in message for message in found) == (not renormalizes)
