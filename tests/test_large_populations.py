"""A round among a million clients touches few of them, unless its method needs all.

Rounds are traced, not compiled, on shapes alone.
"""

from collections import Counter

import jax
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr
from test_conformance import (
    AGGREGATORS,
    ASYNCHRONOUS,
    PAIRS,
    SELECTORS,
    model_of,
    roles_of,
    schedule_of,
)

from fedjax_fair import faults
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.rounds.round import Round

CLIENTS, EXAMPLES = 1_000_003, 2_000_003

ALL = {
    "all clients train": {"full", "agnostic"},
    "slots have distributions over all clients": {
        "clustered_by_size",
        "clustered_by_similarity",
    },
    "a mixture of all clients is projected": {"drfa"},
    "all clients are represented": {
        "divfl",
        "divfl, greedy and stale",
        "divfl, every other round",
        "divfl, sketched",
        "divfl, of a pool",
        "subtrunc",
        "subtrunc, of a pool",
        "unionfl",
        "unionfl, of a pool",
        "unionfl, by updates",
    },
    "all clients are scored": {"rotation", "oort", "fedcor", "fedcor, in one dimension"},
    "its set function is of all clients": {"submodular"},
}
"""Why a selector touches all clients."""
FEW = SELECTORS.keys() - set().union(*ALL.values())
ALL_OF_AGGREGATORS = {
    "the weights of all clients are normalized": {"aaggff", "aaggff, in a silo", "fedpw"},
    "updates of all clients are compared": {"fedfv", "fedheal", "fedmdfg", "fedlf"},
    "validation examples of all clients are predicted": {"fair_fate"},
}
"""Why an aggregator touches all clients."""


def federation():
    def array(*shape, dtype=np.int32):
        return jax.ShapeDtypeStruct(shape, dtype)

    def part():
        return ClientExamples(
            array(EXAMPLES, 4, dtype=np.float32),
            array(EXAMPLES),
            array(EXAMPLES),
            array(CLIENTS),
            array(CLIENTS),
            sensitive_features=array(EXAMPLES, 1),
        )

    names = (SensitiveFeature("sex", ("F", "M")),)
    parts = part(), part(), array(CLIENTS)
    return FederatedData(*parts, 3, "shapes", sensitive_names=names)


def operations(program):
    """All operations, including those of loops and inner functions."""
    for equation in program.eqns:
        parts = jax.tree.leaves(list(equation.params.values()))
        inner = [part for part in parts if isinstance(part, ClosedJaxpr | Jaxpr)]
        if equation.primitive.name.startswith("scatter") or not inner:
            yield equation
        else:
            for part in inner:
                yield from operations(part.jaxpr if isinstance(part, ClosedJaxpr) else part)


def touches_all(round):
    """Names of the operations of a round that have a result as large as the population."""
    data = federation()
    state = jax.eval_shape(round.init, jax.random.key(0), data)
    program = jax.make_jaxpr(round.step)(state, data).jaxpr
    large = Counter(
        equation.primitive.name
        for equation in operations(program)
        if any(result.aval.size >= CLIENTS for result in equation.outvars)
    )
    num_states = [leaf for leaf in jax.tree.leaves(state) if leaf.shape[:1] == (CLIENTS,)]
    return large, len(num_states)


SOLVER_OF = {aggregator: solver for solver, aggregator in PAIRS.items()}


def round_of(selector="uniform", aggregator="mean", **options):
    names = selector, SOLVER_OF.get(aggregator, "sgd"), aggregator
    roles = roles_of(names)
    options = {"schedule": schedule_of(roles[2], CLIENTS)} | options
    return Round(model_of(names), *roles, **options)


def assert_updates_in_place(operations_and_states):
    """States of all clients are updated in a few places, and no other array is large."""
    large, num_states = operations_and_states
    assert set(large) <= {"scatter", "scatter-add"}
    assert large.total() <= num_states


@pytest.mark.parametrize("selector", sorted(FEW))
def test_a_selector_touches_few_clients(selector):
    assert_updates_in_place(touches_all(round_of(selector)))


@pytest.mark.parametrize(
    "aggregator",
    sorted(AGGREGATORS.keys() - set().union({"mean"}, ASYNCHRONOUS, *ALL_OF_AGGREGATORS.values())),
)
def test_an_aggregator_touches_few_clients(aggregator):
    assert_updates_in_place(touches_all(round_of(aggregator=aggregator)))


@pytest.mark.parametrize("aggregator", ASYNCHRONOUS)
def test_an_asynchronous_aggregator_touches_few_clients(aggregator):
    """In addition to the schedule, which masks clients in training and sorts none."""
    round = round_of(aggregator=aggregator)
    large, num_states = touches_all(round)
    alone, _ = touches_all(round_of(schedule=round.schedule))
    assert not set(alone) & {"sort", "top_k", "random_bits"}
    assert_updates_in_place((large - alone, num_states - 1))  # One counts the participation.


def test_dropped_clients_are_those_of_the_cohort():
    assert_updates_in_place(touches_all(round_of(faults=faults.Dropout(0.2))))


def test_available_clients_are_counted_but_not_sorted():
    available = np.broadcast_to(np.array(True), (1, CLIENTS))
    for selector in ("uniform", "power_of_choice"):
        large, _ = touches_all(round_of(selector, faults=faults.Trace(available)))
        assert "cumsum" in large
        assert not set(large) & {"sort", "top_k", "random_bits"}, selector


def test_operations_on_all_clients_are_detected():
    large, num_states = touches_all(round_of("drfa"))
    assert {"sort", "cumsum"} <= set(large)
    assert large.total() > num_states


def test_every_exemption_is_of_a_selector():
    assert set().union(*ALL.values()) <= SELECTORS.keys()
    assert set().union(*ALL_OF_AGGREGATORS.values()) <= AGGREGATORS.keys()
