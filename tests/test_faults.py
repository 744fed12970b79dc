"""Properties of faults, with every role."""

from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import aggregate, linear_model, make_federation
from test_conformance import AGGREGATORS, FEDERATION, SELECTORS, Scaling, model_of

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, selectors, solvers
from fedjax_fair.faults import injection
from fedjax_fair.roles import Aggregator, Cohort, LocalResult, Timing
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.rounds.round_context import make_context
from fedjax_fair.rounds.round_state import Purpose, derive_key

ROUNDS = 4
NUM = FEDERATION.num_clients
DATA = jax.tree.map(jnp.asarray, FEDERATION)


SGD = solvers.SGD(0.1, 2, steps=3)


# Rounds are arguments, so that faults of other probabilities or clients do not compile again.
@partial(jax.jit, static_argnames="drop_nonfinite")
def program(round, key, drop_nonfinite):
    start = round.init(key, DATA)
    state, info = run(round, start, DATA, ROUNDS, drop_nonfinite=drop_nonfinite)
    clear = jax.random.key_data
    return start._replace(key=clear(start.key)), state._replace(key=clear(state.key)), info


def run_with(faults=(), selector=None, aggregator=None, solver=None, *, drop_nonfinite=False):
    round = Round(
        linear_model(),
        selector or selectors.Uniform(3),
        solver or Scaling(),
        aggregator or aggregators.Mean("num_examples"),
        faults=faults,
    )
    return program(round, jax.random.key(3), drop_nonfinite)


@cache
def context(aggregator="mean"):
    model = model_of(("uniform", "sgd", aggregator))
    with jax.ensure_compile_time_eval():  # The first call may be inside a compiled function.
        variables = model.init(jax.random.key(0), DATA.train.features[:1])
    if model.bind_state is not None:  # As rounds do.
        model, variables = model.bind_state(variables.state), variables._replace(state={})
    return make_context(model, jnp.int32(1), variables, DATA)


@pytest.mark.parametrize(
    ("selector", "aggregator"),
    [
        ("uniform", "mean by size"),
        pytest.param("unionfl", "mean with a server optimizer", marks=pytest.mark.slow),
        pytest.param("clustered_by_similarity", "equitable", marks=pytest.mark.slow),
        pytest.param("drfa", "fairfed", marks=pytest.mark.slow),
        pytest.param("power_of_choice, reported", "q_fedavg", marks=pytest.mark.slow),
    ],
)
def test_faults_of_probability_zero_change_no_bit(selector, aggregator):
    roles = {"selector": SELECTORS[selector](), "aggregator": AGGREGATORS[aggregator]()}
    make = partial(run_with, **roles, solver=SGD)
    inactive = [
        faults.Dropout(0.0),
        faults.Stragglers(0.0, deadline_steps=1),
        faults.Byzantine(0.0, "nan"),
        faults.Byzantine([], "alie"),
        faults.Staleness(0.0, max_staleness=2),
    ]
    _, plain, info = make()
    _, state, same = make(inactive, drop_nonfinite=True)
    chex.assert_trees_all_equal(state._replace(model_history=()), plain)
    # A loop that may end early is compiled otherwise, and with it the mean of its losses.
    np.testing.assert_allclose(same.loss, info.loss, rtol=1e-6)
    chex.assert_trees_all_equal(same._replace(loss=info.loss), info)
    assert same.responded.all()


def random_results(rng, size, aggregator="mean"):
    update = jax.tree.map(
        lambda leaf: rng.normal(size=(size, *leaf.shape)).astype(np.float32),
        context(aggregator).variables,
    )
    loss = rng.uniform(1, 2, size=size).astype(np.float32)
    steps = np.full(size, 3, np.int32)
    rows = np.tile(np.asarray([0, 1], np.int32), (size, 1))
    sends = dict.fromkeys(("control", "gradient"), update.params)
    sends["cluster"] = np.arange(size, dtype=np.int32) % 2
    sends |= {"snapshot": update, "effective_steps": steps.astype(np.float32), "drift": ()}
    return LocalResult(update, loss, steps, {"last_batch": rows}, sends=sends)


def cohort_of(clients, instructions=None):
    clients = jnp.asarray(clients, jnp.int32)
    shares = jnp.linspace(1, 2, clients.size, dtype=jnp.float32)
    ones = jnp.ones(clients.shape, jnp.int32)
    timing = Timing(staleness=clients, milliseconds=ones)
    return Cohort(clients, shares / shares.sum(), instructions or {}, timing=timing)


@pytest.mark.parametrize(
    "name", sorted(AGGREGATORS.keys() - {"aaggff, in a silo", "fedpw", "fed_async"})
)
def test_aggregators_ignore_clients_without_response(name):
    clients, responded = [0, 3, 4, 1, 5], np.array([True, False, True, True, False])
    results = random_results(np.random.default_rng(0), len(clients), name)
    aggregator, at = AGGREGATORS[name](), context(name)
    state = aggregator.init(at._replace(key=jax.random.key(1)))
    factors = np.asarray([1.1, 0.9, 1.2, 1.0, 0.8], np.float32)
    cohort = cohort_of(clients, {"loss_weight": factors})
    smaller, smaller_results = jax.tree.map(lambda leaf: leaf[responded], (cohort, results))
    smaller = smaller._replace(weights=smaller.weights / smaller.weights.sum())
    expected = aggregate(aggregator, state, smaller, smaller_results, at)

    zeroed = jax.tree.map(
        lambda leaf: np.where(responded.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), results
    )
    actual = aggregate(aggregator, state, cohort._replace(responded=responded), zeroed, at)
    chex.assert_trees_all_close(actual[:2], expected[:2], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(actual[2].weights[responded], expected[2].weights, rtol=2e-5)
    assert (actual[2].weights[~responded] == 0).all()


@pytest.mark.parametrize(
    "name",
    ["mean", "mean with a server optimizer", "fairfed", "median", "q_fedavg", "equitable"],
)
def test_a_round_without_responses_changes_nothing(name):
    start, state, info = run_with([faults.Dropout(1.0)], aggregator=AGGREGATORS[name]())
    chex.assert_trees_all_equal(state.variables, start.variables)
    chex.assert_trees_all_equal(state.aggregator, start.aggregator)
    assert (state.participation == 0).all()
    assert info.finite.all()
    assert not info.responded.any()
    assert np.isnan(info.loss).all()


class DividedByResponses(Aggregator):
    """Mean, divided by the number of responses."""

    mean: aggregators.Mean = aggregators.Mean()

    def compute_weights(self, state, cohort, context):
        return self.mean.compute_weights(state, cohort, context)

    def aggregate(self, state, cohort, results, context):
        update, state, info = self.mean.aggregate(state, cohort, results, context)
        count = jnp.sum(cohort.responded).astype(jnp.float32)
        return jax.tree.map(lambda leaf: leaf / count, update), state, info


def test_dividing_by_zero_responses_is_not_applied():
    start, state, info = run_with([faults.Dropout(1.0)], aggregator=DividedByResponses())
    chex.assert_trees_all_equal(state.variables, start.variables)
    assert info.finite.all()


def test_participation_weights_and_losses_are_those_of_responders():
    _, state, info = run_with([faults.Dropout(0.5)])
    responded = np.asarray(info.responded)
    assert 0 < responded.mean() < 1
    counted = np.bincount(np.asarray(info.clients)[responded], minlength=NUM)
    np.testing.assert_array_equal(state.participation, counted)
    weights = np.asarray(info.weights)
    assert (weights[~responded] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), responded.any(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(info.loss), ~responded)


def test_streamed_weights_are_renormalized():
    # The first sums during training, the second when the responding clients are known.
    fault = [faults.Dropout([0.0, 1.0, 0.0, 0.0, 1.0, 0.0])]
    _, one, info = run_with(fault)
    _, other, _ = run_with(fault, aggregator=aggregators.NormClipping(1e6, "num_examples"))
    assert not info.responded.all()
    chex.assert_trees_all_close(one.variables, other.variables, rtol=1e-5, atol=1e-6)


def test_faults_do_not_depend_on_the_cohort():
    unreliable = [faults.Dropout(0.4), faults.Stragglers(0.5, deadline_steps=2)]

    @jax.jit
    def applied_to(clients):
        cohort, responded = injection.apply_faults(
            unreliable, jax.random.key(0), cohort_of(clients), context()
        )
        return cohort.instructions["max_steps"], responded

    limits, responded = applied_to(jnp.arange(4))
    others, others_responded = applied_to(jnp.array([5, 3, 1, 4]))
    np.testing.assert_array_equal(others[1:3], limits[jnp.array([3, 1])])
    np.testing.assert_array_equal(others_responded[1:3], responded[jnp.array([3, 1])])


def test_dropout_frequencies():
    each = np.array([0.0, 0.1, 0.3, 0.5, 0.9, 1.0], np.float32)
    fault, at = faults.Dropout(each), context()

    def responded(seed):
        cohort = cohort_of(range(NUM))
        return injection.apply_faults([fault], jax.random.key(seed), cohort, at)[1]

    responses = np.asarray(jax.jit(jax.vmap(responded))(jnp.arange(4000)))
    error = np.sqrt(each * (1 - each) / len(responses))
    assert (np.abs(responses.mean(axis=0) - (1 - each)) <= 4 * error).all()
    apart = np.corrcoef(responses[:, 2], responses[:, 3])[0, 1]
    assert abs(apart) < 4 / np.sqrt(len(responses))

    def both(seed):
        cohort, halves = cohort_of(range(NUM)), [faults.Dropout(0.5), faults.Dropout(0.5)]
        return injection.apply_faults(halves, jax.random.key(seed), cohort, at)[1]

    quarter = np.asarray(jax.jit(jax.vmap(both))(jnp.arange(4000))).mean()
    assert abs(quarter - 1 / 4) < 4 * np.sqrt(3 / 16 / (4000 * NUM))


@pytest.mark.parametrize("length", [{"steps": 5}, {"epochs": 2}], ids=str)
def test_stragglers_take_their_first_steps(length):
    slow = [faults.Stragglers(1.0, deadline_steps=2)]
    _, state, info = run_with(slow, solver=solvers.SGD(0.1, 2, **length))
    assert (info.steps == 2).all()
    if "steps" in length:
        _, expected, _ = run_with(solver=solvers.SGD(0.1, 2, steps=2))
        chex.assert_trees_all_close(state.variables, expected.variables, rtol=1e-5, atol=1e-7)


@jax.jit
@partial(jax.vmap, in_axes=(None, None, 0))
def ages_of(fault, round, seed):
    """Returns the staleness of clients with each of some seeds, in rounds."""
    key = derive_key(jax.random.key(seed), Purpose.FAULTS, round)
    cohort = cohort_of(range(NUM))
    cohort, _ = injection.apply_faults([fault], key, cohort, context()._replace(round=round))
    return round - cohort.instructions["model_round"]


def softmax_step(model, features, labels, rate):
    """Returns a step of gradient descent on the cross-entropy of a linear classifier."""
    logits = features @ model["kernel"] + model["bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(odds.shape[1])[labels]
    steps = {"kernel": features.T @ error, "bias": error.sum(axis=0)}
    return {name: -rate * step / len(labels) for name, step in steps.items()}


def test_stale_participants_equal_numpy():
    fault = faults.Staleness(0.8, max_staleness=2)
    start, state, info = run_with(
        [fault], solver=solvers.SGD(0.5, 16, steps=1), aggregator=aggregators.Mean("uniform")
    )
    train = FEDERATION.train
    models = [{name: np.asarray(leaf, float) for name, leaf in start.variables.params.items()}]
    ages = []
    for round in range(ROUNDS):
        clients = np.asarray(info.clients[round])
        ages.append(np.asarray(ages_of(fault, jnp.int32(round), jnp.array([3])))[0, clients])
        updates = []
        for client, age in zip(clients, ages[-1], strict=True):
            offset, size = train.offsets[client], train.sizes[client]
            own = train.order[offset : offset + size]
            old = models[round - age]
            updates.append(softmax_step(old, train.features[own], train.labels[own], 0.5))
        models.append(
            {name: leaf + np.mean([u[name] for u in updates], axis=0)
             for name, leaf in models[-1].items()}
        )  # fmt: skip
    assert set(np.concatenate(ages)) == {0, 1, 2}
    for name, leaf in models[-1].items():
        np.testing.assert_allclose(state.variables.params[name], leaf, rtol=1e-4, atol=1e-6)


def test_staleness_is_uniform():
    fault = faults.Staleness(0.75, max_staleness=3)
    drawn = ages_of(fault, jnp.int32(7), jnp.arange(200))
    share = np.bincount(np.ravel(drawn), minlength=4) / drawn.size
    assert np.abs(share - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / drawn.size)
    for round in range(3):
        assert ages_of(fault, jnp.int32(round), jnp.arange(200)).max() == round


def sent_updates(attack, updates, clients, byzantine, responded=None, **settings):
    fault = faults.Byzantine(byzantine, attack, **settings)
    cohort = cohort_of(clients)._replace(responded=responded)
    if fault.collude is not None:
        return jax.jit(lambda own: fault.collude(cohort, own, context()))(updates)

    def one(client, own):
        return fault.send(*injection._arguments(jax.random.key(0), 0, client, context()), own)

    return jax.jit(jax.vmap(one))(cohort.clients, updates)


@pytest.mark.parametrize("attack", ["sign_flip", "scaling", "noise", "nan", "alie", "ipm"])
def test_attacks_are_their_formulas(attack):
    clients, byzantine = [0, 3, 4, 1, 5], [3, 5, 2]
    responded = np.array([True, True, False, True, True])
    updates = random_results(np.random.default_rng(1), len(clients)).update
    actual = sent_updates(attack, updates, clients, byzantine, responded, strength=1.5)
    is_byzantine = np.isin(clients, byzantine)
    for own, sent in zip(jax.tree.leaves(updates), jax.tree.leaves(actual), strict=True):
        honest = own[responded & ~is_byzantine].astype(np.float64)
        np.testing.assert_array_equal(sent[~is_byzantine], own[~is_byzantine])
        expected = {
            "sign_flip": -1.5 * own[is_byzantine],
            "scaling": 1.5 * own[is_byzantine],
            "noise": own[is_byzantine],
            "nan": np.full_like(own[is_byzantine], np.nan),
            "alie": np.broadcast_to(honest.mean(0) - 1.5 * honest.std(0), own[is_byzantine].shape),
            "ipm": np.broadcast_to(-1.5 * honest.mean(0), own[is_byzantine].shape),
        }[attack]
        if attack == "noise":
            apart = np.asarray(sent[is_byzantine] - expected) / 1.5
            assert np.unique(apart).size == apart.size
            assert np.abs(apart).max() < 6
        else:
            np.testing.assert_allclose(sent[is_byzantine], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 1.0])
def test_a_fraction_of_clients_is_byzantine(fraction):
    updates = random_results(np.random.default_rng(1), NUM).update
    actual = sent_updates("sign_flip", updates, range(NUM), fraction)
    leaf, sent = (np.asarray(jax.tree.leaves(tree)[0]) for tree in (updates, actual))
    assert (sent != leaf).reshape(NUM, -1).any(axis=1).sum() == round(fraction * NUM)


def test_updates_that_are_not_finite_can_be_dropped():
    attack = faults.Byzantine([0, 2, 4], "nan")
    dropout = faults.Dropout(np.isin(np.arange(NUM), [0, 2, 4]).astype(np.float32))
    _, state, info = run_with([attack], drop_nonfinite=True)
    _, expected, _ = run_with([dropout])
    chex.assert_trees_all_equal(state.variables, expected.variables)
    byzantine = np.isin(info.clients, [0, 2, 4])
    np.testing.assert_array_equal(info.responded, ~byzantine)
    np.testing.assert_array_equal(info.nonfinite, byzantine)
    assert info.finite.all()
    _, _, info = run_with([attack])
    assert not info.finite.all()
    np.testing.assert_array_equal(info.nonfinite, np.isin(info.clients, [0, 2, 4]))


def test_without_any_finite_update_the_model_stays():
    start, state, info = run_with([faults.Byzantine(1.0, "nan")], drop_nonfinite=True)
    chex.assert_trees_all_equal(state.variables, start.variables)
    assert info.nonfinite.all()
    assert not info.responded.any()


def test_missing_updates_are_not_nonfinite():
    _, _, info = run_with([faults.Dropout(1.0), faults.Byzantine(1.0, "nan")])
    assert not info.nonfinite.any()


def test_selectors_update_only_responders():
    responded, clients = np.array([True, False, True]), [4, 1, 0]
    cohort = cohort_of(clients)._replace(responded=responded)
    results = random_results(np.random.default_rng(0), 3)
    for name in ("unionfl", "clustered_by_similarity", "power_of_choice, reported",
                 "divfl, greedy and stale"):  # fmt: skip
        selector = SELECTORS[name]()

        @jax.jit
        def states(selector=selector):
            before = selector.init(context())
            return before, selector.observe(before, cohort, results, context())

        before, after = states()
        renewed = np.zeros(NUM, bool)
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            differs = (np.asarray(old) != np.asarray(new)).reshape(NUM, -1)
            if differs.shape == (NUM, NUM):  # Pairs, of which one may have responded.
                differs[:, [0, 4]] = False
            renewed |= differs.any(axis=1)
        assert not renewed[[1, 2, 3, 5]].any(), name
        if name != "divfl, greedy and stale":  # Its gradients are at the same model.
            assert renewed[[0, 4]].all(), name


AVAILABLE = np.array([True, False, True, True, False, True])


@pytest.mark.parametrize("name", sorted({name for name in SELECTORS if name.isidentifier()}))
def test_selectors_choose_available_clients(name):
    selector = SELECTORS[name]()
    at = context()._replace(available=jnp.asarray(AVAILABLE))
    if name in ("full", "agnostic", "round_robin"):  # They also take unavailable clients.
        return

    @jax.jit
    @jax.vmap
    def choose(key):
        return selector.select(key, selector.init(context()), at)[0].clients

    drawn = np.asarray(choose(jax.random.split(jax.random.key(0), 6)))
    assert AVAILABLE[drawn].all()
    assert np.unique(drawn).size > 1


def test_unavailable_clients_do_not_respond():
    table = np.array([[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    _, state, info = run_with([faults.Trace(table)])
    clients, responded = np.asarray(info.clients), np.asarray(info.responded)
    assert clients[0][responded[0]].tolist() == [0]
    assert not responded[1].any()
    assert responded[2].all()
    assert clients[3][responded[3]].tolist() == [0]
    assert state.participation.sum() == 5


def test_diurnal_frequencies():
    fault = faults.Diurnal(4, min_availability=0.2, max_availability=0.8)
    table = jax.jit(jax.vmap(lambda round: fault.available(jax.random.key(round), round, 8)))(
        jnp.arange(4000, dtype=jnp.int32)
    )
    angle = 2 * np.pi * (np.arange(4)[:, None] / 4 + np.arange(8)[None, :] / 8)
    expected = 0.2 + 0.6 * (1 + np.sin(angle)) / 2
    frequencies = np.asarray(table).reshape(-1, 4, 8).mean(axis=0)
    assert np.abs(frequencies - expected).max() < 4 * 0.5 / np.sqrt(1000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: faults.Dropout(1.5), "probability=1.5"),
        (lambda: faults.Dropout([0.1, np.nan]), "probability="),
        (lambda: faults.Byzantine(1.2, "nan"), "clients=1.2"),
        (lambda: faults.Byzantine([1, 1], "nan"), "different"),
        (lambda: faults.Trace([1, 0]), "table="),
        (lambda: faults.Trace([[2, 0]]), "table="),
        (lambda: run_with([faults.Trace([[1, 0]])]), "table"),
        *(
            (
                lambda shape=shape: run_with([faults.Dropout(np.full(shape, 0.5))]),
                rf"probability of shape \{list(shape)}: expected a scalar or \[6\]",
            )
            for shape in [(3,), (7,), (0,)]
        ),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("as_users_call")
def test_dropout_has_a_vector_of_probabilities():
    with pytest.raises(ValueError, match="probability"):
        run_with([faults.Dropout([[0.5] * 6])])


class Wrapped(ff.Faults):
    """A fault inside another one."""

    inner: ff.Faults

    def responds(self, key, context):
        return True


class NotStarted(ff.training.Callback):
    """Fails where training starts, before anything is compiled."""

    def on_start(self, rounds, seeds):
        pytest.fail("started")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (faults.Trace([[1, 0]]), "table"),
        (faults.Dropout([0.5] * 3), "expected a scalar or"),
        (faults.Byzantine([6], "nan"), "expected items in"),
    ],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_faults_of_other_clients_are_refused_before_training(fault, message, is_wrapped):
    fault = Wrapped(fault) if is_wrapped else fault
    round = Round(linear_model(), selectors.Uniform(3), Scaling(), aggregators.Mean(), faults=fault)
    with pytest.raises(ValueError, match=message):
        ff.fit(round, make_federation(), rounds=1, callbacks=[NotStarted()])


@pytest.mark.parametrize("attack", ["nan", "alie"])
def test_byzantine_clients_that_do_not_exist_are_refused(attack):
    def round_of(clients):
        return Round(
            linear_model(),
            selectors.Uniform(3),
            Scaling(),
            aggregators.Mean(),
            faults=[faults.Dropout(0.1), faults.Byzantine(clients, attack)],
        )

    good, bad, data = round_of([0, 1]), round_of([2, 6]), make_federation()
    settings = {"rounds": 1, "callbacks": [NotStarted()]}
    message = r"clients=\[2, 6\]: expected items in \[0, 6\)"
    with pytest.raises(ValueError, match=message):
        ff.fit(bad, data, **settings)
    with pytest.raises(ValueError, match=message):
        ff.fit([good, bad], data, seeds=(0, 1), **settings)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda key: run(bad, bad.init(key, DATA), DATA, 1), jax.random.key(0))


def test_results_record_responses_and_bytes():
    method = Round(
        linear_model(),
        selectors.Uniform(3),
        solvers.SGD(0.1, 2, steps=1),
        aggregators.Mean(),
        faults=[faults.Dropout(0.5)],
    )
    dataset = ff.fit(method, make_federation(), rounds=4, eval_every=2, train_loss=False).dataset
    responded = dataset["cohort_responded"].values[0]
    assert responded.shape == (4, 3)
    assert 0 < responded.mean() < 1
    size = 4 * sum(leaf.size for leaf in jax.tree.leaves(context().variables))
    num_responses = np.concatenate([[0], responded.sum(axis=1).cumsum()])[[0, 2, 4]]
    np.testing.assert_array_equal(dataset["bytes_up"][0], num_responses * size)
    np.testing.assert_array_equal(dataset["bytes_down"][0], np.array([0, 6, 12]) * size)


def test_faults_without_a_method_are_an_error():
    class Misspelled(ff.Faults):
        def respond(self, key, context):
            return False

    with pytest.raises(ValueError, match="faults:"):
        run_with(Misspelled())
