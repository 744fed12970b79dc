"""Costs of a compiled program: those of its instructions, each as often as it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce
from typing import NamedTuple

from experiments.benchmarks.accelerators.instructions import (
    Computation,
    Instruction,
    bytes_of,
    computations_of,
    flops_of,
)

__all__ = ["Cost", "Loop", "Operation", "Program", "read_program"]

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ORIGIN = re.compile(r'op_name="([^"]*)"')
_WHILE = re.compile(r"condition=%([\w.\-]+), body=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TWO_BRANCHES = re.compile(r"(?:true|false)_computation=%([\w.\-]+)")
_CALL = re.compile(r"to_apply=%([\w.\-]+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_LIMIT = re.compile(r"s32\[\]\S* constant\((\d+)\)")


class Cost(NamedTuple):
    """The cost of instructions.

    Attributes:
        cycles: Estimate of a TPU's compiler; 0 for other devices.
        flops: Floating-point operations in products.
        fp32_flops: Those in the precision of float32.
        bytes: Bytes moved from and to device memory.
        kernels: Instructions that the device starts sequentially.
        collectives: Those that wait for other devices.
        collective_bytes: Bytes of their outputs.
    """

    cycles: float = 0
    flops: float = 0
    fp32_flops: float = 0
    bytes: float = 0
    kernels: float = 0
    collectives: float = 0
    collective_bytes: float = 0

    def times(self, factor: float) -> Cost:
        """Returns the multiplied cost."""
        return Cost(*(value * factor for value in self))

    def plus(self, other: Cost) -> Cost:
        """Returns the sum of both costs."""
        return Cost(*map(sum, zip(self, other, strict=True)))


class Operation(NamedTuple):
    """An instruction that takes time: its cost, how often it runs, its text and its origin."""

    cost: Cost
    runs: float
    text: str
    origin: str


class Loop(NamedTuple):
    """A loop of a program: the trips and cost of one trip, and how often it is entered.

    A loop whose trip count is not ``known`` counts as one trip.
    """

    trip_count: float
    known: bool
    cost: Cost
    runs: float
    origin: str


class Program(NamedTuple):
    """The costs of a compiled program, its loops (outer ones first) and its operations."""

    cost: Cost
    loops: list[Loop]
    operations: list[Operation]


def read_program(
    text: str, trip_count_fn: Callable[[str], float | None] = lambda origin: None
) -> Program:
    """Reads ``compiled.as_text()``; conditionals count with their most expensive branch.

    ``trip_count_fn`` maps the origin of a loop whose length the program does not contain to its
    trip count, or None.
    """
    computations = computations_of(text)

    @cache
    def operations_of(name: str) -> list[Operation]:
        work = (one for one in computations[name].instructions.values() if one.is_work)
        return [Operation(_cost(one), 1, one.text, _origin(one)) for one in work]

    @cache
    def called_by(name: str) -> list[_Called]:
        return list(_called(computations, name, cost, trip_count_fn))

    @cache
    def cost(name: str) -> Cost:
        direct = [operation.cost for operation in operations_of(name)]
        indirect = [cost(called.name).times(called.runs) for called in called_by(name)]
        return reduce(Cost.plus, direct + indirect, Cost())

    loops: list[Loop] = []
    operations: list[Operation] = []

    def visit(name: str, runs: float) -> None:
        operations.extend(operation._replace(runs=runs) for operation in operations_of(name))
        for called in called_by(name):
            if called.is_loop:
                loops.append(
                    Loop(called.runs, called.known, cost(called.name), runs, called.origin)
                )
            visit(called.name, runs * called.runs)

    entry = next(name for name, one in computations.items() if one.is_entry)
    visit(entry, 1)
    return Program(cost(entry), loops, operations)


class _Called(NamedTuple):
    """A computation that another one runs."""

    name: str
    runs: float
    is_loop: bool = False
    known: bool = True
    origin: str = ""


def _cost(instruction: Instruction) -> Cost:
    """Returns the cost of an instruction without the computations that it runs."""
    cycles = _CYCLES.search(instruction.text)
    flops, fp32_flops = flops_of(instruction)
    waits = instruction.is_collective
    return Cost(
        cycles=int(cycles[1]) if cycles else 0,
        flops=flops,
        fp32_flops=fp32_flops,
        bytes=bytes_of(instruction),
        kernels=1,
        collectives=int(waits),
        collective_bytes=sum(shape.bytes for shape in instruction.results) if waits else 0,
    )


def _called(
    computations: Mapping[str, Computation],
    name: str,
    cost: Callable[[str], Cost],
    trip_count_fn: Callable[[str], float | None],
) -> Iterator[_Called]:
    """Yields the computations that a computation runs."""
    for one in computations[name].instructions.values():
        if one.kind == "while" and (match := _WHILE.search(one.text)):
            condition, body = match.groups()
            count = _trip_count(one, computations[condition])
            count = count or trip_count_fn(_origin(one))
            yield _Called(body, count or 1, True, count is not None, _origin(one))
        elif one.kind == "conditional":
            listed = _BRANCHES.search(one.text)
            branches = _TWO_BRANCHES.findall(one.text)
            if listed:
                branches = re.findall(r"%([\w.\-]+)", listed[1])
            # The compiler of a TPU estimates cycles, others do not.
            yield _Called(
                max(branches, key=lambda one: (cost(one).cycles, cost(one).bytes, cost(one).flops)),
                1,
            )
        elif one.kind == "call" and (match := _CALL.search(one.text)):
            yield _Called(match[1], 1)


def _trip_count(loop: Instruction, condition: Computation) -> int | None:
    """Returns the trip count of a loop if the program contains it."""
    if stated := _TRIP_COUNT.search(loop.text):
        return int(stated[1])
    fusions = [one.fusion for one in condition.instructions.values()]
    instructions = [
        one for part in (condition, *fusions) if part for one in part.instructions.values()
    ]
    text = "\n".join(one.text for one in instructions)
    limits = set(_LIMIT.findall(text))
    # A loop that may end before its limit has an `and`.
    counts = "direction=LT" in text and not any(one.kind == "and" for one in instructions)
    return int(limits.pop()) if len(limits) == 1 and counts else None


def _origin(instruction: Instruction) -> str:
    match = _ORIGIN.search(instruction.text)
    return match[1] if match else ""
