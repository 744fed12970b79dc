"""The benchmark of a million clients, among few: its files can be read back."""

import jax
import numpy as np

from experiments.benchmarks import million


def test_a_federation_comes_back_from_its_files(tmp_path):
    made, kept = (million.federation(120, tmp_path) for _ in range(2))
    expected = jax.tree.leaves(million.make_federation(120))
    for found in (made, kept):
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(found), expected)


def test_a_line_of_the_table_is_measured(tmp_path):
    line = million.measure("fedavg", 120, tmp_path)
    assert tuple(line) == million.COLUMNS
    assert float(line["round_s"]) > 0
