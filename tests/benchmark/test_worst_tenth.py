"""The worst tenth of clients is rounded up, and leaves out clients without a value."""

import numpy as np
import pytest

from fedjax_fair.benchmark.measures import _worst


@pytest.mark.parametrize(
    ("clients", "missing", "counted"), [(5, 0, 1), (10, 0, 1), (11, 0, 2), (25, 5, 2), (25, 4, 3)]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_worst_tenth_is_rounded_up(clients, missing, counted, sign):
    values = np.random.default_rng(0).permuted(np.tile(np.arange(float(clients)), (2, 1)), axis=1)
    values[values < missing] = np.nan
    worst = np.arange(missing, clients)[:counted] if sign > 0 else np.arange(clients)[-counted:]
    np.testing.assert_allclose(_worst(values, sign), [worst.mean()] * 2)
