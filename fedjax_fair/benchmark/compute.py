"""Floating-point operations that a function executes, which depend on the kind of device only.

Operations are counted in the jaxpr. Where their number depends on values, such as in loops over the
examples of a client, the jaxpr is evaluated with a counter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import Array, Float

from fedjax_fair.utils.xla_options import known

__all__ = ["count_flops"]

_CPU_OPTIONS = known(
    {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_use_fusion_emitters": False,
    }
)
"""The function runs once, so that compilation takes most of the time."""


# Times depend on the machine and on what else runs. Counting takes 1 to 2 seconds per method, on
# the device that trains: on two CPU cores, `power_of_choice` with ResNet-18 took more than five
# minutes.
def count_flops(fn: Callable[..., Any], *arguments: Any) -> float:
    """Counts the floating-point operations in matrix products and convolutions of a function.

    A product of matrices ``[m, k]`` and ``[k, n]`` has ``2 m n k``.

    Args:
        fn: A function that JAX can trace.
        *arguments: Its arguments.

    Examples:
        >>> count_flops(jnp.dot, jnp.zeros((3, 5)), jnp.zeros((5, 2)))
        60.0
    """
    return _count(jax.make_jaxpr(fn)(*arguments), jax.tree.leaves(arguments))


def _count(jaxpr: core.ClosedJaxpr, leaves: list[Any]) -> float:
    fixed = _fixed(jaxpr.jaxpr)
    if not math.isnan(fixed):
        return fixed

    # What only affects the results is dead code.
    def count(leaves: list[Any]) -> Float[Array, ""]:
        return _evaluate(jaxpr.jaxpr, jaxpr.consts, leaves)[1]

    options = _CPU_OPTIONS if jax.default_backend() == "cpu" else None
    return float(jax.jit(count).lower(leaves).compile(options)(leaves))


def _fixed(jaxpr: core.Jaxpr) -> float:
    """Counts operations without values; NaN if they are needed."""
    return math.fsum(_fixed_of(equation) for equation in jaxpr.eqns)


def _fixed_of(equation: core.JaxprEqn) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        lhs = _shape(equation.invars[0])
        outputs = math.prod(_shape(equation.outvars[0]))
        return 2.0 * outputs * math.prod(lhs[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = _shape(equation.invars[1])
        outputs = math.prod(_shape(equation.outvars[0]))
        return 2.0 * outputs * math.prod(kernel) / kernel[params["dimension_numbers"].rhs_spec[0]]
    inner = [_fixed(jaxpr) for jaxpr in _inner(params.values())]
    if name == "scan":
        return params["length"] * math.fsum(inner)
    if name == "while":
        return math.nan if any(inner) else 0.0
    if name == "cond":
        return inner[0] if len(set(inner)) == 1 else math.nan
    return math.fsum(inner)


def _shape(value: Any) -> tuple[int, ...]:
    return value.aval.shape


def _inner(values: Iterable[Any]) -> Iterator[core.Jaxpr]:
    for value in values:
        if isinstance(value, core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inner(value)


def _evaluate(
    jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]
) -> tuple[list[Any], Any]:
    """Evaluates a jaxpr; returns its results and the number of operations."""
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))
    total: Any = jnp.float32(0)
    for equation in jaxpr.eqns:
        inputs = [v.val if isinstance(v, core.Literal) else values[v] for v in equation.invars]
        fixed = _fixed_of(equation)
        if math.isnan(fixed):
            outputs, count = _evaluate_equation(equation, inputs)
        else:
            outputs = _bind(equation, inputs)
            outputs, count = outputs if equation.primitive.multiple_results else [outputs], fixed
        values |= dict(zip(equation.outvars, outputs, strict=True))
        total += count
    return [v.val if isinstance(v, core.Literal) else values[v] for v in jaxpr.outvars], total


def _bind(equation: core.JaxprEqn, inputs: list[Any]) -> Any:
    found = equation.primitive.get_bind_params(equation.params)
    functions, params = found if isinstance(found, tuple) else ((), found)  # Before JAX 0.10.
    return equation.primitive.bind(*functions, *inputs, **params)


def _evaluate_equation(equation: core.JaxprEqn, inputs: list[Any]) -> tuple[Sequence[Any], Any]:
    """Evaluates a loop, conditional or call whose number of operations depends on values."""
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _scan(equation, inputs)
    if name == "while":
        return _while(params, inputs)
    if name == "cond":
        branches = [
            lambda *operands, branch=branch: _evaluate(branch.jaxpr, branch.consts, operands)
            for branch in params["branches"]
        ]
        return jax.lax.switch(inputs[0], branches, *inputs[1:])
    (called,) = [value for value in params.values() if any(_inner([value]))]
    consts = called.consts if isinstance(called, core.ClosedJaxpr) else ()
    return _evaluate(next(_inner([called])), consts, inputs)


def _scan(equation: core.JaxprEqn, inputs: list[Any]) -> tuple[Sequence[Any], Any]:
    params = equation.params
    body = params["jaxpr"]
    # The parameters that count constants and states differ between versions of JAX. Constants come
    # first, then states; both have the rank that they have in the body, stacked values one more.
    split = _num_unstacked(equation.invars, body.in_avals)
    num_consts = split - _num_unstacked(equation.outvars, body.out_avals)
    consts, carry = inputs[:num_consts], inputs[num_consts:split]

    def step(state: Any, xs: Any) -> Any:
        carry, total = state
        outputs, count = _evaluate(body.jaxpr, body.consts, [*consts, *carry, *xs])
        return (outputs[: len(carry)], total + count), outputs[len(carry) :]

    start = carry, jnp.float32(0)
    (carry, total), ys = jax.lax.scan(
        step, start, inputs[split:], params["length"], params["reverse"]
    )
    return [*carry, *ys], total


def _num_unstacked(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    ranks = [len(_shape(value)) for value in outside]
    return sum(rank == len(aval.shape) for rank, aval in zip(ranks, inside, strict=True))


def _while(params: dict[str, Any], inputs: list[Any]) -> tuple[Sequence[Any], Any]:
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    first, split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def unfinished(carry: Sequence[Any]) -> Any:
        arguments = [*inputs[:first], *carry]
        return _evaluate(condition.jaxpr, condition.consts, arguments)[0][0]

    def step(state: Any) -> Any:
        carry, total = state
        arguments = [*inputs[first:split], *carry]
        outputs, count = _evaluate(body.jaxpr, body.consts, arguments)
        # Batched loops end together; those that are done keep their values.
        goes_on = unfinished(carry)
        if goes_on.ndim:
            outputs = [_where(goes_on, new, old) for new, old in zip(outputs, carry, strict=True)]
        return outputs, total + count

    start = inputs[split:], jnp.float32(0)
    return jax.lax.while_loop(lambda state: jnp.any(unfinished(state[0])), step, start)


def _where(condition: Any, new: Any, old: Any) -> Any:
    shape = condition.shape + (1,) * (jnp.ndim(new) - condition.ndim)
    return jnp.where(condition.reshape(shape), new, old)
