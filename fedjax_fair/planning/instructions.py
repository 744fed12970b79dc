"""Instructions of a compiled program (HLO text): their products, and the bytes they move."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "Computation",
    "Instruction",
    "Shape",
    "attribute",
    "bytes_of",
    "computations_of",
    "flops_of",
    "is_collective",
]

_HEAD = re.compile(r"^(ENTRY )?%([\w.\-]+) \(", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)')
_FULL_PRECISION = re.compile(r'operand_precision"?[=:][{\[]"?highest', re.IGNORECASE)
_BITS = re.compile(r"\d+")

# Instructions that only name or regroup values, or run computations.
_NO_WORK = re.compile(
    "after-all|bitcast|call|conditional|constant|get-tuple-element|parameter|partition-id|"
    "replica-id|tuple|while"
)
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
_LOOKUPS = {"dynamic-slice", "gather", "slice"}
_IN_PLACE = {*_LOOKUPS, "dynamic-update-slice"}


class Shape(NamedTuple):
    """An array: dimensions, bytes without padding, and whether it is in on-chip memory."""

    dims: tuple[int, ...]
    bytes: int
    on_chip: bool


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        name: Its name, unique in the program.
        kind: Its opcode, such as "fusion".
        results: Its outputs.
        operands: Names of its inputs.
        text: The complete line.
        is_root: Whether its output is that of the computation.
    """

    name: str
    kind: str
    results: tuple[Shape, ...]
    operands: tuple[str, ...]
    text: str
    is_root: bool

    @property
    def is_work(self) -> bool:
        """Whether the device executes it."""
        is_done = self.kind.endswith("-done")  # Its start counts.
        return not _NO_WORK.fullmatch(self.kind) and not is_done


class Computation(NamedTuple):
    """A computation of a program: its entry, the body of a loop, or a fusion."""

    instructions: Mapping[str, Instruction]
    is_entry: bool


def computations_of(text: str) -> dict[str, Computation]:
    """Returns all computations of ``compiled.as_text()`` by name.

    Examples:
        >>> computations = computations_of('''ENTRY %main (a: f32[8]) -> f32[8] {
        ...   %a = f32[8]{0} parameter(0)
        ...   ROOT %b = f32[8]{0} add(%a, %a)
        ... }''')
        >>> computations["main"].instructions["b"].operands
        ('a', 'a')
    """
    heads = list(_HEAD.finditer(text))
    stops = [head.start() for head in heads[1:]] + [len(text)]
    computations = {}
    for head, stop in zip(heads, stops, strict=True):
        instructions = {}
        for line in text[head.end() : stop].splitlines():
            if match := _INSTRUCTION.match(line):
                root, name, types, kind, rest = match.groups()
                operands = tuple(_NAME.findall(rest[: _end_of_operands(rest)]))
                results = tuple(map(_shape, _SHAPE.finditer(types)))
                if kind.endswith("-start") or 'custom_call_target="__cu' in rest:
                    results = results[:1]  # The others are passed on, or workspace.
                instructions[name] = Instruction(
                    name, kind, results, operands, line.strip(), root is not None
                )
        computations[head[2]] = Computation(instructions, head[1] is not None)
    return computations


def is_collective(instruction: Instruction) -> bool:
    """Returns whether an instruction waits for other devices."""
    return instruction.kind.startswith(_COLLECTIVES) and instruction.is_work


def bytes_of(
    instruction: Instruction, computation: Computation, computations: Mapping[str, Computation]
) -> int:
    """Returns the bytes that a working instruction moves from and to device memory.

    Of an array in which it only reads or replaces slices, the slices count.
    """
    fusion = computations.get(attribute(instruction, "calls"))
    moved = 0
    for index, operand in enumerate(instruction.operands):
        source = computation.instructions.get(operand)
        if source is not None:
            size = _off_chip(source.results)
            moved += min(size, _bytes_read(instruction, index, fusion, size))
    return moved + _bytes_written(instruction, computation, fusion)


def _bytes_read(instruction: Instruction, index: int, fusion: Computation | None, size: int) -> int:
    """Returns the bytes of an operand that are read."""
    if fusion is None:
        is_lookup = instruction.kind in _LOOKUPS and index == 0
        return _total(instruction.results) if is_lookup else size
    marker = f" parameter({index})"
    inner = fusion.instructions.values()
    parameter = next((one.name for one in inner if marker in one.text), None)
    readers = [one for one in inner if parameter in one.operands]
    if not readers or not all(
        one.kind in _IN_PLACE and one.operands[0] == parameter for one in readers
    ):
        return size
    return sum(0 if one.kind == "dynamic-update-slice" else _total(one.results) for one in readers)


def _bytes_written(
    instruction: Instruction, computation: Computation, fusion: Computation | None
) -> int:
    root, scope = instruction, computation
    if fusion is not None:
        root, scope = next(one for one in fusion.instructions.values() if one.is_root), fusion
    if root.kind == "dynamic-update-slice":
        update = scope.instructions.get(root.operands[1])
        if update is not None:
            return _total(update.results)
    return _off_chip(instruction.results)


def flops_of(
    instruction: Instruction,
    computation: Computation,
    computations: Mapping[str, Computation],
    *,
    fp32_only: bool = False,
) -> int:
    """Returns the multiplications and additions of matrix products and convolutions.

    Products with padding do not count. ``fp32_only`` counts products in the precision of float32,
    which devices reduce by default.
    """
    called = computations.get(attribute(instruction, "calls"))
    if called is not None:
        inner = called.instructions.values()
        return sum(flops_of(one, called, computations, fp32_only=fp32_only) for one in inner)
    if fp32_only and not _FULL_PRECISION.search(instruction.text):
        return 0
    if "dim_labels=" in instruction.text:
        return _flops_of_convolution(instruction, computation)
    contracted = _CONTRACTED.search(instruction.text)
    if contracted is None or instruction.operands[0] not in computation.instructions:
        return 0
    dims = computation.instructions[instruction.operands[0]].results[0].dims
    summed = [dims[int(axis)] for axis in re.findall(r"\d+", contracted[1])]
    return 2 * math.prod(instruction.results[0].dims) * math.prod(summed)


def _flops_of_convolution(instruction: Instruction, computation: Computation) -> int:
    labels = _DIM_LABELS.findall(instruction.text)[0]
    operands = [computation.instructions[name].results[0].dims for name in instruction.operands[:2]]
    result = instruction.results[0].dims
    # cuDNN gets the labels of the forward convolution for all three of its arrays.
    if "convBackwardInput" in instruction.text:
        images, kernel, output = result, operands[1], operands[0]
    elif "convBackwardFilter" in instruction.text:
        images, kernel, output = operands[0], result, operands[1]
    else:
        (images, kernel), output = operands, result
    images_by, kernel_by, output_by = (
        dict(zip(names, dims, strict=True))
        for names, dims in zip(labels, (images, kernel, output), strict=True)
    )
    count = 2 * output_by["b"] * output_by["f"] * kernel_by["i"]
    for axis in sorted(label for label in kernel_by if label.isdigit()):
        count *= _unpadded_pairs(
            instruction.text, int(axis), images_by[axis], kernel_by[axis], output_by[axis]
        )
    return count


def _unpadded_pairs(text: str, axis: int, images: int, kernel: int, output: int) -> int:
    """Returns pairs of output and kernel positions along an axis that read no padding."""
    window = _WINDOW.search(text)
    settings = dict(each.split("=") for each in window[1].split()) if window else {}

    def setting(name: str, default: str) -> str:
        return settings[name].split("x")[axis] if name in settings else default

    stride, kernel_dilation = int(setting("stride", "1")), int(setting("rhs_dilate", "1"))
    dilation, padding = int(setting("lhs_dilate", "1")), int(setting("pad", "0_0").split("_")[0])
    pairs = 0
    for kernel_position in range(kernel):
        for output_position in range(output):
            position = output_position * stride + kernel_position * kernel_dilation - padding
            pairs += position >= 0 and position % dilation == 0 and position // dilation < images
    return pairs


def attribute(instruction: Instruction, name: str) -> str:
    """Returns the computation of an attribute such as ``calls=%body``, or ""."""
    match = re.search(rf"\b{name}=%([\w.\-]+)", instruction.text)
    return match[1] if match else ""


def _shape(match: re.Match) -> Shape:
    dims = tuple(int(size) for size in match[2].split(",") if size)
    bits = _BITS.search(match[1])
    width = int(bits[0]) if bits else 8  # pred
    return Shape(dims, math.prod(dims) * width // 8, "S(1)" in (match[3] or ""))


def _total(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.bytes for shape in shapes)


def _off_chip(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.bytes for shape in shapes if not shape.on_chip)


def _end_of_operands(rest: str) -> int:
    """Returns the index of the parenthesis that closes the operands."""
    depth = 1
    for index, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return index
    return len(rest)
