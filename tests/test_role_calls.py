"""Mistakes of custom roles: one line that names the role, its method and the mistake."""

import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import linear_model, make_federation
from jax.experimental import io_callback
from sklearn.metrics import balanced_accuracy_score
from test_conformance import Scaling

import fedjax_fair as ff
from fedjax_fair.roles import Aggregation, Cohort, LocalResult, checked_calls
from fedjax_fair.roles.role_errors import RoleError
from fedjax_fair.rounds.round import Round
from fedjax_fair.utils.tree import Number

DATA = make_federation()
THIRDS = jnp.full(3, 1 / 3)


class Custom(ff.Selector):
    """Selects the first clients. Functions of the same names replace its methods."""

    select_fn: Any = None
    init_fn: Any = None
    observe_fn: Any = None
    penalty: Number = 1.0

    def init(self, context):
        return () if self.init_fn is None else self.init_fn(context)

    def select(self, key, state, context):
        return (self.select_fn or valid)(state, context)

    def observe(self, state, cohort, results, context):
        return state if self.observe_fn is None else self.observe_fn(state)


def valid(state, context):
    return Cohort(jnp.arange(3), THIRDS), state, {}


class Aggregating(ff.Aggregator):
    """Returns what a function makes of the cohort's mean update and of the arguments."""

    function: Any

    def aggregate(self, state, cohort, results, context):
        return self.function(context.weighted_sum(THIRDS, results.update), state, context)


class Solving(ff.Solver):
    """Returns what a function makes of the variables."""

    function: Any

    def solve(self, key, variables, client):
        return self.function(variables)


def trace(selector=None, aggregator=None, solver=None, faults=()):
    roles = selector or Custom(), solver or Scaling(), aggregator or ff.aggregators.Mean()
    round = Round(linear_model(), *roles, faults=faults)

    def rounds(round):
        return round.step(round.init(jax.random.key(0), DATA), DATA)

    return jax.eval_shape(rounds, round)


def assert_message(message, **roles):
    with pytest.raises(RoleError, match=message) as caught:
        trace(**roles)
    assert "\n" not in str(caught.value)


def cohort(clients=None, weights=THIRDS):
    clients = jnp.arange(3) if clients is None else clients
    return lambda state, context: (Cohort(clients, weights), state, {})


def info(value):
    return lambda state, context: (*valid(state, context)[:2], value)


def measured(function):
    """Applies a function to a traced loss."""

    def select(state, context):
        function(context.losses(context.variables)[0])
        return valid(state, context)

    return select


def need_value(loss):
    return 1 if loss > 0 else 2


PLACE = r"^selector test_role_calls\.Custom\.select"
LINE = rf"{PLACE}, line \d+ of test_role_calls\.py: "


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (lambda state, context: 1 / 0, rf"{LINE}ZeroDivisionError: division by zero"),
        (lambda state, context: {}["a"], rf"{LINE}KeyError: 'a'"),
        (lambda state, context: sys.exit(0), rf"{LINE}SystemExit: 0"),
        (lambda state, context: jnp.ones(2) @ jnp.ones(3), rf"{LINE}TypeError: .*shape"),
        (lambda state, context: balanced_accuracy_score([0], [0, 1]), rf"{LINE}ValueError: Found"),
        (measured(need_value), rf"{LINE}`.*if loss > 0.*` needs the value of a traced array; use"),
        (measured(np.asarray), rf"{LINE}`.*function.*` needs the value of a traced array"),
        (measured(int), r"needs the value of a traced array"),
        (lambda state, context: None, rf"{PLACE} returned None: expected \(cohort, state, info\)"),
        (lambda state, context: valid(state, context)[0], "returned a Cohort: expected"),
        (lambda state, context: valid(state, context)[:2], r"returned \(a Cohort, a tuple\)"),
        (lambda state, context: (THIRDS, state, {}), r"returned \(float32\[3\], a tuple, a dict\)"),
        (info([1]), "info is a list: expected a dict"),
        (info(None), "info is None: expected a dict"),
        (info({1: 2}), "info has the name 1: expected a string"),
        (info({"a/b": 1}), "info has the name 'a/b': expected a string without '/'"),
        (info({"": 1}), "info has the name ''"),
        (info({"a\n": 1}), r"info has the name 'a\\n'"),
        (info({"a": "text"}), r"info\['a'\] is 'text': expected real numbers or booleans"),
        (info({"a": np.ones(2)}), r"info\['a'\] is .*\[2\]: .* a scalar or \[3\]"),
        (info({"a": np.ones((3, 2))}), r"info\['a'\] is .*\[3, 2\]"),
        (info({"a": 1j}), r"info\['a'\] is complex64\[\]"),
        (info({"a": {"b": 1}}), r"info\['a'\] is a dict"),
        (info({"a": jax.random.key(0)}), r"info\['a'\] is key<fry>\[\]"),
        (cohort(THIRDS), r"clients are float32\[3\]: expected integers \[cohort\]"),
        (cohort(jnp.ones(3, bool)), r"clients are bool\[3\]"),
        (cohort(jnp.arange(0), THIRDS[:0]), r"clients are int32\[0\]"),
        (cohort(jnp.int32(1), THIRDS), r"clients are int32\[\]"),
        (cohort("abc"), "clients are 'abc'"),
        (cohort(np.array([0, 1, 6])), r"names client 6: expected ids in \[0, 6\)"),
        (cohort(np.array([0, 1, -1])), r"names client -1"),
        (cohort(np.array([0, 1, 2**32 + 1])), "names client 4294967297"),
        (cohort(weights=THIRDS[:2]), r"weights are float32\[2\]: expected real numbers \[3\]"),
        (cohort(weights=THIRDS[:, None]), r"weights are float32\[3, 1\]"),
        (cohort(weights=1j * np.ones(3)), r"weights are complex64\[3\]"),
        (cohort(weights=None), "weights are None"),
        (cohort(weights=np.ones(3)), r"weights=\[1.0, 1.0, 1.0\]: expected numbers >= 0 that sum"),
        (cohort(weights=np.array([-1, 1, 1.0])), r"weights=\[-1.0, 1.0, 1.0\]"),
        (cohort(weights=np.full(3, np.nan)), r"weights=\[nan, nan, nan\]"),
        (cohort(weights=np.array([np.inf, 0, 0])), r"weights=\[inf, 0.0, 0.0\]"),
    ],
)
def test_mistakes_of_select_are_named(select, message):
    assert_message(message, selector=Custom(select))


@pytest.mark.parametrize(
    "select",
    [
        cohort(jnp.arange(3, dtype=jnp.uint32)),
        cohort(np.arange(3, dtype=np.uint8)),
        cohort([0, 1, 2], [0.5, 0.25, 0.25]),
        cohort(weights=np.array([1, 0, 0])),
        info({"top-1 share": True, "count": np.arange(3, dtype=np.uint8)}),
    ],
)
def test_other_types_of_ids_weights_and_diagnostics_are_converted(select):
    _, info = trace(Custom(select))
    assert info.clients.dtype == jnp.int32
    assert info.weights.dtype == jnp.float32


START = {"a": jnp.zeros(2), "b": None}


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            {"init_fn": lambda context: "text"},
            r"Custom\.init: state is 'text': expected non-empty arr",
        ),
        (
            {"init_fn": lambda context: jnp.zeros((2, 0))},
            r"state is float32\[2, 0\]: expected non-",
        ),
        ({"init_fn": lambda context: {"a": object()}}, r"init: state\['a'\] is a object"),
        ({"init_fn": lambda context: 1 / 0}, r"\.init, line \d+ of .*: ZeroDivisionError"),
        ({"observe_fn": lambda state: None}, r"observe: state is None: expected \{'a': float32\["),
        ({"observe_fn": lambda state: state["a"]}, r"observe: state is float32\[2\]: expected"),
        ({"observe_fn": lambda state: {**state, "a": jnp.zeros(3)}}, r"state\['a'\] is float32\[3"),
        ({"observe_fn": lambda state: {**state, "a": np.arange(2)}}, r"state\['a'\] is int32\[2\]"),
        ({"observe_fn": lambda state: {**state, "b": 1}}, "as before the round"),
        (
            {"select_fn": lambda state, context: (*valid((), context)[:1], (), {})},
            r"select: state is \(\): expected \{'a'",
        ),
    ],
)
def test_a_state_consists_of_arrays_that_keep_their_structure(functions, message):
    assert_message(message, selector=Custom(**{"init_fn": lambda context: START} | functions))


class OtherArguments(Custom):
    """Takes no context."""

    def init(self):
        return ()


def test_other_arguments_are_named():
    message = r"OtherArguments\.init: too many positional arguments: expected init\(self, context\)"
    assert_message(message, selector=OtherArguments())


def as_result(function):
    """Returns an aggregator that changes the leaves of the mean update."""
    return lambda mean, state, context: (
        jax.tree.map(function, mean),
        state,
        Aggregation(THIRDS, {}),
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda *_: None, r"aggregate returned None: expected \(update, state, Aggregation\("),
        (lambda mean, state, _: (mean, state), r"returned \(a Variables, a tuple\)"),
        (lambda mean, state, _: (mean, state, {}), r"returned \(a Variables, a tuple, a dict\)"),
        (lambda mean, *_: mean, "returned a Variables"),
        (as_result(lambda leaf: leaf[None]), r"update.params\['bias'\] is float32\[1, 3\]: exp"),
        (as_result(jnp.sum), r"update.params\['bias'\] is float32\[\]: expected float32\[3\]"),
        (as_result(lambda leaf: leaf.astype(int)), r"is int32\[3\]: expected float32\[3\]"),
        (as_result(lambda leaf: leaf.astype(complex)), r"is complex64\[3\]"),
        (as_result(lambda leaf: leaf.astype(jnp.bfloat16)), r"is bfloat16\[3\]"),
        (as_result(lambda leaf: None), r"update is Variables\(params=\{'bias': None"),
        (
            lambda mean, state, _: (mean.params, state, Aggregation(THIRDS, {})),
            r"update is \{'bias': float32\[3\], 'kernel': .*\}: expected Variables\(params=",
        ),
        (lambda mean, state, _: (mean, 1, Aggregation(THIRDS, {})), r"state is int32\[\]: expe"),
        (lambda mean, _, __: (mean, (), Aggregation(THIRDS[:2], {})), r"weights are float32\[2\]"),
        (lambda mean, _, __: (mean, (), Aggregation(THIRDS, {"a/b": 1})), "the name 'a/b'"),
        (
            lambda mean, state, context: ff.aggregators.Mean().aggregate(
                state, None, LocalResult(mean, THIRDS, THIRDS), context
            ),
            r"Aggregating\.aggregate, line .*weighted_sum is None: .* define compute_weights",
        ),
    ],
)
def test_mistakes_of_aggregate_are_named(function, message):
    assert_message(message, aggregator=Aggregating(function))


class Wrapping(ff.Aggregator):
    """Wraps a mean; functions replace two of the methods."""

    prepare_fn: Any = None
    weights_fn: Any = None

    def prepare(self, state, cohort, context):
        return cohort if self.prepare_fn is None else self.prepare_fn(cohort)

    def compute_weights(self, state, cohort, context):
        return THIRDS if self.weights_fn is None else self.weights_fn()

    def aggregate(self, state, cohort, results, context):
        return ff.aggregators.Mean().aggregate(state, cohort, results, context)


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (Wrapping(lambda cohort: None), r"prepare returned None: expected the cohort"),
        (Wrapping(lambda cohort: cohort.clients), r"prepare returned int32\[3\]"),
        (Wrapping(weights_fn=lambda: None), r"compute_weights: weights are None: expected real"),
        (Wrapping(weights_fn=lambda: THIRDS[:2]), r"compute_weights: weights are float32\[2\]"),
    ],
)
def test_mistakes_of_a_wrapper_are_named(aggregator, message):
    trace(aggregator=Wrapping())
    assert_message(rf"^aggregator test_role_calls\.Wrapping\.{message}", aggregator=aggregator)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda variables: None, r"returned None: expected LocalResult\(update"),
        (lambda variables: variables, "returned a Variables"),
        (lambda variables: LocalResult(variables.params, 0.5, 1), r"update is \{'bias': float32"),
        (lambda variables: LocalResult(variables, THIRDS, 1), r"loss is float32\[3\]: expected a"),
        (lambda variables: LocalResult(variables, 0.5, 1.0), r"steps is float32\[\]: expected an"),
        (lambda variables: 1 / 0, r", line \d+ of .*: ZeroDivisionError"),
    ],
)
def test_mistakes_of_solve_are_named(function, message):
    place = r"^solver test_role_calls\.Solving\.solve"
    assert_message(f"{place}.*{message}", solver=Solving(function))


class Unreliable(ff.Faults):
    """Loses updates."""

    function: Any

    def responds(self, key, context):
        return self.function()

    def send(self, key, context, update):
        return None


def test_mistakes_of_faults_are_named():
    message = r"^faults test_role_calls\.Unreliable\.responds, line .*ZeroDivisionError"
    assert_message(message, faults=[Unreliable(lambda: 1 / 0)])
    message = r"^faults test_role_calls\.Unreliable\.send: update is None: expected Variables"
    assert_message(message, faults=[Unreliable(lambda: True)])


class Masked(ff.Faults):
    """Clients that are available."""

    mask_fn: Any

    def available(self, key, round, num_clients):
        return self.mask_fn()


@pytest.mark.parametrize(
    ("mask_fn", "shown"),
    [
        (lambda: jnp.ones(5, bool), r"bool\[5\]"),
        (lambda: jnp.ones(6), r"float32\[6\]"),
        (lambda: jnp.ones((1, 6), bool), r"bool\[1, 6\]"),
        (lambda: True, r"bool\[\]"),
        (lambda: None, "None"),
    ],
)
def test_mistakes_of_available_are_named(mask_fn, shown):
    place = r"^faults test_role_calls\.Masked\.available"
    assert_message(rf"{place} returned {shown}: expected bool\[6\]", faults=[Masked(mask_fn)])


@pytest.mark.parametrize("mask", [np.ones(6, bool), [True] * 6])
def test_masks_of_other_types_are_converted(mask):
    converted = checked_calls.available(Masked(lambda: mask), jax.random.key(0), jnp.int32(0), 6)
    assert isinstance(converted, jax.Array)
    assert converted.shape == (6,)


class Branching(Custom):
    """Needs the value of a traced field."""

    def select(self, key, state, context):
        if self.penalty > 0:
            return valid(state, context)
        return valid(state, context)


def test_a_traced_field_is_named():
    message = (
        r"Branching\.select, line \d+ of test_role_calls\.py: `if self\.penalty > 0:` needs the "
        r"value of Branching\.penalty, which is a traced scalar; use jnp\.where, or annotate"
    )
    assert_message(message, selector=Branching())


def test_the_original_error_is_the_cause():
    with pytest.raises(RoleError) as caught:
        trace(Custom(lambda state, context: {}["a"]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_errors_of_the_package_are_not_attributed_to_a_role():
    with pytest.raises(ValueError, match=r"^groups=None") as caught:
        trace(aggregator=ff.aggregators.GIFAIR())
    assert not isinstance(caught.value, RoleError)


class Reweighted(ff.Selector):
    """Proposes weights that are only known after tracing."""

    factor: Number

    def select(self, key, state, context):
        return Cohort(jnp.arange(3), self.factor * THIRDS), state, {}


def fit(factor, **settings):
    round = Round(linear_model(), Reweighted(factor), Scaling(), ff.aggregators.Mean("selector"))
    return ff.fit(round, DATA, rounds=4, eval_every=2, train_loss=False, **settings).dataset


@pytest.mark.filterwarnings("ignore:selector. every round has the same")
def test_traced_weights_are_checked_after_the_round():
    for factor in (2.0, -1.0):
        shown = re.escape(str([round(factor / 3, 4)] * 3))
        with pytest.warns(UserWarning, match=rf"round 0, seed 0: the weights .* are {shown}: exp"):
            fit(factor)
    message = r"round 0 is not finite for seeds \[0\], because the weights of the cohort are \[nan"
    with pytest.raises(ff.DivergenceError, match=message):
        fit(np.float32(np.nan))


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("of __str__")


class NoTextError(ValueError):
    def __str__(self):
        return None  # pyright: ignore[reportReturnType]


class EndlessError(KeyError):
    def __str__(self):
        return str(self)


@pytest.mark.parametrize("kind", [UnprintableError, NoTextError, EndlessError])
def test_errors_whose_message_cannot_be_printed_are_named(kind):
    def fail(*_):
        raise kind

    for roles in ({"selector": Custom(select_fn=fail)}, {"solver": Solving(fail)}):
        assert_message(f"{kind.__name__}: its message cannot be printed", **roles)


class Calling(Scaling):
    """Calls a Python function in each local training."""

    callback: Any = None

    def solve(self, key, variables, client):
        result = super().solve(key, variables, client)
        return result._replace(loss=self.callback(result.loss))


def fail_in_callback(*_):
    raise KeyError("a\nmistake")


@pytest.mark.parametrize(
    "callback",
    [
        lambda loss: jax.pure_callback(fail_in_callback, loss, loss),
        lambda loss: io_callback(fail_in_callback, loss, loss, ordered=False),
        lambda loss: (jax.debug.callback(fail_in_callback, loss), loss)[1],
        lambda loss: jax.pure_callback(lambda loss: np.zeros((2, 7)) @ np.zeros(3), loss, loss),
    ],
    ids=["pure", "io", "debug", "numpy"],
)
@pytest.mark.filterwarnings("ignore:selector. every round has the same")
def test_the_line_of_a_callback_that_fails_is_named(callback, caplog):
    round = Round(linear_model(), Custom(), Calling(callback=callback), ff.aggregators.Mean())
    where = r"a callback of JAX calls, line \d+ of test_role_calls\.py: \w+Error: "
    with pytest.raises(RoleError, match=where) as caught:
        ff.fit(round, DATA, rounds=1)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert not caplog.records


def test_an_unknown_server_view_is_named():
    class Curious(Custom):
        server_view = "everything"

    message = "Curious.server_view='everything': expected one of 'aggregate', 'scalars', 'vectors'"
    with pytest.raises(ValueError, match=message):
        Round(linear_model(), Curious(), Scaling(), ff.aggregators.Mean())
