"""Partitioners with random settings, in and out of range, and random labels."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from experiments.reliability.values import check_named, values
from fedjax_fair import data
from fedjax_fair.app.settings.constructors import settings_of
from fedjax_fair.app.settings.registry import PARTITIONERS
from fedjax_fair.data.partitions.partitioner import Partition

__all__ = ["Case", "judge", "partitions"]

_MAX_CLASSES = 12
_CLUSTERS = st.sampled_from(sorted(data.PLANTED)) | st.lists(
    st.builds(
        data.Cluster,
        values(int),
        st.lists(st.integers(0, _MAX_CLASSES) | values(int), max_size=4),
        values(int),
    ),
    max_size=3,
)


class Case(NamedTuple):
    """A partitioner and labels.

    Attributes:
        name: Name of the partitioner on the command line.
        settings: Its settings.
        counts: Examples of each class.
        seed: Seed of the partition.
    """

    name: str
    settings: dict[str, Any]
    counts: tuple[int, ...]
    seed: int


_PARAMETERS = ("num_clients", "classes", "column")
"""Parameters that have another name as settings; each value of ``by`` is a column."""


@st.composite
def partitions(draw: st.DrawFn) -> Case:
    """Draws a partitioner that needs no column, its settings, and labels."""
    name = draw(st.sampled_from(sorted(PARTITIONERS.keys() - {"biased", "by_column", "natural"})))
    readable = settings_of(PARTITIONERS[name])
    given = {
        setting: draw(_CLUSTERS if setting == "clusters" else values(own.type))
        for setting, own in readable.items()
        if setting in ("clients", "clusters") or draw(st.booleans())
    }
    counts = draw(st.lists(st.integers(0, 60), min_size=1, max_size=_MAX_CLASSES))
    return Case(name, given, tuple(counts), draw(st.integers(0, 2**40)))


def judge(case: Case) -> bool:
    """Returns whether a valid partition was made, or False if the error has a name.

    Raises:
        AssertionError: Otherwise.
    """
    labels = np.repeat(np.arange(len(case.counts)), case.counts)
    labels = np.random.default_rng(case.seed).permutation(labels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            partitioner = PARTITIONERS[case.name](**case.settings)
            made, again = (partitioner.split(labels, seed=case.seed) for _ in range(2))
    except ValueError as error:
        words = [
            *settings_of(PARTITIONERS[case.name]),
            *_PARAMETERS,
            *data.Cluster._fields,
            r"class \d+",
        ]
        check_named(error, words)
        return False
    _check_partition(made, len(labels), _least(case, len(labels)))
    for one, other in zip(made, again, strict=True):
        np.testing.assert_array_equal(one, other)
    return True


def _check_partition(made: Partition, total: int, least: int) -> None:
    """Checks that every example has at most one owner, and every client enough examples."""
    owners = np.bincount(made.order, minlength=total)
    assert owners.max(initial=0) <= 1
    assert len(owners) == total
    assert np.array_equal(made.unassigned, np.flatnonzero(owners == 0))
    assert made.sizes.sum() == len(made.order)
    assert made.sizes.min() >= least, (made.sizes.min(), least)
    assert made.groups is None or len(made.groups) == len(made.sizes)


def _least(case: Case, total: int) -> int:
    """The documented minimum number of examples of a client."""
    given = {name: own.default for name, own in settings_of(PARTITIONERS[case.name]).items()}
    given |= case.settings
    if case.name == "iid":
        return total // given["clients"]
    if case.name == "shards":
        each = given["shards_per_client"]
        return total // (given["clients"] * each) * each
    if case.name == "classes_per_client":
        return given["classes_per_client"]
    return given.get("min_partition_size", 1)  # With ground-truth groups, one per class.
