"""Bad arguments raise errors with their name, before compilation."""

import inspect
import re
from typing import get_type_hints

import docstring_parser
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.reliability.factories import (
    PUBLIC,
    TAKES_NUMBERS,
    bad_values,
    call_with,
    given,
)
from fedjax_fair import (
    aggregators,
    communication,
    data,
    faults,
    fit,
    models,
    schedules,
    selectors,
    server_optimizers,
    solvers,
)
from fedjax_fair import submodular as sets
from fedjax_fair.roles import Number
from fedjax_fair.rounds.round import Round
from fedjax_fair.utils import checks

FUNCTION = sets.Modular(np.ones(3, np.float32))
LABELS = np.arange(4) % 2


def error_of(function, name, value, folder):
    try:
        call_with(function, name, value, folder)
    except ValueError as error:
        return str(error)
    return "it was accepted"


@pytest.mark.parametrize(
    ("function", "name"),
    TAKES_NUMBERS,
    ids=[f"{function.__name__}-{name}" for function, name in TAKES_NUMBERS],
)
def test_bad_numbers_are_refused_by_name(function, name, as_users_call, tmp_path):
    for message, value in bad_values(function, name):
        assert re.search(rf"\b{name}\b", error_of(function, name, value, tmp_path)), message


INTERVAL = re.compile(r"in ``([\[(])(-?[\d.]+), (-?[\d.]+)([\])])``")
WITHOUT_EFFECT_AT_ZERO = {
    ("Asynchronous", "max_staleness"),
    ("ClientTimes", "device_class"),
    ("Krum", "byzantine"),
    ("PerFedAvg", "fine_tuning_steps"),
    ("custom", "check_sets"),
    ("synthetic", "base_size"),
}
"""Integers that may be 0, which their docstrings do not mention."""


def outside_of_the_documented_range(function, name):
    """Values next to the range in a docstring; 0 for integers of which it mentions neither."""
    params = docstring_parser.parse(inspect.getdoc(function)).params
    text = next((item.description for item in params if item.arg_name == name), "")
    text, annotation = " ".join(text.split()), str(inspect.signature(function).parameters[name])
    step = 0.1 if re.search(r"Number|float", annotation) else 1
    if interval := INTERVAL.search(text):
        low, high = map(float, interval.group(2, 3))
        return low - step * (interval[1] == "["), high + step * (interval[4] == "]")
    if bound := re.search(r"([<>])(=?) (-?\d+)\b", text):
        sign = 1 if bound[1] == "<" else -1
        return (int(bound[3]) + sign * step * bool(bound[2]),)
    is_exempt = name == "seed" or (function.__name__, name) in WITHOUT_EFFECT_AT_ZERO
    return () if step == 0.1 or is_exempt or re.search(r"\b0\b", text) else (0,)


RANGES = [
    (function, name, value)
    for function, name in TAKES_NUMBERS
    if function.__module__ != "fedjax_fair.training.fit"  # Its data is checked first.
    for value in outside_of_the_documented_range(function, name)
]


@pytest.mark.parametrize(
    ("function", "name", "value"),
    RANGES,
    ids=[f"{function.__name__}-{name}-{value}" for function, name, value in RANGES],
)
def test_documented_ranges_are_checked(function, name, value, as_users_call, tmp_path):
    assert re.search(rf"\b{name}\b", error_of(function, name, value, tmp_path))


def options_of(function):
    """Returns the parameters that have one of some strings."""
    try:
        hints = get_type_hints(function)
    except NameError:  # Types of optional packages are imported by type checkers only.
        return []
    return [name for name, hint in hints.items() if "Literal[" in str(hint) and name != "return"]


OPTIONS = [
    (function, name)
    for function in PUBLIC
    if callable(function) and function is not schedules.Schedule  # An interface.
    for name in options_of(function)
    if name in inspect.signature(function).parameters
]


@pytest.mark.parametrize(
    ("function", "name"),
    OPTIONS,
    ids=[f"{function.__name__}-{name}" for function, name in OPTIONS],
)
def test_unknown_options_are_refused_by_name(function, name, as_users_call, tmp_path):
    assert re.search(rf"\b{name}\b", error_of(function, name, "unknown", tmp_path))


MAY_BE_TRACED = [
    (function, name)
    for function, name in TAKES_NUMBERS
    if re.search(
        r"Number|Integer|Array", str(inspect.signature(function).parameters[name].annotation)
    )
]


@pytest.mark.parametrize(
    ("function", "name"),
    MAY_BE_TRACED,
    ids=[f"{function.__name__}-{name}" for function, name in MAY_BE_TRACED],
)
def test_numbers_that_only_enter_arithmetic_may_be_traced(function, name, tmp_path):
    is_integer = "Integer" in str(inspect.signature(function).parameters[name].annotation)

    def traced(value):
        call_with(function, name, value, tmp_path)
        return value

    for value in (
        (jnp.int32(1), jnp.int32(0)) if is_integer else (jnp.float32(0.5), jnp.float32(-1))
    ):
        jax.eval_shape(traced, value)


def test_a_number_may_be_a_python_a_numpy_or_a_jax_scalar(as_users_call):
    for number in (1, 1.0, np.float32(1), np.int64(1), np.array(1.0), jnp.float32(1)):
        selectors.SubTrunc(2, lam=number)
    for window in (2, np.int64(2), np.array(2), jnp.int32(2)):
        selectors.UnionFL(2, window=window)
    for size in (2, np.int64(2)):
        selectors.Uniform(size)


LARGEST, SMALLEST = "at most 3.402823e+38 in float32.", "at least 1.175494e-38 in float32."


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1e39, "clipping_norm=1e+39: expected a number > 0, with a magnitude of " + LARGEST),
        (np.float64(1e308), "clipping_norm=np.float64(1e+308): expected a number > 0, with "),
        (np.longdouble("1e400"), LARGEST),
        (1e-46, "clipping_norm=1e-46: expected a number > 0, with 0 or a magnitude of " + SMALLEST),
        (1e-40, SMALLEST),  # XLA rounds subnormal numbers to zero.
        (2**31, "clipping_norm=2147483648: expected a number > 0, with a magnitude of at most "),
        (np.int64(2**40), "a magnitude of at most 2147483647 or a float."),
        (10**400, "clipping_norm=2**1328...: expected a number > 0, with a magnitude of at most "),
        (np.uint8(1), "expected a number > 0, as a float or a signed integer."),
        (
            np.ma.array(1.0),
            "clipping_norm=masked_array(data=1., mask=False, fill_value=1e+20): exp",
        ),
        (np.ones((40, 3)), "clipping_norm=array([[1., 1., 1.], [1., 1., 1.], [1., 1., 1.],"),
        (np.bool_(True), "clipping_norm=np.True_: expected a number > 0."),
        (np.str_("1"), "clipping_norm=np.str_('1'): expected a number > 0."),
    ],
    ids=str,
)
def test_numbers_that_float32_cannot_hold_are_refused(value, message, as_users_call):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        communication.DifferentialPrivacy(value, 1.0)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [1 - 1e-9, np.float64(1 - 1e-9)])
def test_numbers_below_a_limit_stay_below_it_in_float32(value, as_users_call):
    with pytest.raises(ValueError, match="momentum="):
        solvers.SGD(0.1, 2, steps=1, momentum=value)


def test_custom_roles_need_no_checks_of_the_range():
    class Scaled(selectors.uniform.FixedSizeSelector):
        scale: Number = 1.0

        def select(self, key, state, context):
            raise NotImplementedError

    for value in (1e39, -1e39, 1e-46, np.float64(1e300)):
        with pytest.raises(ValueError, match=r"Scaled\.scale="):
            Scaled(2, scale=value)
    for value in (0.0, 1e38, -1e-37, np.inf, np.nan, jnp.float32(np.inf)):
        Scaled(2, scale=value)


@pytest.mark.parametrize("value", [10**400, 2**31])
def test_sizes_have_32_bits(value, as_users_call):
    with pytest.raises(ValueError, match="cohort_size="):
        selectors.Uniform(value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: selectors.UnionFL(2, window=1.5), "window="),
        (lambda: selectors.UnionFL(2, window=2**40), "window=1099511627776"),
        (lambda: selectors.Rotation(2, window=0.5), "window=0.5: expected an integer >= 0"),
        (lambda: selectors.Rotation(2, window=2**40), "window=1099511627776"),
        (lambda: selectors.DivFL(2, candidates="some"), "expected an integer >= 1 or 'auto'"),
        (
            lambda: selectors.DivFL(2, pool=3, num_reference_clients=0),
            "num_reference_clients",
        ),
        (
            lambda: selectors.SubTrunc(2, num_reference_clients=5),
            "num_reference_clients",
        ),
        (lambda: selectors.DivFL(2, gradients=[1]), "gradients="),
        (lambda: aggregators.Mean(np.array(["num_examples"])), "weights=array"),
        (lambda: solvers.SGD(0.1, 2, steps=2**31), "steps=2147483648"),
        (
            lambda: solvers.SGD(0.1, 2, steps=1, optimizer="adam"),
            "optimizer='adam'",
        ),
        (lambda: solvers.SGD(0.1, 2, steps=1, optimizer=optax.sgd(0.1)), "optimizer=Gradient"),
        (lambda: server_optimizers.Optax("adam", 0.1), "optimizer='adam'"),
        (lambda: server_optimizers.Optax(optax.adam(0.1), 0.1), "optimizer=Gradient"),
        (
            lambda: aggregators.WithServerOptimizer(aggregators.Mean(), optax.adam),
            "optimizer",
        ),
        (
            lambda: aggregators.WithServerOptimizer("mean", server_optimizers.FedAdam()),
            "inner",
        ),
        (lambda: selectors.Submodular(FUNCTION, 2), "set_function_fn="),
        (lambda: models.mlp(2, hidden=5), "hidden=5"),
        (lambda: models.mlp(2, hidden="20"), "hidden='20'"),
        (lambda: models.mlp(2, hidden=(3, 0)), r"hidden\[1\]=0"),
        (lambda: data.planted_clusters(5), "clusters=5"),
        (lambda: data.planted_clusters([5]), "expected each to be a data.Cluster, got 5"),
        (lambda: data.planted_clusters([data.Cluster(1, [0.5], 2)]), "classes="),
        (lambda: data.iid(2).split(LABELS, None), "seed=None"),
        (lambda: data.iid(2).split(LABELS, 1.5), "seed="),
        (lambda: sets.best_swap(FUNCTION, [0.5]), "items="),
        (lambda: faults.Byzantine([True, 2], "sign_flip"), "clients="),
        (
            lambda: faults.Byzantine([[0], [1]], "sign_flip"),
            "clients=",
        ),
        (
            lambda: faults.Byzantine(np.ma.array([0, 1], mask=[0, 1]), "sign_flip"),
            "clients=",
        ),
        (
            lambda: sets.greedy(FUNCTION, 1, initial_items=[1.5]),
            "initial_items=",
        ),
        (lambda: sets.facility_location_from_features(np.eye(2), [0.5]), r"items=\[0\.5\]"),
    ],
)
def test_messages_state_the_expected_values(call, message, as_users_call):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("seeds", [None, 3, (), "01", (0, 1.5), (0, True), (-1,), (2**32,), [[0]]])
def test_seeds_are_one_or_more_integers_of_32_bits(seeds):
    with pytest.raises(ValueError, match="seeds="):
        checks.seeds("seeds", seeds)


def test_seeds_repeat_only_if_allowed():
    with pytest.raises(ValueError, match="seeds"):
        checks.seeds("seeds", (1, 1))
    checks.seeds("seeds", (1, 1), different=False)
    checks.seeds("seeds", np.array([0, 2**32 - 1]))


ROLES = {name: given()[name] for name in ("model", "selector", "solver", "aggregator")}


@pytest.mark.parametrize("taken", [*ROLES, None])
@pytest.mark.parametrize("role", ROLES)
def test_roles_are_not_swapped(role, taken, as_users_call):
    if role == taken:
        Round(**ROLES)
        return
    other = selectors.Uniform if taken is None else ROLES[taken]
    kind = role.capitalize()
    with pytest.raises(ValueError, match=rf"{role} is a {type(other).__name__}: expected a {kind}"):
        Round(**ROLES | {role: other})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": ROLES["solver"]}, "method"),
        ({"data": np.ones((4, 2))}, "data"),
    ],
)
def test_fit_takes_a_round_and_a_federated_dataset(changed, message, federation, as_users_call):
    with pytest.raises(ValueError, match=message):
        fit(**{"method": given()["round"], "data": federation, "rounds": 1} | changed)
