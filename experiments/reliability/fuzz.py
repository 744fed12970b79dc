"""Hypothesis over configurations, partitioners and readers.

A trial is a hundred executions of one kind. Hypothesis draws the cases from the trial's number, so
that it can be made again; each has to be refused in one line that names what is wrong, or to be
what it says. A row counts both, and has the first case that was neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

from experiments.reliability import fuzz_configurations, fuzz_files, fuzz_partitions
from experiments.reliability.readers import READERS

__all__ = ["KINDS", "Kind", "execute", "trials"]

EXECUTIONS = 100


class Kind(NamedTuple):
    """What is fuzzed.

    Attributes:
        cases: Draws a case.
        judge: ``judge(case) -> bool``: False if it is refused as it should be, True if it is what
            it says; anything that it raises is a broken promise.
    """

    cases: SearchStrategy[Any]
    judge: Callable[[Any], bool]


KINDS = {
    "configuration": Kind(fuzz_configurations.configurations(), fuzz_configurations.judge),
    "partition": Kind(fuzz_partitions.partitions(), fuzz_partitions.judge),
    **{name: Kind(fuzz_files.damaged(name), fuzz_files.judge) for name in READERS},
}


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """The outcomes of some trials; each is a draw from its own number.

    Args:
        count: How many.
        first: Number of the first.

    Yields:
        ``trial``, ``kind``, the numbers of ``executions``, of cases ``refused`` and ``accepted`` as
        they should be, the ``failure`` that came first, or nothing, and whether there was none.
    """
    for number in range(first, first + count):
        name = list(KINDS)[number % len(KINDS)]
        counts, failure = execute(KINDS[name], EXECUTIONS, number)
        yield {
            "trial": number,
            "kind": name,
            "executions": counts.total(),
            "refused": counts[False],
            "accepted": counts[True],
            "failure": failure,
            "kept": not failure,
        }


def execute(kind: Kind, executions: int, seed: int) -> tuple[Counter[bool | None], str]:
    """Draws cases and judges them.

    Args:
        kind: What is fuzzed.
        executions: How many cases.
        seed: What they follow from.

    Returns:
        How many were refused, accepted and neither (None), and the first of these with what became
        of it.
    """
    counts: Counter[bool | None] = Counter()
    failures = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=executions,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],  # type: ignore
    )
    @hypothesis.given(kind.cases)
    def each(case: Any) -> None:
        try:
            counts[kind.judge(case)] += 1
        except Exception as error:
            counts[None] += 1
            failures.append(f"{case!r}: {type(error).__name__}: {' '.join(str(error).split())}")

    each()
    return counts, failures[0] if failures else ""
