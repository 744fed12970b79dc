"""What is read in the text of programs compiled for an accelerator."""

import jax
import pytest

from experiments.benchmarks.accelerators.reading import read
from experiments.benchmarks.accelerators.workloads import FORMS, ROUNDS, WORKLOADS, program
from fedjax_fair.numerics.target import tracing_for


def operation(name, cycles):
    return (
        f'  %{name} = f32[] add(%a), metadata={{op_name="jit(f)/{name}"}}, '
        f'backend_config={{"estimated_cycles":"{cycles}"}}'
    )


def part(name, *lines, entry=False):
    return "\n".join([f"{'ENTRY ' * entry}%{name} (a: f32[]) -> f32[] {{", *lines, "}"])


def condition(name, *limits, direction="LT"):
    constants = [f"  %constant.{i} = s32[]{{:T(128)}} constant({n})" for i, n in enumerate(limits)]
    compared = f"  ROOT %lt = pred[] compare(%i, %constant.0), direction={direction}"
    return part(name, *constants, compared)


def loop(name, body, condition):
    return f"  %{name} = f32[] while(%a), condition=%{condition}, body=%{body}"


TEXT = "\n\n".join(
    [
        "HloModule jit_f",
        part("step", operation("multiply", 7)),
        part("round", operation("draw", 5), loop("steps", "step", "four")),
        part("endless", operation("wait", 11)),
        part("seldom", operation("refresh", 1000)),
        part("often", operation("remember", 1)),
        condition("four", 4),
        condition("three", 3),
        condition("unknown"),
        part(
            "main",
            operation("copy", 100),
            loop("rounds", "round", "three"),
            loop("forever", "endless", "unknown"),
            "  %c = f32[] conditional(%p, %a, %a), branch_computations={%often, %seldom}",
            entry=True,
        ),
    ]
)


def test_loops_count_as_often_as_they_go_round_and_the_dearest_branch_counts():
    costs = read(TEXT)
    assert costs.cycles == 100 + 3 * (5 + 4 * 7) + 11 + 1000
    assert [(each.trips, each.known, each.cycles, each.runs) for each in costs.loops] == [
        (3, True, 33, 1),
        (4, True, 7, 3),
        (1, False, 11, 1),
    ]
    runs = {each.origin.removeprefix("jit(f)/"): each.runs for each in costs.operations}
    assert runs == {"copy": 1, "draw": 3, "multiply": 12, "wait": 1, "refresh": 1}


@pytest.mark.parametrize("name", WORKLOADS)
def test_programs_are_traced_from_shapes_alone(name):
    assert all(each.steps != ROUNDS for each in WORKLOADS.values())
    with tracing_for("tpu"):
        function, args = program(WORKLOADS[name], "ours")
        shapes = jax.tree.leaves(jax.eval_shape(function, *args))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    assert shapes


def test_forms_of_flax_have_the_parameters_of_ours():
    def variables(form):
        with tracing_for("tpu"):
            return program(WORKLOADS["w1"], form)[1][0].variables

    shapes = [jax.tree.map(lambda leaf: leaf.shape, variables(form)) for form in FORMS]
    assert [sorted(map(str, jax.tree.leaves(each))) for each in shapes[1:]] == [
        sorted(map(str, jax.tree.leaves(shapes[0])))
    ] * (len(FORMS) - 1)
