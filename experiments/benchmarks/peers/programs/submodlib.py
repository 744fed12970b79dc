"""Facility location with submodlib-py; run by its own Python.

A request names a similarity matrix (a ``.npy`` file), ``k`` and the optimizer. Answers with the
seconds of the selection alone, those of construction and selection, and the items.
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
        function = FacilityLocationFunction(
            n=matrix.shape[0], mode="dense", sijs=matrix, separate_rep=False
        )
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
