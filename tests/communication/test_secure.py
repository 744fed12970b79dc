"""Secure aggregation: the model of plain training, and the server views of roles."""

import dataclasses
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model
from test_conformance import AGGREGATORS, FEDERATION, SELECTORS, model_of, schedule_of

import fedjax_fair as ff
from fedjax_fair import aggregators, communication, faults, selectors, solvers
from fedjax_fair.roles import Aggregator, ServerView
from fedjax_fair.rounds.round import Round, run

DATA = jax.tree.map(jnp.asarray, FEDERATION)
ROUNDS = 3


def round_of(selector="uniform", aggregator="mean by size", **settings):
    return Round(
        linear_model(),
        SELECTORS[selector](),
        solvers.SGD(0.1, 2, steps=3),
        AGGREGATORS[aggregator](),
        **settings,
    )


def run_with(selector="uniform", aggregator="mean by size", *, drop_nonfinite=False, **settings):
    round = round_of(selector, aggregator, **settings)

    @jax.jit
    def program(key):
        start = round.init(key, DATA)
        state, info = run(round, start, DATA, ROUNDS, drop_nonfinite=drop_nonfinite)
        return state._replace(key=jax.random.key_data(state.key)), info

    return program(jax.random.key(3))


DROPOUT = [faults.Dropout(0.4)]


@pytest.mark.parametrize(
    ("selector", "aggregator", "fault"),
    [
        ("by_size", "mean by size", [*DROPOUT, faults.Byzantine([0, 2, 4], "sign_flip")]),
        ("agnostic", "mean by cohort", []),
        ("drfa", "tilted", []),
        ("power_of_choice, reported", "q_fedavg", DROPOUT),
        ("round_robin", "fairfed", DROPOUT),
        ("full", "gifair", DROPOUT),
    ],
)
def test_secure_training_equals_plain(selector, aggregator, fault):
    plain, info = run_with(selector, aggregator, faults=fault)
    secure, same = run_with(selector, aggregator, faults=fault, aggregation="secure")
    assert info.responded.all() != bool(fault)
    assert info.finite.all()
    chex.assert_trees_all_close(secure, plain, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(same, info, rtol=1e-5, atol=1e-6)
    changed = jax.tree.map(lambda a, b: (a != b).any(), secure.variables, plain.variables)
    assert any(jax.tree.leaves(changed))  # The sum was quantized.


def test_a_coarse_step_rounds_the_update():
    """The model of one participant with weight 1 changes by multiples of the step."""
    max_abs_value = 2.0**20
    step = 2.0**-10  # The least power of two above ``max_abs_value / 2**31``.
    round = Round(
        linear_model(),
        selectors.Uniform(1),
        solvers.SGD(0.1, 2, steps=3),
        aggregators.Mean(),
        aggregation=communication.SecureAggregation(max_abs_value),
    )
    start = jax.jit(round.init)(jax.random.key(0), DATA)
    state, _ = jax.jit(round.step)(start, DATA)
    plain = round.replace(aggregation="plain")
    exact, _ = jax.jit(plain.step)(start, DATA)
    for new, old, near in zip(
        *map(jax.tree.leaves, (state.variables, start.variables, exact.variables)), strict=True
    ):
        moved = np.asarray(new, np.float64) - np.asarray(old)
        np.testing.assert_allclose(moved / step, np.round(moved / step), atol=1e-3)
        assert (np.abs(np.asarray(new - near)) <= step / 2 + 1e-6).all()


def test_updates_beyond_max_abs_value_are_not_applied():
    round = round_of(aggregation=communication.SecureAggregation(1e-3))
    start = jax.jit(round.init)(jax.random.key(0), DATA)
    state, info = jax.jit(round.step)(start, DATA)
    assert not info.finite
    chex.assert_trees_all_equal(state.variables, start.variables)
    with pytest.raises(ff.DivergenceError, match="max_abs_value"):
        ff.fit(round, FEDERATION, rounds=1)


class Heavy(Aggregator):
    """The mean with weights that add up to a factor."""

    server_view: ClassVar[ServerView] = "aggregate"

    factor: ff.Number
    mean: aggregators.Mean = aggregators.Mean()

    def compute_weights(self, state, cohort, context):
        return self.factor * self.mean.compute_weights(state, cohort, context)

    def aggregate(self, state, cohort, results, context):
        return self.mean.aggregate(state, cohort, results, context)


def test_weights_above_one_do_not_overflow():
    def step(factor):
        round = Round(
            linear_model(),
            selectors.Uniform(3),
            solvers.SGD(0.1, 2, steps=3),
            Heavy(factor),
            aggregation="secure",
        )
        return round.step(round.init(jax.random.key(0), DATA), DATA)[1].finite

    finite = jax.jit(jax.vmap(step))(np.float32([1, 3]))
    assert finite.tolist() == [True, False]


def level(role, server_view):
    """Returns a role that declares a smaller server view."""
    kind = type(role)
    fields = {field.name: getattr(role, field.name) for field in dataclasses.fields(role)}
    return type(kind.__name__, (kind,), {"server_view": server_view})(**fields)


SOLVER_OF = {
    aggregators.ScaffoldMean: solvers.Scaffold,
    aggregators.FedNovaMean: solvers.FedNova,
    aggregators.FedDynMean: solvers.FedDyn,
    aggregators.MimeLiteMean: solvers.MimeLite,
    aggregators.IFCAMean: solvers.IFCA,
}
"""The solver that an aggregator needs."""


def traced(selector=None, aggregator=None, model=None):
    """Traces a round with secure aggregation."""
    sgd, aggregator = solvers.SGD(0.1, 2, steps=2), aggregator or aggregators.Mean()
    round = Round(
        model or linear_model(),
        selector or selectors.Uniform(3),
        next((make(sgd) for kind, make in SOLVER_OF.items() if isinstance(aggregator, kind)), sgd),
        aggregator,
        aggregation="secure",
        schedule=schedule_of(aggregator),
    )
    jax.eval_shape(lambda key: round.step(round.init(key, DATA), DATA), jax.random.key(0))


LESS = {"scalars": "aggregate", "vectors": "scalars"}
# Its function may need any view.
UNKNOWN = ("submodular",)


@pytest.mark.parametrize("name", SELECTORS)
def test_selectors_need_their_server_view(name):
    server_view = SELECTORS[name]().server_view
    if server_view != "vectors":
        traced(selector=SELECTORS[name]())
    if server_view != "aggregate" and name not in UNKNOWN:
        with pytest.raises(ValueError, match="aggregation='secure'"):
            traced(selector=level(SELECTORS[name](), LESS[server_view]))


@pytest.mark.parametrize("name", AGGREGATORS)
def test_aggregators_need_their_server_view(name):
    server_view = AGGREGATORS[name]().server_view
    if server_view != "vectors":
        selector = selectors.Full() if name.endswith("in a silo") else None
        traced(selector, AGGREGATORS[name]())
    if server_view != "aggregate":
        with pytest.raises(ValueError, match="aggregation='secure'"):
            traced(None, level(AGGREGATORS[name](), LESS[server_view]), model_of((name,)))


SUM_ALONE = {
    "selectors": {"uniform", "by_size", "full", "round_robin", "rotation", "clustered_by_size"},
    "aggregators": {
        "mean",
        "scaffold_mean",
        "feddyn_mean",
        "mime_lite_mean",
        "with_server_optimizer",
        "fed_async",
        "fed_buff",
        "fed_stale_weight",
    },
}


def test_roles_with_aggregate_view():
    for kind, cases in (("selectors", SELECTORS), ("aggregators", AGGREGATORS)):
        found = {
            name.split(maxsplit=1)[0].rstrip(",")
            for name in cases
            if cases[name]().server_view == "aggregate"
        }
        assert found == SUM_ALONE[kind]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"aggregator": "krum"}, "aggregator:"),
        ({"aggregator": "median"}, "aggregator:"),
        ({"selector": "divfl"}, "selector:"),
        (
            {"faults": [faults.Byzantine(0.5, "alie")]},
            "faults:",
        ),
        ({"aggregation": "masked"}, "aggregation='masked'"),
        ({"aggregation": communication.SecureAggregation}, "aggregation=<class"),
    ],
)
def test_incompatible_roles_raise(settings, said, as_users_call):
    with pytest.raises(ValueError, match=said):
        round_of(**{"aggregation": "secure"} | settings)


def test_nonfinite_updates_can_be_dropped():
    attack = [faults.Byzantine([0, 2, 4], "nan")]
    _, info = run_with(faults=attack, drop_nonfinite=True, aggregation="secure")
    np.testing.assert_array_equal(info.responded, ~np.isin(info.clients, [0, 2, 4]))
    assert info.finite.all()


def test_each_sum_has_new_masks(monkeypatch):
    """drfa adds up snapshots as well as updates."""
    seen = []
    module = ff.communication.opaque
    original = module.masked_sum
    monkeypatch.setattr(
        module, "masked_sum", lambda key, *rest: (seen.append(key), original(key, *rest))[1]
    )
    round = round_of("drfa", aggregation="secure")

    @jax.jit
    def keys(index):
        seen.clear()
        state = round.init(jax.random.key(0), DATA)
        round.step(state._replace(round=state.round + index), DATA)
        return [jax.random.key_data(key) for key in seen]

    first, second = keys(0), keys(1)
    assert len(first) == 2
    assert np.unique(np.stack(first + second), axis=0).shape[0] == 4
