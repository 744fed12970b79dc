"""Reads the text of a compiled program: what its parts cost, each as often as it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Loop", "Operation", "Program", "read"]

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ORIGIN = re.compile(r'op_name="([^"]*)"')
_WHILE = re.compile(r" while\(.*condition=%([\w.\-]+), body=%([\w.\-]+)")
_BRANCHES = re.compile(r" conditional\(.*branch_computations=\{([^}]*)\}")
_CALL = re.compile(r" call\(.*to_apply=%([\w.\-]+)")
_HEAD = re.compile(r"^(ENTRY )?%([\w.\-]+) \(", re.MULTILINE)
_LIMIT = re.compile(r"s32\[\]\S* constant\((\d+)\)")


class Operation(NamedTuple):
    """One operation of a program.

    Attributes:
        cycles: What a TPU's compiler estimates for it, each time.
        runs: How often it runs.
        text: Its name, type and operands.
        origin: What it was traced from.
    """

    cycles: int
    runs: int
    text: str
    origin: str


class Loop(NamedTuple):
    """A loop of a program.

    Attributes:
        trips: How often it goes round, each time; 1 where the program does not say.
        known: Whether the program says so.
        cycles: Of one trip, with all loops within it.
        runs: How often the loop is entered.
    """

    trips: int
    known: bool
    cycles: int
    runs: int


class Program(NamedTuple):
    """What a compiled program costs.

    Attributes:
        cycles: Of all of it.
        loops: All loops, outer ones first.
        operations: All operations that have an estimate.
    """

    cycles: int
    loops: list[Loop]
    operations: list[Operation]


def read(text: str) -> Program:
    """Reads a compiled program, ``compiled.as_text()``.

    Of a conditional the dearest branch counts.

    Args:
        text: The program.

    Returns:
        Its costs; no operations and zero cycles where the compiler estimates none.

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
        >>> program.cycles, program.loops[0].trips
        (60, 3)
    """
    heads = list(_HEAD.finditer(text))
    stops = [head.start() for head in heads[1:]] + [len(text)]
    parts = {head[2]: text[head.end() : stop] for head, stop in zip(heads, stops, strict=True)}
    entry = next(head[2] for head in heads if head[1])
    costs: dict[str, int] = {}

    def cost(name: str) -> int:
        if name not in costs:
            own = sum(int(cycles) for cycles in _CYCLES.findall(parts[name]))
            within = sum(runs * cost(part) for part, runs, _ in _within(parts, name, cost))
            costs[name] = own + within
        return costs[name]

    loops: list[Loop] = []
    operations: list[Operation] = []

    def visit(name: str, runs: int) -> None:
        for line in parts[name].splitlines():
            if cycles := _CYCLES.search(line):
                origin = _ORIGIN.search(line)
                operations.append(
                    Operation(int(cycles[1]), runs, line.strip(), origin[1] if origin else "")
                )
        for part, trips, known in _within(parts, name, cost):
            if known is not None:
                loops.append(Loop(trips, known, cost(part), runs))
            visit(part, runs * trips)

    visit(entry, 1)
    return Program(cost(entry), loops, operations)


def _within(parts, name, cost) -> Iterator[tuple[str, int, bool | None]]:
    """Parts that a part runs, how often, and of loops whether that is known."""
    for line in parts[name].splitlines():
        if found := _WHILE.search(line):
            limits = set(_LIMIT.findall(parts[found[1]]))
            known = len(limits) == 1 and "direction=LT" in parts[found[1]]
            yield found[2], int(limits.pop()) if known else 1, known
        elif found := _BRANCHES.search(line):
            branches = re.findall(r"%([\w.\-]+)", found[1])
            yield max(branches, key=cost), 1, None
        elif found := _CALL.search(line):
            yield found[1], 1, None
