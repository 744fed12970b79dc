"""Server optimizers: formulas in NumPy, and what the wrapper passes on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import linear_model, make_federation

from fedjax_fair import aggregators, faults, selectors, server_optimizers, solvers
from fedjax_fair.roles import Aggregation, Aggregator, Variables
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi, Optax

ROUNDS = 6
UPDATES = np.random.default_rng(0).normal(scale=0.05, size=(ROUNDS, 7))
UPDATES[2] = 0


def reference(kind, updates, rate, beta1, beta2=0.0, tau=1e-3, v0=None, corrected=False):
    """Returns the steps of a server optimizer in double precision, written out."""
    first, steps = np.zeros(updates.shape[1]), []
    second = np.full(updates.shape[1], tau**2 if v0 is None else v0)
    for t, update in enumerate(updates, start=1):
        if kind == "avgm":
            first = beta1 * first + update
            steps.append(rate * first)
            continue
        first = beta1 * first + (1 - beta1) * update
        square = update**2
        if kind == "adagrad":
            second = second + square
        elif kind == "adam":
            second = beta2 * second + (1 - beta2) * square
        else:
            second = second - (1 - beta2) * square * np.sign(second - square)
        factor = np.sqrt(1 - beta2**t) / (1 - beta1**t) if corrected else 1.0
        steps.append(factor * rate * first / (np.sqrt(second) + tau))
    return np.array(steps)


def steps_of(optimizer, updates=UPDATES):
    def step(state, update):
        change, state = optimizer.step({"w": update}, state, params)
        return state, change["w"]

    params = {"w": jnp.zeros(updates.shape[1])}
    return jax.lax.scan(step, optimizer.init(params), jnp.asarray(updates, jnp.float32))[1]


CASES = {
    "avgm": (FedAvgM(0.5, beta1=0.8), partial(reference, "avgm", rate=0.5, beta1=0.8)),
    "avgm, defaults": (FedAvgM(), partial(reference, "avgm", rate=1.0, beta1=0.9)),
    "adagrad": (
        FedAdagrad(0.3, beta1=0.5, tau=0.02),
        partial(reference, "adagrad", rate=0.3, beta1=0.5, tau=0.02),
    ),
    "adagrad, defaults": (FedAdagrad(), partial(reference, "adagrad", rate=0.1, beta1=0.0)),
    "adam": (
        FedAdam(0.3, beta1=0.7, beta2=0.8, tau=0.02),
        partial(reference, "adam", rate=0.3, beta1=0.7, beta2=0.8, tau=0.02),
    ),
    "adam, defaults": (
        FedAdam(),
        partial(reference, "adam", rate=0.01, beta1=0.9, beta2=0.99),
    ),
    "adam, as in the experiments": (
        FedAdam(0.3, v0=0.0, bias_correction=True),
        partial(reference, "adam", rate=0.3, beta1=0.9, beta2=0.99, v0=0.0, corrected=True),
    ),
    "yogi": (
        FedYogi(0.3, beta1=0.7, beta2=0.8, tau=0.02, v0=0.002),
        partial(reference, "yogi", rate=0.3, beta1=0.7, beta2=0.8, tau=0.02, v0=0.002),
    ),
    "yogi, defaults": (
        FedYogi(),
        partial(reference, "yogi", rate=0.01, beta1=0.9, beta2=0.99),
    ),
    "yogi, as in the experiments": (
        FedYogi(0.3, v0=0.0, bias_correction=True),
        partial(reference, "yogi", rate=0.3, beta1=0.9, beta2=0.99, v0=0.0, corrected=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_formulas(case):
    optimizer, expected = CASES[case]
    np.testing.assert_allclose(steps_of(optimizer), expected(UPDATES), rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("case", ["adagrad", "adam", "yogi"])
@pytest.mark.parametrize("mistake", [{"corrected": True}, {"v0": 0.0}, {"rate": -0.3}], ids=str)
def test_the_formulas_differ_from_known_mistakes(case, mistake):
    """The updates above are of a size for which each mistake is visible."""
    if case == "adagrad" and "corrected" in mistake:
        mistake = {"beta2": 0.99, **mistake}
    optimizer, expected = CASES[case]
    wrong = expected(UPDATES, **mistake)
    assert not np.allclose(steps_of(optimizer), wrong, rtol=2e-3, atol=1e-6)


def test_the_first_steps_of_adam_and_yogi_are_equal_from_zero():
    first = steps_of(FedAdam(0.3, v0=0.0))[0]
    np.testing.assert_array_equal(first, steps_of(FedYogi(0.3, v0=0.0))[0])


SGD = solvers.SGD(0.1, 4, steps=2)
DATA = make_federation()._replace(groups=np.array([0, 1, 0, 2, 1, 0], np.int32))
STATE_WITH_STATISTICS = {"mean": jnp.zeros(2)}


def states(aggregator, num_rounds=3, **settings):
    """Returns the states before and after each round."""
    inner = getattr(aggregator, "inner", aggregator)
    solver = solvers.Scaffold(SGD) if isinstance(inner, aggregators.ScaffoldMean) else SGD
    round = Round(linear_model(), selectors.Uniform(3), solver, aggregator, **settings)
    found = [round.init(jax.random.key(0), DATA)]
    step = jax.jit(lambda state: round.step(state, DATA))
    infos = []
    for _ in range(num_rounds):
        state, info = step(found[-1])
        found.append(state)
        infos.append(info)
    return found, infos


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


INNER = {
    "mean": aggregators.Mean("num_examples"),
    "median": aggregators.Median(),
    "equitable": aggregators.Equitable(2),
    "gifair": aggregators.GIFAIR(0.5),  # Has instructions for the clients.
    "centered_clipping": aggregators.CenteredClipping(0.1),  # Has state.
    "scaffold_mean": aggregators.ScaffoldMean(),  # Broadcasts its state.
}


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*zip(INNER, 3 * (Optax(optax.sgd, 1.0), FedAvgM(1.0, beta1=0.0)), strict=True)],
    ids=INNER,
)
def test_a_rate_of_one_is_the_wrapped_aggregator(name, optimizer):
    inner = INNER[name]
    wrapper = aggregators.WithServerOptimizer(inner, optimizer)
    plain, infos = states(inner)
    wrapped, wrapped_infos = states(wrapper)
    assert_equal(wrapped[-1].variables, plain[-1].variables)
    assert_equal(wrapped[-1].aggregator.aggregator, plain[-1].aggregator)
    for info, wrapped_info in zip(infos, wrapped_infos, strict=True):
        assert_equal(wrapped_info.aggregator, info.aggregator)
        assert_equal(wrapped_info.weights, info.weights)
    assert wrapper.server_view == inner.server_view
    assert wrapper.equal_weights == inner.equal_weights
    assert (wrapper.compute_weights is None) == (inner.compute_weights is None)


def test_a_wrapper_of_equal_weights_says_so():
    wrapped = aggregators.WithServerOptimizer(aggregators.Mean(), FedAdam())
    assert wrapped.equal_weights
    assert not wrapped.replace(inner=aggregators.Mean("num_examples")).equal_weights


@pytest.mark.parametrize("criterion", ["demographic_parity", "client_parity"])
def test_an_aggregator_that_measures_the_new_model_is_refused(criterion):
    """It would measure a model without the step of the optimizer."""
    inner = aggregators.FedFBMean(0.1, criterion)
    with pytest.raises(ValueError, match="inner=FedFBMean") as error:
        aggregators.WithServerOptimizer(inner, FedAdam())
    assert "\n" not in str(error.value)


class WithStatistics(Aggregator):
    """Returns a fixed update of parameters and statistics."""

    value: float = 0.25

    def aggregate(self, state, cohort, results, context):
        update = jax.tree.map(lambda leaf: jnp.full_like(leaf, self.value), context.variables)
        return update, state, Aggregation(cohort.weights, {})


def statistics_model():
    model = linear_model()
    return model.replace(
        init_fn=lambda key, x: Variables(model.init(key, x).params, STATE_WITH_STATISTICS)
    )


def test_statistics_are_updated_without_the_optimizer():
    aggregator = aggregators.WithServerOptimizer(WithStatistics(), FedAvgM(0.5, beta1=0.5))
    round = Round(statistics_model(), selectors.Uniform(3), SGD, aggregator)
    start = round.init(jax.random.key(0), DATA)
    end, _ = run(round, start, DATA, 2)
    np.testing.assert_array_equal(end.variables.state["mean"], np.full(2, 0.5, np.float32))
    moved = end.variables.params["bias"] - start.variables.params["bias"]
    np.testing.assert_allclose(moved, 0.5 * 0.25 * (1 + 1.5), rtol=1e-6)


ALL = {
    "FedAvgM": FedAvgM(),
    "FedAdagrad": FedAdagrad(),
    "FedAdam": FedAdam(bias_correction=True),
    "FedYogi": FedYogi(),
    "Optax": Optax(partial(optax.rmsprop, momentum=0.9), 0.01),
}


def test_every_optimizer_is_covered():
    assert ALL.keys() == set(server_optimizers.__all__) - {"ServerOptimizer"}


@pytest.mark.parametrize("name", ALL)
def test_a_round_without_response_changes_nothing(name):
    aggregator = aggregators.WithServerOptimizer(aggregators.Mean(), ALL[name])
    fails = np.zeros((4, 6), bool)
    fails[[0, 2, 3]] = True
    found, infos = states(aggregator, 3, faults=faults.Trace(fails))
    assert [bool(info.responded.any()) for info in infos] == [True, False, True]
    assert_equal(found[2].variables, found[1].variables)
    assert_equal(found[2].aggregator, found[1].aggregator)
    for before, after in ((0, 1), (2, 3)):
        changed = jax.tree.map(
            lambda a, b: bool((a != b).any()), found[before].aggregator, found[after].aggregator
        )
        assert all(jax.tree.leaves(changed))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [float("nan"), 1e30], ids=["nan", "overflow of the square"])
def test_an_invalid_update_leaves_the_state(name, value):
    class Sometimes(Aggregator):
        def aggregate(self, state, cohort, results, context):
            filled = jnp.where(context.round == 1, jnp.float32(value), 0.5)
            update = jax.tree.map(lambda leaf: jnp.full_like(leaf, filled), context.variables)
            return update, state, Aggregation(cohort.weights, {})

    found, infos = states(aggregators.WithServerOptimizer(Sometimes(), ALL[name]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found[-1].aggregator))
    if np.isnan(value):
        assert [bool(info.finite) for info in infos] == [True, False, True]
        assert_equal(found[2].aggregator, found[1].aggregator)
        assert_equal(found[2].variables, found[1].variables)
