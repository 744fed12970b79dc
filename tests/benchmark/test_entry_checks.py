"""Honest methods pass the checks of entries, and methods that cheat are rejected by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import NUM_CLASSES, linear_model, make_federation
from test_conformance import ASYNCHRONOUS, CLASSES, FEDERATION, round_of

from fedjax_fair import aggregators, analysis, schedules, selectors, solvers, timing
from fedjax_fair.app.settings.config import Config, ModelConfig, SolverConfig
from fedjax_fair.benchmark import entry_checks
from fedjax_fair.benchmark.entry_checks import check_method, check_round
from fedjax_fair.benchmark.relabeling import RelabeledSelector, RelabeledSolver, permute_clients
from fedjax_fair.data import hold_out, stack
from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Selector, Solver
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.training import Centralized, fit

DATA = hold_out(make_federation()._replace(groups=np.array([0, 1, 0, 2, 1, 0], np.int32)), 0.4)
"""Validation examples are in the arrays of training examples, where a role can see them."""

SGD = solvers.SGD(0.1, 2, epochs=1)
ORDER = np.array([3, 5, 0, 1, 4, 2], np.int32)


def make(selector=None, solver=None, aggregator=None):
    return Round(
        linear_model(),
        selector or selectors.Uniform(3),
        solver or SGD,
        aggregator or aggregators.Mean(),
    )


HONEST = {
    "fedavg": make(),
    "ditto": make(solver=solvers.Ditto(SGD)),
    "local": make(solver=solvers.Local(SGD)),
    "ifca": make(solver=solvers.IFCA(SGD), aggregator=aggregators.IFCAMean()),
    "power_of_choice": make(selectors.PowerOfChoice(3, 5)),
    "divfl": make(selectors.DivFL(3, candidates="all")),
    "fairfed": make(selectors.Full(), aggregator=aggregators.FairFed(0.5, "accuracy")),
    "round_robin": make(selectors.RoundRobin(3)),
    "centralized": Centralized(linear_model(), solvers.SGD(0.1, 2, steps=3)),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_methods_pass(name):
    check_round(name, HONEST[name], DATA)


def test_methods_of_the_registry_pass():
    config = Config(
        model=ModelConfig(name="logistic"),
        solver=SolverConfig(learning_rate=0.1, batch_size=2, steps=2),
    )
    check_method("power_of_choice:cohort_size=3,pool=4", config, DATA)
    with pytest.raises(ValueError, match="nothing"):
        check_method("nothing", config, DATA)


def test_orders_of_several_partitions_are_padded():
    whole = make_federation()
    part = whole.map_parts(without_last)
    padded = stack([part, whole])
    assert len(padded.partition(0).train.order) > padded.partition(0).train.sizes.sum()
    check_round("fedavg", make(), padded)


def without_last(part):
    sizes = part.sizes.copy()
    sizes[-1] -= 1
    return part._replace(order=part.order[:-1], sizes=sizes)


def all_labels(examples):
    """The mean label of the array, in which others than training examples are too."""
    return jnp.mean(examples.labels.astype(jnp.float32))


class PeekingAggregator(Aggregator):
    def aggregate(self, state, cohort, results, context):
        weights = jnp.full(cohort.clients.shape, 1 / cohort.clients.size)
        update = context.weighted_sum(all_labels(context.examples) * weights, results.update)
        return update, state, Aggregation(weights, {})


class PeekingSolver(Solver):
    def solve(self, key, variables, client):
        rate = 0.1 * all_labels(client.examples)
        return solvers.SGD(rate, 2, epochs=1).solve(key, variables, client)


class PeekingInPersonalize(PeekingSolver):
    def solve(self, key, variables, client):
        return SGD.solve(key, variables, client)

    def personalize(self, key, variables, client):
        return jax.tree.map(lambda leaf: all_labels(client.examples) * leaf, variables)


class PeekingSelector(Selector):
    def select(self, key, state, context):
        first = jnp.sum(context.examples.labels).astype(jnp.int32) % context.num_clients
        clients = (first + jnp.arange(2, dtype=jnp.int32)) % context.num_clients
        return Cohort(clients, jnp.full(2, 0.5)), state, {}


class PeekingRound(Centralized):
    """A custom round sees the test examples themselves."""

    def step(self, state, data, drop_nonfinite=False, skip_nonfinite=False):
        state, info = super().step(state, data, drop_nonfinite, skip_nonfinite)
        scale = all_labels(data.test)
        variables = jax.tree.map(lambda leaf: scale * leaf, state.variables)
        return state._replace(variables=variables), info


@pytest.mark.parametrize(
    "round",
    [
        make(aggregator=PeekingAggregator()),
        make(solver=PeekingSolver()),
        make(solver=PeekingInPersonalize()),
        make(PeekingSelector()),
        PeekingRound(linear_model(), solvers.SGD(0.1, 2, steps=3)),
    ],
    ids=["aggregator", "solver", "personalize", "selector", "round"],
)
def test_methods_that_read_other_labels_are_rejected(round):
    with pytest.raises(ValueError, match=r"^cheat: test examples: other labels"):
        check_round("cheat", round, DATA)


class SolverOfIds(Solver):
    def solve(self, key, variables, client):
        rate = 0.1 + 0.05 * client.id.astype(jnp.float32)
        return solvers.SGD(rate, 2, epochs=1).solve(key, variables, client)


class InitialStateOfIds(Solver):
    def init(self, key, variables, client):
        return client.id.astype(jnp.float32)

    def solve(self, key, variables, client):
        result = SGD.solve(key, variables, client)
        return result._replace(update=jax.tree.map(lambda u: client.state * u, result.update))


class PersonalizedById(Solver):
    def solve(self, key, variables, client):
        return SGD.solve(key, variables, client)

    def personalize(self, key, variables, client):
        return jax.tree.map(lambda leaf: (1 + client.id.astype(leaf.dtype)) * leaf, variables)


class AggregatorOfIds(Aggregator):
    def aggregate(self, state, cohort, results, context):
        weights = jnp.where(cohort.clients < 2, 3.0, 1.0)
        weights /= jnp.sum(weights)
        update = context.weighted_sum(weights, results.update)
        return update, state, Aggregation(weights, {})


class FavoringSelector(Selector):
    """The first client always trains."""

    def select(self, key, state, context):
        others = 1 + jax.random.choice(key, context.num_clients - 1, (2,), replace=False)
        clients = jnp.concatenate([jnp.zeros(1, jnp.int32), others.astype(jnp.int32)])
        return Cohort(clients, jnp.full(3, 1 / 3)), state, {}


class WeighingSelector(Selector):
    """All clients train, with weights by id."""

    def select(self, key, state, context):
        clients = jnp.arange(context.num_clients, dtype=jnp.int32)
        weights = 1.0 + clients.astype(jnp.float32)
        return Cohort(clients, weights / jnp.sum(weights)), state, {}


@pytest.mark.parametrize(
    ("round", "message"),
    [
        (make(solver=SolverOfIds()), "the trained models"),
        (make(solver=InitialStateOfIds()), "the trained models"),
        (make(solver=PersonalizedById()), "the trained models"),
        (make(aggregator=AggregatorOfIds()), "the trained models"),
        (make(FavoringSelector()), "how often or with which weight"),
        (make(WeighingSelector()), "how often or with which weight"),
    ],
    ids=["solver", "init", "personalize", "aggregator", "selector", "weights"],
)
def test_methods_that_use_ids_are_rejected(round, message):
    with pytest.raises(ValueError, match=f"^cheat: client ids: other ids .* {message}"):
        check_round("cheat", round, DATA)


class Still(Solver):
    def solve(self, key, variables, client):
        result = SGD.solve(key, variables, client)
        return result._replace(update=jax.tree.map(jnp.zeros_like, result.update))


class Exploding(Solver):
    def solve(self, key, variables, client):
        result = SGD.solve(key, variables, client)
        return result._replace(update=jax.tree.map(lambda u: u * jnp.inf, result.update))


class Flat(Solver):
    def solve(self, key, variables, client):
        result = SGD.solve(key, variables, client)
        return result._replace(update=jax.tree.map(jnp.ravel, result.update))


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (Still(), "conformance: no model changed in 3 rounds"),
        (Exploding(), "conformance: .*not finite"),
        (Flat(), "conformance: .*update.*expected float32"),
    ],
)
def test_methods_that_do_not_conform_are_rejected(solver, message):
    with pytest.raises(ValueError, match=f"^cheat: {message}") as error:
        check_round("cheat", make(solver=solver), DATA)
    assert "\n" not in str(error.value)


def test_wrapped_roles_train_as_the_original_ones_up_to_keys():
    """With full batches and all clients no random number matters."""
    solver = solvers.SGD(0.1, 20, epochs=2)
    original = make(selectors.Full(), solver)
    ids = np.arange(6, dtype=np.int32)
    wrapped = make(RelabeledSelector(original.selector, DATA, ids), RelabeledSolver(solver, ids))
    expected, actual = (
        fit(each, DATA, rounds=2, eval_every=2).dataset for each in (original, wrapped)
    )
    np.testing.assert_allclose(actual.test_loss, expected.test_loss, rtol=1e-5)


def test_wrapped_solvers_process_as_many_examples():
    solver = solvers.SGD(0.1, 20, epochs=2)
    times = timing.ClientTimes(np.ones(6))
    rounds = [
        make(selectors.Full(), each).replace(schedule=schedules.Synchronous(times))
        for each in (solver, RelabeledSolver(solver, np.arange(6, dtype=np.int32)))
    ]
    original, wrapped = (analysis.simulate(round, DATA, rounds=2) for round in rounds)
    np.testing.assert_array_equal(wrapped.update_time, original.update_time)


def test_a_wrapped_selector_draws_the_original_clients():
    moved = permute_clients(DATA, ORDER)
    for selector in (selectors.PowerOfChoice(3, 5), selectors.Oort(3)):
        original = make(selector)
        wrapped = make(RelabeledSelector(selector, DATA, ORDER), RelabeledSolver(SGD, ORDER))
        same = make(solver=RelabeledSolver(SGD, np.arange(6, dtype=np.int32)))
        same = same.replace(selector=original.selector)
        key = jax.random.key(2)
        _, info = run(same, same.init(key, DATA), DATA, 3)
        _, other = run(wrapped, wrapped.init(key, moved), moved, 3)
        np.testing.assert_array_equal(ORDER[other.clients], info.clients)
        np.testing.assert_allclose(other.loss, info.loss, rtol=1e-5)


def test_permuted_clients_own_the_same_examples():
    moved = permute_clients(DATA._replace(client_names=tuple("abcdef")), ORDER)
    assert moved.client_names == tuple("dfabec")
    assert moved.groups is not None
    assert DATA.groups is not None
    np.testing.assert_array_equal(moved.groups, DATA.groups[ORDER])
    for part, original in ((moved.train, DATA.train), (moved.test, DATA.test)):
        for new, old in enumerate(ORDER):
            np.testing.assert_array_equal(owned(part, new), owned(original, old))


def owned(part, client):
    return part.order[part.offsets[client] : part.offsets[client] + part.sizes[client]]


def test_altered_labels_leave_training_examples_only():
    altered = entry_checks._alter_labels(DATA)
    assert DATA.validation is not None
    assert altered.validation is not None
    assert altered.validation.labels is altered.train.labels
    for part, original in ((altered.validation, DATA.validation), (altered.test, DATA.test)):
        assert (part.labels[part.order] != original.labels[original.order]).all()
        assert 0 <= part.labels.min() <= part.labels.max() < NUM_CLASSES
        assert part.labels.dtype == original.labels.dtype
    order = DATA.train.order
    np.testing.assert_array_equal(altered.train.labels[order], DATA.train.labels[order])


@pytest.mark.parametrize(
    ("labels", "num_classes"),
    [
        (np.array([[0, 1, -1], [2, -1, -1]], np.int32), 3),
        (np.array([0.0, 1.0, 0.2], np.float32), 1),
    ],
)
def test_all_other_labels_differ(labels, num_classes):
    other = entry_checks._other_labels(labels, num_classes, np.random.default_rng(0))
    assert other.dtype == labels.dtype
    np.testing.assert_array_equal(other == labels, labels == -1)


def test_a_client_alone_has_no_other_id():
    check_round("alone", make(selectors.Full()), make_federation(sizes=(9,)))


def test_other_objects_are_refused(as_users_call):
    with pytest.raises(ValueError, match=r"round.*expected"):
        check_round("nothing", SGD, DATA)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    # Times are of a fixed number of clients; the checks take other numbers.
    [names for names in CLASSES if names[2] not in ASYNCHRONOUS],
    ids=" | ".join,
)
def test_every_role_passes(names):
    check_round(" | ".join(names), round_of(names), hold_out(FEDERATION, 0.4))
