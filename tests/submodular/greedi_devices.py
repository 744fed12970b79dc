"""Runs ``greedi`` on eight devices and on three: a program that a test runs by itself.

Prints for each of two cases whether the result equals that of one device.
"""

import json

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_fair import submodular as sm

# Whole numbers, so that sums are exact.
SIMILARITY = np.random.default_rng(0).integers(0, 20, (9, 21)).astype(np.float32)


def main():
    devices = np.array(jax.devices())
    cases = (
        (5, None, Mesh(devices.reshape(2, 4), ("rows", "columns"))),
        (19, jax.random.key(1), Mesh(devices[:3], ("clients",))),
    )
    for parts, key, mesh in cases:

        def chosen(similarity, mesh, parts=parts, key=key):
            return sm.greedi(sm.FacilityLocation(similarity), 4, parts, key=key, mesh=mesh)

        compiled = jax.jit(chosen, static_argnums=1)
        one, many = jax.device_get((compiled(SIMILARITY, None), compiled(SIMILARITY, mesh)))
        same = all(map(np.array_equal, one, many))
        print(json.dumps({"devices": mesh.size, "parts": parts, "same": same}))


if __name__ == "__main__":
    main()
