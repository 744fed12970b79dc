"""Work of reading a table grows linearly with its columns."""

import sys

import numpy as np
import pandas as pd
import pytest

from fedjax_fair import data

KINDS = {
    "numbers": lambda number: np.arange(6.0 * number).reshape(6, number) % 7,
    "numbers with missing ones": lambda number: np.where(
        np.add.outer(np.arange(6), np.arange(number)) % 5, 1.5, np.nan
    ),
    "booleans": lambda number: np.arange(6 * number).reshape(6, number) % 3 > 0,
    "texts": lambda number: np.array(["a", "b", "c"])[np.arange(6 * number).reshape(6, number) % 3],
}


def count_calls(function):
    """Returns how many functions of Python and C a function calls."""
    count = 0

    def count_one(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_one)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def make(kind, number, source, tmp_path):
    frame = pd.DataFrame(KINDS[kind](number), columns=[f"c{i}" for i in range(number)])
    frame = pd.concat([frame, pd.DataFrame({"y": [0, 1] * 3, "cl": list("aabbcc")})], axis=1)
    if source == "file":
        frame.to_csv(frame_path := tmp_path / f"{number}.csv", index=False)
        return frame_path
    return frame


@pytest.mark.parametrize("source", ["table", "file"])
@pytest.mark.parametrize("kind", KINDS)
def test_work_is_linear_in_columns(kind, source, tmp_path):
    calls = []
    for number in (40, 40, 240, 440):  # The first one also imports modules.
        table = make(kind, number, source, tmp_path)
        options = {"label": "y", "client": "cl", "test": 0.0}
        calls.append(count_calls(lambda t=table, o=options: data.from_table(t, **o)))
    # As many calls for the second 200 columns as for the first: quadratic work has 1.9 times more.
    assert calls[3] - calls[2] < 1.15 * (calls[2] - calls[1])
    assert calls[2] > calls[1]
