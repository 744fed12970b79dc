"""The benchmark of a million clients, among few: its files can be read back."""

from experiments.benchmarks import million


def test_a_line_of_the_table_is_measured(tmp_path):
    line = million.measure("fedavg", 120, tmp_path)
    assert tuple(line) == million.COLUMNS
    assert float(line["round_s"]) > 0
