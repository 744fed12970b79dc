"""Programs of the bench for accelerators."""

import jax
import pytest

from experiments.benchmarks.accelerators.choices import CHOICES
from experiments.benchmarks.accelerators.workloads import (
    FORMS,
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


@pytest.mark.parametrize("name", CHOICES)
def test_parts_of_a_choice_are_traced_from_shapes_alone(name):
    function, shapes = CHOICES[name]
    with tracing_for("tpu"):
        results = jax.eval_shape(function, *shapes)
    clients = int(name.rpartition("_")[2])
    expected = (10,) if name.startswith("greedy") else (clients, clients)
    assert jax.tree.leaves(results)[0].shape == expected


def test_forms_of_flax_have_the_parameters_of_ours():
    def variables(form):
        with tracing_for("tpu"):
            return program(WORKLOADS["w1"], form)[1].variables

    shapes = [jax.tree.map(lambda leaf: leaf.shape, variables(form)) for form in FORMS]
    assert [sorted(map(str, jax.tree.leaves(each))) for each in shapes[1:]] == [
        sorted(map(str, jax.tree.leaves(shapes[0])))
    ] * (len(FORMS) - 1)
