"""Facility location with apricot-select; run by its own Python.

A request names a similarity matrix (a ``.npy`` file, or ``.npz`` of a sparse one), ``k`` and the
optimizer. Answers with the seconds of the selection alone, those of ``fit``, and the items.
"""

import json
import sys
import time

import numpy as np
from apricot import FacilityLocationSelection
from apricot.optimizers import LazyGreedy, NaiveGreedy, TwoStageGreedy
from scipy import sparse

spent = {}


def timed(optimizer):
    """Makes an optimizer report how long it selects, apart from building its kernels."""
    select = optimizer.select

    def measured(self, *arguments, **options):
        start = time.perf_counter()
        result = select(self, *arguments, **options)
        spent["seconds"] = time.perf_counter() - start
        return result

    optimizer.select = measured


for kind in (NaiveGreedy, LazyGreedy, TwoStageGreedy):
    timed(kind)
matrices = {}
for line in sys.stdin:
    request = json.loads(line)
    path = request["matrix"]
    if path not in matrices:
        thin = path.endswith(".npz")  # The items are the rows of a sparse matrix.
        matrices = {path: sparse.load_npz(path).T.tocsr() if thin else np.load(path)}
    start = time.perf_counter()
    model = FacilityLocationSelection(
        request["k"], metric="precomputed", optimizer=request["optimizer"]
    ).fit(matrices[path])
    fit = time.perf_counter() - start
    items = [int(item) for item in model.ranking]
    print(json.dumps({"seconds": spent["seconds"], "fit": fit, "items": items}), flush=True)
