"""Reads the instructions of a compiled program: what each computes, and what memory it touches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "Instruction",
    "Part",
    "Shape",
    "attribute",
    "bytes_of",
    "flops_of",
    "is_collective",
    "parts_of",
]

_HEAD = re.compile(r"^(ENTRY )?%([\w.\-]+) \(", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)')
_FULL = re.compile(r'operand_precision"?[=:][{\[]"?highest', re.IGNORECASE)
_BITS = re.compile(r"\d+")

# What only names or regroups values, and what others are called by.
_NOTHING = {
    "after-all",
    "bitcast",
    "call",
    "conditional",
    "constant",
    "get-tuple-element",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",
}
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")


class Shape(NamedTuple):
    """An array of a program.

    Attributes:
        sides: Its shape.
        bytes: All it takes without padding.
        on_chip: Whether it lies in the memory of a TPU's chip rather than beside it.
    """

    sides: tuple[int, ...]
    bytes: int
    on_chip: bool


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        name: Its name, unique in the program.
        kind: What it does, such as "fusion".
        results: What it gives.
        operands: The names of what it takes.
        text: All of it.
        is_root: Whether it is what its part of the program gives.
    """

    name: str
    kind: str
    results: tuple[Shape, ...]
    operands: tuple[str, ...]
    text: str
    is_root: bool

    @property
    def is_work(self) -> bool:
        """Whether a device does something for it."""
        done = self.kind.endswith("-done")  # Its start has been counted.
        return self.kind not in _NOTHING and not done


class Part(NamedTuple):
    """A computation of a program: its entry, the body of a loop, a fusion.

    Attributes:
        instructions: By name, in order.
        is_entry: Whether the program starts with it.
    """

    instructions: Mapping[str, Instruction]
    is_entry: bool


def parts_of(text: str) -> dict[str, Part]:
    """All computations of a compiled program by name.

    Args:
        text: ``compiled.as_text()``.

    Examples:
        >>> parts = parts_of('''ENTRY %main (a: f32[8]) -> f32[8] {
        ...   %a = f32[8]{0} parameter(0)
        ...   ROOT %b = f32[8]{0} add(%a, %a)
        ... }''')
        >>> parts["main"].instructions["b"].operands
        ('a', 'a')
    """
    heads = list(_HEAD.finditer(text))
    stops = [head.start() for head in heads[1:]] + [len(text)]
    found = {}
    for head, stop in zip(heads, stops, strict=True):
        own = {}
        for line in text[head.end() : stop].splitlines():
            if matched := _INSTRUCTION.match(line):
                root, name, types, kind, rest = matched.groups()
                operands = tuple(_NAME.findall(rest[: _closing(rest)]))
                results = _shapes(types)
                if kind.endswith("-start") or 'custom_call_target="__cu' in rest:
                    results = results[:1]  # Besides, arrays that are passed on, and workspace.
                own[name] = Instruction(
                    name, kind, results, operands, line.strip(), root is not None
                )
        found[head[2]] = Part(own, head[1] is not None)
    return found


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction waits for other devices."""
    return instruction.kind.startswith(_COLLECTIVES) and instruction.is_work


def bytes_of(instruction: Instruction, part: Part, parts: Mapping[str, Part]) -> int:
    """Bytes that an instruction moves from and to the memory of the device.

    Of an array in which it only looks rows up, or replaces some, those count.

    Args:
        instruction: One that ``is_work``.
        part: What it belongs to.
        parts: The whole program.
    """
    within = parts.get(attribute(instruction, "calls"))
    moved = 0
    for place, operand in enumerate(instruction.operands):
        given = part.instructions.get(operand)
        if given is not None:
            whole = _outside(given.results)
            moved += min(whole, _read(instruction, place, within, whole))
    return moved + _written(instruction, part, within)


def _read(instruction: Instruction, place: int, within: Part | None, whole: int) -> int:
    """Bytes of an operand that are read."""
    if within is None:
        looked_up = instruction.kind in _LOOKUPS and place == 0
        return _all(instruction.results) if looked_up else whole
    parameter = _parameter(within, place)
    readers = [one for one in within.instructions.values() if parameter in one.operands]
    if not readers or not all(
        one.kind in _IN_PLACE and one.operands[0] == parameter for one in readers
    ):
        return whole
    return sum(0 if one.kind == "dynamic-update-slice" else _all(one.results) for one in readers)


_LOOKUPS = {"dynamic-slice", "gather", "slice"}
_IN_PLACE = {*_LOOKUPS, "dynamic-update-slice"}


def _written(instruction: Instruction, part: Part, within: Part | None) -> int:
    if within is None:
        if instruction.kind == "dynamic-update-slice":
            return _all(part.instructions[instruction.operands[1]].results)
        return _outside(instruction.results)
    root = next(one for one in within.instructions.values() if one.is_root)
    if root.kind == "dynamic-update-slice":
        update = within.instructions.get(root.operands[1])
        return _outside(instruction.results) if update is None else _all(update.results)
    return _outside(instruction.results)


def _parameter(part: Part, place: int) -> str | None:
    marked = f" parameter({place})"
    return next((one.name for one in part.instructions.values() if marked in one.text), None)


def flops_of(
    instruction: Instruction, part: Part, parts: Mapping[str, Part], *, fp32_only: bool = False
) -> int:
    """Floating-point operations of the products within an instruction.

    Multiplications and sums of matrix products and convolutions, without what meets padding.

    Args:
        instruction: Any.
        part: What it belongs to.
        parts: The whole program.
        fp32_only: Whether only products count that keep the precision of float32, which a device rounds
            to fewer bits by default.
    """
    called = parts.get(attribute(instruction, "calls"))
    if called is not None:
        within = called.instructions.values()
        return sum(flops_of(one, called, parts, fp32_only=fp32_only) for one in within)
    if fp32_only and not _FULL.search(instruction.text):
        return 0
    if "dim_labels=" in instruction.text:
        return _of_convolution(instruction, part)
    contracted = _CONTRACTED.search(instruction.text)
    if contracted is None or instruction.operands[0] not in part.instructions:
        return 0
    sides = part.instructions[instruction.operands[0]].results[0].sides
    summed = [sides[int(axis)] for axis in re.findall(r"\d+", contracted[1])]
    return 2 * math.prod(instruction.results[0].sides) * math.prod(summed)


def _of_convolution(instruction: Instruction, part: Part) -> int:
    labels = _DIM_LABELS.findall(instruction.text)[0]
    given = [part.instructions[name].results[0].sides for name in instruction.operands[:2]]
    result = instruction.results[0].sides
    # A library is given the forward convolution whichever of its arrays it computes.
    if "convBackwardInput" in instruction.text:
        images, kernel, output = result, given[1], given[0]
    elif "convBackwardFilter" in instruction.text:
        images, kernel, output = given[0], result, given[1]
    else:
        (images, kernel), output = given, result
    by_label = [
        dict(zip(names, sides, strict=True))
        for names, sides in zip(labels, (images, kernel, output), strict=True)
    ]
    images_by, kernel_by, output_by = by_label
    count = 2 * output_by["b"] * output_by["f"] * kernel_by["i"]
    for axis in sorted(label for label in kernel_by if label.isdigit()):
        count *= _meetings(
            instruction.text, int(axis), images_by[axis], kernel_by[axis], output_by[axis]
        )
    return count


def _meetings(text: str, axis: int, images: int, kernel: int, output: int) -> int:
    """Places of the output times places of the kernel, along an axis, that meet no padding."""
    window = re.search(r"window=\{([^}]*)\}", text)
    settings = dict(each.split("=") for each in window[1].split()) if window else {}

    def of_axis(name: str, default: str) -> str:
        return settings[name].split("x")[axis] if name in settings else default

    stride, spread = int(of_axis("stride", "1")), int(of_axis("rhs_dilate", "1"))
    apart, before = int(of_axis("lhs_dilate", "1")), int(of_axis("pad", "0_0").split("_")[0])
    met = 0
    for tap in range(kernel):
        # Places o with 0 <= o * stride + tap * spread - before < ..., a multiple of ``apart``.
        for place in range(output):
            at = place * stride + tap * spread - before
            met += at >= 0 and at % apart == 0 and at // apart < images
    return met


def attribute(instruction: Instruction, name: str) -> str:
    """The name that follows another in an instruction, as in ``calls=%body``; "" if none does.

    Args:
        instruction: Any.
        name: Such as "calls".
    """
    found = re.search(rf"\b{name}=%([\w.\-]+)", instruction.text)
    return found[1] if found else ""


def _shapes(types: str) -> tuple[Shape, ...]:
    return tuple(map(_shape, _SHAPE.finditer(types)))


def _shape(found: re.Match) -> Shape:
    sides = tuple(int(side) for side in found[2].split(",") if side)
    bits = _BITS.search(found[1])
    width = int(bits[0]) if bits else 8  # pred
    return Shape(sides, math.prod(sides) * width // 8, "S(1)" in (found[3] or ""))


def _all(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.bytes for shape in shapes)


def _outside(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.bytes for shape in shapes if not shape.on_chip)


def _closing(rest: str) -> int:
    """Where the operands end."""
    depth = 1
    for place, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(rest)
