"""Facility location with submodlib-py; run by its own Python.

A request names a similarity matrix (a ``.npy`` file), ``k`` and the optimizer. Items are columns;
unless they are also the rows, as in a square matrix, rows are the points represented. Answers with
the seconds of the selection alone, those of construction and selection, and the items.
"""

import json
import sys
import time

import numpy as np
from submodlib import FacilityLocationFunction

functions = {}
for line in sys.stdin:
    request = json.loads(line)
    path = request["matrix"]
    if path not in functions:
        matrix = np.load(path)
        start = time.perf_counter()
        rows, columns = matrix.shape
        square = rows == columns
        apart = {"separate_rep": False} if square else {"separate_rep": True, "n_rep": rows}
        function = FacilityLocationFunction(n=columns, mode="dense", sijs=matrix, **apart)
        functions = {path: (function, time.perf_counter() - start)}
    function, construction = functions[path]
    start = time.perf_counter()
    chosen = function.maximize(
        budget=request["k"],
        optimizer=request["optimizer"],
        stopIfZeroGain=False,
        stopIfNegativeGain=False,
        verbose=False,
        show_progress=False,
    )
    seconds = time.perf_counter() - start
    items = [int(item) for item, _ in chosen]
    print(
        json.dumps({"seconds": seconds, "fit": construction + seconds, "items": items}), flush=True
    )
