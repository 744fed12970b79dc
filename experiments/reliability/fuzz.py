"""Hypothesis over configurations, partitioners and readers.

A trial has 100 cases of one kind, drawn by Hypothesis and determined by its number. Each case
must be rejected in one line with a name, or be valid. A row has the numbers of both, and the first
failure.
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
    """A kind of cases.

    Attributes:
        cases: Strategy of the cases.
        judge: ``judge(case) -> bool``: False if rejected as documented, True if valid; an exception
            is a failure.
    """

    cases: SearchStrategy[Any]
    judge: Callable[[Any], bool]


KINDS = {
    "configuration": Kind(fuzz_configurations.configurations(), fuzz_configurations.judge),
    "partition": Kind(fuzz_partitions.partitions(), fuzz_partitions.judge),
    **{name: Kind(fuzz_files.damaged(name), fuzz_files.judge) for name in READERS},
}


def trials(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the outcomes of ``count`` trials from number ``first`` on.

    Columns: ``trial``, ``kind``, ``executions``, ``rejected``, ``accepted``, the first ``failure``,
    ``passed``.
    """
    for number in range(first, first + count):
        name = list(KINDS)[number % len(KINDS)]
        counts, failure = execute(KINDS[name], EXECUTIONS, number)
        yield {
            "trial": number,
            "kind": name,
            "executions": counts.total(),
            "rejected": counts[False],
            "accepted": counts[True],
            "failure": failure,
            "passed": not failure,
        }


def execute(kind: Kind, executions: int, seed: int) -> tuple[Counter[bool | None], str]:
    """Judges random cases.

    Args:
        kind: Kind of the cases.
        executions: Number of cases.
        seed: Seed of Hypothesis.

    Returns:
        The numbers of rejected (False), accepted (True) and failed (None) cases, and the first
        failure with its exception.
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
