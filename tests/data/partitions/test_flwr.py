"""Partitioners of flwr-datasets: a stand-in with their interface, and the library if installed."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_fair import data
from fedjax_fair.data.partitions.flwr import as_partitioner

LABELS = np.arange(60) % 3
WRITERS = np.arange(60) % 7


class Table(dict):
    """The part of a data set's interface that partitioners use."""

    from_dict = classmethod(
        lambda cls, table: cls({name: np.asarray(table[name]) for name in table})
    )

    def select(self, chosen):
        return Table({name: values[chosen] for name, values in self.items()})


class ByColumn:
    """Written like those of flwr-datasets: the data set is set once, and then read."""

    def __init__(self, column, num_partitions=3, empty=None):
        self.column, self.num_partitions, self.empty = column, num_partitions, empty
        self._dataset = None

    @property
    def dataset(self):
        if self._dataset is None:
            raise AttributeError("assign the dataset first")
        return self._dataset

    @dataset.setter
    def dataset(self, value):
        if self._dataset is not None:
            raise Exception("assigned only once")
        self._dataset = value

    def load_partition(self, partition_id):
        value = -1 if partition_id == self.empty else partition_id
        return self.dataset.select(self.dataset[self.column] == value)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=Table))


@pytest.mark.usefixtures("tables")
def test_clients_have_the_examples_that_the_partitioner_gives_them():
    by_label = ByColumn("label")
    for seed in (0, 1):  # Its data set can be set once, so every split uses a copy.
        partition = as_partitioner(by_label).split(LABELS, seed)
        assert [indices.tolist() for indices in partition.client_indices] == [
            np.flatnonzero(label == LABELS).tolist() for label in range(3)
        ]
    by_writer = as_partitioner(ByColumn("writer")).split(LABELS, 0, writer=WRITERS, image=[[0]])
    np.testing.assert_array_equal(by_writer.unassigned, np.flatnonzero(WRITERS > 2))
    dataset = data.load("digits", ByColumn("label", 10))
    assert dataset.num_clients == 10
    assert not dataset.label_skew_only
    iid = data.iid(3)
    assert as_partitioner(iid) is iid


@pytest.mark.usefixtures("tables", "as_users_call")
def test_errors_of_the_partitioner_are_reported():
    message = r"ByColumn cannot split examples with the columns label \('writer'\)"
    with pytest.raises(ValueError, match=message):
        as_partitioner(ByColumn("writer")).split(LABELS, 0)
    used = ByColumn("label")
    used.dataset = Table()
    with pytest.raises(ValueError, match="assigned"):
        as_partitioner(used).split(LABELS, 0)
    with pytest.raises(ValueError, match="ByColumn"):
        as_partitioner(ByColumn("label", empty=1)).split(LABELS, 0)
    with pytest.raises(ValueError, match="partition"):
        data.load("digits", 7)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Of pyarrow.
def test_partitioners_of_the_installed_library():
    flwr = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    settings = {"partition_by": "label", "alpha": 0.5}
    theirs = flwr.DirichletPartitioner(10, **settings, self_balancing=False, seed=3)
    labels = np.arange(1442) % 10
    partition = as_partitioner(theirs).split(labels, 0)
    expected = data.dirichlet(10, 0.5).split(labels, 3)
    np.testing.assert_array_equal(partition.order, expected.order)
    np.testing.assert_array_equal(partition.sizes, expected.sizes)
    iid = as_partitioner(flwr.IidPartitioner(7)).split(labels, 0)
    assert set(iid.sizes.tolist()) == {206}
    natural = as_partitioner(flwr.NaturalIdPartitioner(partition_by="writer"))
    assert natural.split(LABELS, 0, writer=WRITERS).sizes.tolist() == np.bincount(WRITERS).tolist()
    sizes = as_partitioner(flwr.LinearPartitioner(5)).split(labels, 0).sizes
    assert (np.diff(sizes) > 0).all()
    assert data.load("digits", theirs).train.sizes.sum() == 1442
