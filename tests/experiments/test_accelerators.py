"""Programs of the bench for accelerators."""

import jax
import pytest

from experiments.benchmarks.accelerators.workloads import (
    ROUNDS,
    WORKLOADS,
    federation,
    program,
)
from fedjax_fair.numerics.target import tracing_for


# Larger populations have the same programs.
@pytest.mark.parametrize("name", [name for name in WORKLOADS if not name.endswith("1600")])
def test_programs_are_traced_from_shapes_alone(name):
    assert all(each.steps != ROUNDS for each in WORKLOADS.values())
    # Flax's norms promote bfloat16 to float32 without saying so, which strict arithmetic refuses.
    with tracing_for("tpu"), jax.numpy_dtype_promotion("standard"):
        function, values = program(WORKLOADS[name], "ours")
        shapes = jax.tree.leaves(jax.eval_shape(function, values, federation(WORKLOADS[name])))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(values))
    assert shapes
