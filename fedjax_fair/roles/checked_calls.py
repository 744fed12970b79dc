"""Calls of roles: errors name the role and the line, and results are checked while tracing.

Without these checks JAX would silently broadcast a wrong shape or cast a wrong dtype.
Values are checked where they are concrete; a traced one can only be checked after the round.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.roles import (
    Aggregation,
    Aggregator,
    Client,
    Cohort,
    Context,
    Faults,
    Info,
    LocalResult,
    Selector,
    Solver,
    Variables,
)
from fedjax_fair.roles.role_errors import RoleError, describe_method, explain_errors, parameters_of
from fedjax_fair.utils.tree import Tree

__all__ = [
    "MAX_WEIGHT_ERROR",
    "aggregate",
    "available",
    "broadcast",
    "call",
    "check_update",
    "init",
    "init_client",
    "observe",
    "personalize",
    "prepare",
    "select",
    "solve",
]

MAX_WEIGHT_ERROR = 1e-3
"""Largest distance from 1 of a sum of weights, which is far more than rounding errors."""

_MAX_SHOWN = 160


def call(role: Tree, method: str, *arguments: Any) -> Any:
    """Calls a method of a role.

    Raises:
        RoleError: If the method takes other arguments, or custom code raises an error.
    """
    place, function = _bind(role, method, *arguments)
    with explain_errors(place):
        return function(*arguments)


def _bind(role: Tree, method: str, *arguments: Any) -> tuple[str, Callable[..., Any]]:
    """Returns what names a method in errors, and the method, which takes these arguments."""
    place, function = describe_method(role, method), getattr(role, method)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        parameters = parameters_of(role, method)
        expected = "" if parameters is None else f": expected {method}({parameters})"
        raise RoleError(f"{place}: {error}{expected}.") from error
    return place, function


def select(
    selector: Selector, key: Key[Array, ""], state: PyTree, context: Context
) -> tuple[Cohort, PyTree, Info]:
    """Calls ``Selector.select``, converts client ids to int32, and checks the result.

    Raises:
        RoleError: As ``call``, or if the cohort, the state or the info is invalid.
    """
    place = describe_method(selector, "select")
    result = call(selector, "select", key, state, context)
    cohort, new_state, info = _check_triple(place, result, 0, Cohort, "(cohort, state, info)")
    cohort = _check_cohort(place, cohort, context.num_clients)
    _check_state(place, new_state, state)
    return cohort, new_state, _check_info(place, info, cohort.clients.size)


def available(
    fault: Faults, key: Key[Array, ""], round: Int[Array, ""], num_clients: int
) -> Bool[Array, " clients"]:
    """Calls ``Faults.available`` and checks that the result is a mask of all clients.

    Raises:
        RoleError: As ``call``, or if the result is no such mask.
    """
    mask = call(fault, "available", key, round, num_clients)
    array = _to_array(mask)
    if array is None or array.shape != (num_clients,) or array.dtype != bool:
        place = describe_method(fault, "available")
        raise RoleError(
            f"{place} returned {_shown(mask)}: expected bool[{num_clients}], the number of "
            "clients; return one value per client."
        )
    return array


def prepare(
    aggregator: Aggregator, state: PyTree, cohort: Cohort, context: Context
) -> tuple[Cohort, Float[Array, " cohort"] | None]:
    """Calls ``Aggregator.prepare``, and ``compute_weights`` if it is defined.

    Raises:
        RoleError: As ``call``, or if the cohort or the weights are invalid.
    """
    size = cohort.clients.size
    cohort = call(aggregator, "prepare", state, cohort, context)
    if not isinstance(cohort, Cohort) or np.shape(cohort.clients) != (size,):
        place = describe_method(aggregator, "prepare")
        raise RoleError(
            f"{place} returned {_shown(cohort)}: expected the cohort; return cohort._replace(...) "
            "with as many clients."
        )
    if aggregator.compute_weights is None:
        return cohort, None
    weights = call(aggregator, "compute_weights", state, cohort, context)
    return cohort, _check_weights(describe_method(aggregator, "compute_weights"), weights, size)


def broadcast(aggregator: Aggregator, state: PyTree, context: Context) -> dict[str, PyTree]:
    """Calls ``Aggregator.broadcast`` and checks that the result is a dict of arrays.

    Raises:
        RoleError: As ``call``, or if the result is invalid.
    """
    values = call(aggregator, "broadcast", state, context)
    _check_sends(describe_method(aggregator, "broadcast"), values)
    return values


def init_client(
    solver: Solver, key: Key[Array, ""], variables: Variables, client: Client
) -> PyTree:
    """Calls ``Solver.init`` and checks that the state consists of arrays.

    Raises:
        RoleError: As ``call``, or if the state has other leaves.
    """
    state = call(solver, "init", key, variables, client)
    _check_state(describe_method(solver, "init"), state)
    return jax.tree.map(jnp.asarray, state)


def personalize(
    solver: Solver, key: Key[Array, ""], variables: Variables, client: Client
) -> Variables:
    """Calls ``Solver.personalize`` and checks the result.

    Raises:
        RoleError: As ``call``, or if the result is not like the variables.
    """
    personalized = call(solver, "personalize", key, variables, client)
    place = f"{describe_method(solver, 'personalize')}: result"
    _check_same(place, personalized, variables, "as the variables")
    return personalized


def solve(solver: Solver, key: Key[Array, ""], variables: Variables, client: Client) -> LocalResult:
    """Calls ``Solver.solve`` and checks the result.

    Raises:
        RoleError: As ``call``, or if the update is not like the variables, the state not like that
            before, or the loss and steps are no scalars.
    """
    place, function = _bind(solver, "solve", key, variables, client)
    # Without a frame of `call`, because debuggers step through it for each solver.
    with explain_errors(place):
        result = function(key, variables, client)
    if not isinstance(result, LocalResult) or not isinstance(result.reports, dict):
        raise RoleError(
            f"{place} returned {_shown(result)}: expected LocalResult(update, loss, steps)."
        )
    check_update(solver, "solve", result.update, variables)
    _check_same(
        f"{place}: state", result.state, client.state, f"as from {describe_method(solver, 'init')}"
    )
    _check_sends(f"{place}: sends", result.sends)
    kinds = {"loss": (jnp.floating, "a float"), "steps": (jnp.integer, "an integer")}
    for name, (kind, expected) in kinds.items():
        value = _to_array(getattr(result, name))
        if value is None or value.shape or not jnp.issubdtype(value.dtype, kind):
            shown = _shown(getattr(result, name))
            raise RoleError(f"{place}: {name} is {shown}: expected {expected}.")
    return result


def aggregate(
    aggregator: Aggregator, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
) -> tuple[Variables, PyTree, Aggregation]:
    """Calls ``Aggregator.aggregate`` and checks the result.

    Raises:
        RoleError: As ``call``, or if the update is not like the variables, or the state, the
            weights or the info are invalid.
    """
    place, size = describe_method(aggregator, "aggregate"), cohort.clients.size
    result = call(aggregator, "aggregate", state, cohort, results, context)
    update, new_state, aggregation = _check_triple(
        place, result, 2, Aggregation, "(update, state, Aggregation(weights, info))"
    )
    check_update(aggregator, "aggregate", update, context.variables)
    _check_state(place, new_state, state)
    weights = _check_weights(place, aggregation.weights, size)
    info = _check_info(place, aggregation.info, size)
    return update, new_state, aggregation._replace(weights=weights, info=info)


def init(role: Selector | Aggregator, context: Context) -> PyTree:
    """Calls ``init`` of a role and checks that the state consists of arrays."""
    state = call(role, "init", context)
    _check_state(describe_method(role, "init"), state)
    return state


def observe(
    selector: Selector, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
) -> PyTree:
    """Calls ``Selector.observe`` and checks that the state keeps its structure."""
    new_state = call(selector, "observe", state, cohort, results, context)
    _check_state(describe_method(selector, "observe"), new_state, state)
    return new_state


def check_update(role: Tree, method: str, update: Variables, like: Variables) -> None:
    """Checks that the update from a role has structure, shapes and types of another tree."""
    _check_same(f"{describe_method(role, method)}: update", update, like, "as the variables")


def _check_weights(place: str, weights: Any, size: int) -> Float[Array, " cohort"]:
    array = _to_real(weights)
    if array is None or array.shape != (size,):
        raise RoleError(
            f"{place}: weights are {_shown(weights)}: expected real numbers [{size}]; return one "
            "weight per slot of the cohort."
        )
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.float32)


def _check_state(place: str, state: PyTree, before: PyTree = None) -> None:
    """Checks that a state consists of arrays, like the one before if it is given."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        array = _to_array(leaf)
        if array is None or not array.size:  # Checkpoints cannot hold empty arrays.
            name = jax.tree_util.keystr(path)
            raise RoleError(
                f"{place}: state{name} is {_shown(leaf)}: expected non-empty arrays; use () for no "
                "state."
            )
    if before is not None:
        _check_same(f"{place}: state", state, before, "as before the round")


def _check_sends(place: str, values: Any) -> None:
    """Checks that values are arrays by name."""
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise RoleError(
            f"{place} is {_shown(values)}: expected a dict of arrays by name; return {{}} to send "
            "nothing else."
        )
    _check_state(place, values)


def _check_triple(place: str, result: Any, index: int, kind: type, expected: str) -> Any:
    is_triple = isinstance(result, (tuple, list)) and len(result) == 3
    if is_triple and isinstance(result[index], kind):
        return result
    shown = _shown(result)
    if type(result) is tuple:
        shown = f"({', '.join(map(_shown, result))})"
    raise RoleError(f"{place} returned {shown}: expected {expected}.")


def _check_cohort(place: str, cohort: Cohort, num_clients: int) -> Cohort:
    clients = _to_array(cohort.clients)
    is_integer = clients is not None and jnp.issubdtype(clients.dtype, jnp.integer)
    if clients is None or not is_integer or clients.ndim != 1 or not clients.size:
        shown = _shown(cohort.clients)
        raise RoleError(
            f"{place}: clients are {shown}: expected integers [cohort]; return a vector of client "
            "ids."
        )
    weights = _check_weights(place, cohort.weights, clients.size)
    if not isinstance(cohort.clients, Tracer):
        ids = np.asarray(cohort.clients)
        invalid = ids[(ids < 0) | (ids >= num_clients)]
        if invalid.size:
            raise RoleError(
                f"{place}: the cohort names client {invalid[0]}: expected ids in [0, "
                f"{num_clients}); return ids below context.num_clients."
            )
    if not isinstance(cohort.weights, Tracer):
        values = np.asarray(cohort.weights, np.float64)
        # A sum of NaN is not near 1 either.
        if values.min() < 0 or not abs(values.sum() - 1) <= MAX_WEIGHT_ERROR:
            raise RoleError(
                f"{place}: weights={_short(values.tolist())}: expected numbers >= 0 that sum to 1; "
                "divide them by their sum."
            )
    return cohort._replace(clients=clients.astype(jnp.int32), weights=weights)


def _check_info(place: str, info: Any, size: int) -> Info:
    if not isinstance(info, dict):
        raise RoleError(
            f"{place}: info is {_shown(info)}: expected a dict of diagnostics by name; return {{}} "
            "for none."
        )
    for name, value in info.items():
        # It becomes part of the name of a netCDF variable.
        if not isinstance(name, str) or not re.fullmatch(r"[^/\x00-\x1f]*[^/\s]", name):
            raise RoleError(
                f"{place}: info has the name {name!r}: expected a string without '/'; choose "
                "another name."
            )
        array = _to_real(value)
        if array is None or array.shape not in ((), (size,)):
            raise RoleError(
                f"{place}: info[{name!r}] is {_shown(value)}: expected real numbers or booleans, a "
                f"scalar or [{size}], the cohort size; reduce or reshape it."
            )
    return {name: jnp.asarray(value) for name, value in info.items()}


def _check_same(what: str, actual: PyTree, expected: PyTree, reason: str) -> None:
    """Checks structure, shapes and types of a tree."""
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        raise RoleError(
            f"{what} is {_shown_tree(actual)}: expected {_shown_tree(expected)}, {reason}."
        )
    leaves = jax.tree_util.tree_leaves_with_path(actual)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(expected), strict=True):
        if _shown(leaf) != _shown(other):
            name = jax.tree_util.keystr(path)
            raise RoleError(f"{what}{name} is {_shown(leaf)}: expected {_shown(other)}, {reason}.")


def _to_array(value: Any) -> Any:
    """Returns an array; None for other objects."""
    try:
        return None if value is None else jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _to_real(value: Any) -> Any:
    """Returns an array of integers, floats or booleans; None for other objects."""
    array = _to_array(value)
    is_real = array is not None and (
        array.dtype == bool
        or (jnp.issubdtype(array.dtype, jnp.number) and not jnp.iscomplexobj(array))
    )
    return array if is_real else None


def _shown(value: Any) -> str:
    """Describes an array by type and shape, and other objects by their class."""
    if value is None or isinstance(value, str):
        return _short(value)
    array = None if isinstance(value, (tuple, list, dict)) else _to_array(value)
    return f"a {type(value).__name__}" if array is None else f"{array.dtype}{list(array.shape)}"


def _shown_tree(tree: PyTree) -> str:
    leaves, structure = jax.tree.flatten(tree)
    quoted = repr(jax.tree.unflatten(structure, [f"<{_shown(leaf)}>" for leaf in leaves]))
    return _short(re.sub(r"'<(.*?)>'", r"\1", quoted), quote=False)


def _short(value: Any, *, quote: bool = True) -> str:
    text = " ".join((repr(value) if quote else value).split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
