"""Reads the text of a compiled program: what its parts cost, each as often as it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from fedjax_fair.planning.instructions import (
    Instruction,
    Part,
    attribute,
    bytes_of,
    flops_of,
    is_collective,
    parts_of,
)

__all__ = ["Cost", "Loop", "Operation", "Program", "read"]

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ORIGIN = re.compile(r'op_name="([^"]*)"')
_WHILE = re.compile(r"condition=%([\w.\-]+), body=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TWO_BRANCHES = re.compile(r"(?:true|false)_computation=%([\w.\-]+)")
_CALL = re.compile(r"to_apply=%([\w.\-]+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_LIMIT = re.compile(r"s32\[\]\S* constant\((\d+)\)")


class Cost(NamedTuple):
    """What running something costs.

    Attributes:
        cycles: What a TPU's compiler estimates; 0 for other devices.
        flops: Floating-point operations in products.
        fp32_flops: Those of them that keep the precision of float32.
        bytes: Moved from and to the memory of the device.
        kernels: Instructions that the device starts, one after the other.
        collectives: Those of them that wait for other devices.
        collective_bytes: Bytes that they give.
    """

    cycles: float = 0
    flops: float = 0
    fp32_flops: float = 0
    bytes: float = 0
    kernels: float = 0
    collectives: float = 0
    collective_bytes: float = 0

    def times(self, runs: float) -> Cost:
        """The cost of that many times the same."""
        return Cost(*(each * runs for each in self))

    def plus(self, other: Cost) -> Cost:
        """The cost of both."""
        return Cost(*(one + another for one, another in zip(self, other, strict=True)))


class Operation(NamedTuple):
    """One instruction of a program that takes time.

    Attributes:
        cost: What it costs, each time.
        runs: How often it runs.
        text: Its name, type and operands.
        origin: What it was traced from.
    """

    cost: Cost
    runs: float
    text: str
    origin: str


class Loop(NamedTuple):
    """A loop of a program.

    Attributes:
        trip_count: How often it goes round, each time; 1 where it is not ``known``.
        known: Whether the program or ``trip_count_fn`` of ``read`` says so.
        cost: Of one trip, with all loops within it.
        runs: How often the loop is entered.
        origin: What it was traced from.
    """

    trip_count: float
    known: bool
    cost: Cost
    runs: float
    origin: str


class Program(NamedTuple):
    """What a compiled program costs.

    Attributes:
        cost: Of all of it.
        loops: All loops, outer ones first.
        operations: All instructions that take time.
    """

    cost: Cost
    loops: list[Loop]
    operations: list[Operation]


def read(text: str, trip_count_fn: Callable[[str], float | None] = lambda origin: None) -> Program:
    """Reads a compiled program, ``compiled.as_text()``.

    Of a conditional the dearest branch counts.

    Args:
        text: The program.
        trip_count_fn: From what a loop was traced from to how often it goes round, for loops whose length
            the program does not say; None where that is not known, and once is counted.

    Returns:
        Its costs; zero cycles where the compiler estimates none.

    Examples:
        >>> program = read('''HloModule example
        ...
        ... %body (a: s32[]) -> s32[] {
        ...   %b = s32[] add(%a), backend_config={"estimated_cycles":"20"}
        ... }
        ...
        ... %condition (a: s32[]) -> pred[] {
        ...   %c = s32[] constant(3)
        ...   ROOT %d = pred[] compare(%a, %c), direction=LT
        ... }
        ...
        ... ENTRY %main (a: s32[]) -> s32[] {
        ...   %e = s32[] while(%a), condition=%condition, body=%body
        ... }''')
        >>> program.cost.cycles, program.loops[0].trip_count
        (60, 3)
    """
    parts = parts_of(text)
    costs: dict[str, Cost] = {}
    alone = {name: _alone(part, parts) for name, part in parts.items()}

    def cost(name: str) -> Cost:
        if name not in costs:
            total = Cost()
            for own in alone[name].values():
                total = total.plus(own)
            for called in _called(parts, name, cost, trip_count_fn):
                total = total.plus(cost(called.name).times(called.runs))
            costs[name] = total
        return costs[name]

    loops: list[Loop] = []
    operations: list[Operation] = []

    def visit(name: str, runs: float) -> None:
        for instruction, own in zip(_work(parts[name]), alone[name].values(), strict=True):
            operations.append(Operation(own, runs, instruction.text, _origin(instruction)))
        for called in _called(parts, name, cost, trip_count_fn):
            if called.is_loop:
                loops.append(
                    Loop(called.runs, called.known, cost(called.name), runs, called.origin)
                )
            visit(called.name, runs * called.runs)

    entry = next(name for name, part in parts.items() if part.is_entry)
    visit(entry, 1)
    return Program(cost(entry), loops, operations)


class _Called(NamedTuple):
    """A part that another runs."""

    name: str
    runs: float
    is_loop: bool = False
    known: bool = True
    origin: str = ""


def _work(part: Part) -> Iterator[Instruction]:
    return (one for one in part.instructions.values() if one.is_work)


def _alone(part: Part, parts: Mapping[str, Part]) -> dict[str, Cost]:
    """The cost of each instruction of a part, without other parts that it runs."""
    found = {}
    for one in _work(part):
        cycles = _CYCLES.search(one.text)
        waits = is_collective(one)
        found[one.name] = Cost(
            cycles=int(cycles[1]) if cycles else 0,
            flops=flops_of(one, part, parts),
            fp32_flops=flops_of(one, part, parts, fp32_only=True),
            bytes=bytes_of(one, part, parts),
            kernels=1,
            collectives=int(waits),
            collective_bytes=sum(shape.bytes for shape in one.results) if waits else 0,
        )
    return found


def _called(
    parts: Mapping[str, Part],
    name: str,
    cost: Callable[[str], Cost],
    trip_count_fn: Callable[[str], float | None],
) -> Iterator[_Called]:
    """Parts that a part runs, and how often."""
    for one in parts[name].instructions.values():
        if one.kind == "while" and (found := _WHILE.search(one.text)):
            condition, body = found.groups()
            count = _trip_count(one, parts[condition], parts) or trip_count_fn(_origin(one))
            yield _Called(body, count or 1, True, count is not None, _origin(one))
        elif one.kind == "conditional":
            listed = _BRANCHES.search(one.text)
            branches = _TWO_BRANCHES.findall(one.text)
            if listed:
                branches = re.findall(r"%([\w.\-]+)", listed[1])
            yield _Called(max(branches, key=lambda branch: _weight(cost(branch))), 1)
        elif one.kind == "call" and (found := _CALL.search(one.text)):
            yield _Called(found[1], 1)


def _weight(cost: Cost) -> tuple[float, ...]:
    """By what branches are compared: cycles, where there are any."""
    return (cost.cycles, cost.bytes, cost.flops)


def _trip_count(loop: Instruction, condition: Part, parts: Mapping[str, Part]) -> int | None:
    """How often a loop goes round, where the program says so."""
    if stated := _TRIP_COUNT.search(loop.text):
        return int(stated[1])
    within = [parts.get(attribute(one, "calls")) for one in condition.instructions.values()]
    every = [one for part in (condition, *within) if part for one in part.instructions.values()]
    text = "\n".join(one.text for one in every)
    limits = set(_LIMIT.findall(text))
    # A loop that may end before its limit has an `and`.
    counts = "direction=LT" in text and not any(one.kind == "and" for one in every)
    return int(limits.pop()) if len(limits) == 1 and counts else None


def _origin(instruction: Instruction) -> str:
    found = _ORIGIN.search(instruction.text)
    return found[1] if found else ""
