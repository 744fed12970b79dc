"""Instructions of a compiled program (HLO text): their products, and the bytes they move."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

__all__ = [
    "Computation", "Instruction", "Shape", "bytes_of", "computations_of", "flops_of",
]  # fmt: skip

_HEAD = re.compile(r"^(ENTRY )?%([\w.\-]+) \(", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"\bcalls=%([\w.\-]+)")
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
_IN_PLACE = {*_LOOKUPS, "dynamic-update-slice", "scatter"}


class Shape(NamedTuple):
    """An array: dimensions, bytes without padding, and whether it is in on-chip memory."""

    dims: tuple[int, ...]
    bytes: int
    on_chip: bool


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        name: Unique in the program.
        kind: Opcode, such as "fusion".
        results: Outputs.
        operands: Names of inputs.
        inputs: Their arrays; none of an unknown one.
        fusion: The computation of a fusion.
        text: The complete line.
        is_root: Whether its output is that of the computation.
    """

    name: str
    kind: str
    results: tuple[Shape, ...]
    operands: tuple[str, ...]
    inputs: tuple[tuple[Shape, ...], ...]
    fusion: Computation | None
    text: str
    is_root: bool

    @property
    def is_work(self) -> bool:
        """Whether the device executes it."""
        is_done = self.kind.endswith("-done")  # Its start counts.
        return not _NO_WORK.fullmatch(self.kind) and not is_done

    @property
    def is_collective(self) -> bool:
        """Whether it waits for other devices."""
        return self.kind.startswith(_COLLECTIVES) and self.is_work


class Computation(NamedTuple):
    """A computation of a program: its entry, the body of a loop, or a fusion."""

    instructions: Mapping[str, Instruction]
    is_entry: bool


def computations_of(text: str) -> dict[str, Computation]:
    """Returns all computations of ``compiled.as_text()`` by name."""
    heads = list(_HEAD.finditer(text))
    stops = [head.start() for head in heads[1:]] + [len(text)]
    computations: dict[str, Computation] = {}  # A fusion is in the text before its call.
    for head, stop in zip(heads, stops, strict=True):
        instructions: dict[str, Instruction] = {}
        for line in text[head.end() : stop].splitlines():
            if match := _INSTRUCTION.match(line):
                root, name, types, kind, rest = match.groups()
                operands = tuple(_NAME.findall(rest[: _end_of_operands(rest)]))
                inputs = (instructions.get(operand) for operand in operands)
                results = tuple(map(_shape, _SHAPE.finditer(types)))
                if kind.endswith("-start") or 'custom_call_target="__cu' in rest:
                    results = results[:1]  # The others are passed on, or workspace.
                called = _CALLS.search(rest)
                instructions[name] = Instruction(
                    name,
                    kind,
                    results,
                    operands,
                    tuple(one.results if one else () for one in inputs),
                    computations.get(called[1]) if called else None,
                    line.strip(),
                    root is not None,
                )
        computations[head[2]] = Computation(instructions, head[1] is not None)
    return computations


def bytes_of(instruction: Instruction) -> int:
    """Returns the bytes that a working instruction moves from and to device memory.

    Of an array in which it only reads or replaces slices, the slices count.
    """
    sizes = map(_off_chip, instruction.inputs)
    moved = sum(min(size, _bytes_read(instruction, i, size)) for i, size in enumerate(sizes))
    return moved + _bytes_written(instruction)


def _bytes_read(instruction: Instruction, index: int, size: int) -> int:
    """Returns the bytes of an operand that are read."""
    if instruction.fusion is None:
        in_place = instruction.kind in _IN_PLACE and index == 0
        return _slices_read(instruction) if in_place else size
    marker = f" parameter({index})"
    inner = instruction.fusion.instructions.values()
    parameter = next((one.name for one in inner if marker in one.text), None)
    readers = [one for one in inner if parameter in one.operands]
    if not readers or not all(
        one.kind in _IN_PLACE and one.operands[0] == parameter for one in readers
    ):
        return size
    return sum(map(_slices_read, readers))


def _slices_read(instruction: Instruction) -> int:
    """Returns the bytes that are read of the first operand, which is not read completely."""
    return _total(instruction.results) if instruction.kind in _LOOKUPS else 0


def _bytes_written(instruction: Instruction) -> int:
    root, fusion = instruction, instruction.fusion
    if fusion is not None:
        root = next(one for one in fusion.instructions.values() if one.is_root)
    # The operands are the array, a scatter's indices, and the new slices.
    slices = {"dynamic-update-slice": 1, "scatter": 2}.get(root.kind)
    if slices and root.inputs[slices]:
        return _total(root.inputs[slices])
    return _off_chip(instruction.results)


def flops_of(instruction: Instruction) -> tuple[int, int]:
    """Returns the multiplications and additions of matrix products and convolutions.

    Products with padding do not count. The second value counts products in the precision of
    float32, which devices reduce by default.
    """
    if instruction.fusion is not None:
        flops, fp32_flops = zip(
            *map(flops_of, instruction.fusion.instructions.values()), strict=True
        )
        return sum(flops), sum(fp32_flops)
    contracted = _CONTRACTED.search(instruction.text)
    flops = 0
    if "dim_labels=" in instruction.text:
        flops = _flops_of_convolution(instruction)
    elif contracted and instruction.inputs[0]:
        dims = instruction.inputs[0][0].dims
        summed = [dims[int(axis)] for axis in re.findall(r"\d+", contracted[1])]
        flops = 2 * math.prod(instruction.results[0].dims) * math.prod(summed)
    return flops, flops if _FULL_PRECISION.search(instruction.text) else 0


def _flops_of_convolution(instruction: Instruction) -> int:
    labels = _DIM_LABELS.findall(instruction.text)[0]
    operands = [shapes[0].dims for shapes in instruction.inputs[:2]]
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
    kernel_positions = np.arange(kernel)[:, None] * kernel_dilation
    position = kernel_positions + np.arange(output) * stride - padding
    is_read = (position >= 0) & (position % dilation == 0) & (position // dilation < images)
    return int(np.sum(is_read))


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
