"""Costs of compiled programs against those of XLA."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.accelerators.costs import read_program
from fedjax_fair.numerics.products import product


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


def test_loops_count_with_their_trips_and_conditionals_with_the_dearest_branch():
    costs = read_program(TEXT)
    assert costs.cost.cycles == 100 + 3 * (5 + 4 * 7) + 11 + 1000
    assert [(each.trip_count, each.known, each.cost.cycles, each.runs) for each in costs.loops] == [
        (3, True, 33, 1),
        (4, True, 7, 3),
        (1, False, 11, 1),
    ]
    runs = {each.origin.removeprefix("jit(f)/"): each.runs for each in costs.operations}
    assert runs == {"copy": 1, "draw": 3, "multiply": 12, "wait": 1, "refresh": 1}


def test_a_loop_that_may_end_early_has_no_known_trip_count():
    searching = part(
        "searching",
        "  %limit = s32[]{:T(128)} constant(300)",
        "  %lt = pred[] compare(%i, %limit), direction=LT",
        "  ROOT %both = pred[] and(%lt, %moving)",
    )
    text = "\n\n".join(
        [
            part("step", operation("move", 7)),
            searching,
            part("main", loop("search", "step", "searching"), entry=True),
        ]
    )
    assert [(each.trip_count, each.known) for each in read_program(text).loops] == [(1, False)]


def test_unknown_trip_counts_come_from_the_function():
    asked = []

    def trip_count_fn(origin):
        asked.append(origin)
        return 2.5

    assert read_program(TEXT, trip_count_fn).cost.cycles == 100 + 3 * (5 + 4 * 7) + 2.5 * 11 + 1000
    assert set(asked) == {""}


def compiled(function, *args):
    made = jax.jit(function).lower(*args).compile()
    return read_program(made.as_text()), made.cost_analysis()


A, B = jnp.ones((30, 40)), jnp.ones((40, 50))
BATCH = (jnp.ones((6, 30, 40)), jnp.ones((6, 50, 40)))


@pytest.mark.parametrize(
    ("function", "args", "operations"),
    [
        (lambda a, b: a @ b, (A, B), 2 * 30 * 40 * 50),
        (lambda a, b: jnp.einsum("bij,bkj->bik", a, b), BATCH, 2 * 6 * 30 * 40 * 50),
    ],
)
def test_products_are_counted(function, args, operations):
    costs, expected = compiled(function, *args)
    assert costs.cost.flops == operations == expected["flops"]
    assert costs.cost.bytes == expected["bytes accessed"]


def test_products_of_full_precision_are_counted():
    def both(a, b):
        return jnp.tanh(product(a, b)), a @ (b + 1)

    costs, _ = compiled(both, A, B)
    assert costs.cost.fp32_flops == costs.cost.flops / 2 == 2 * 30 * 40 * 50


def test_full_precision_of_library_calls_is_counted():
    settings = (
        '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]},'
        '"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}}}'
    )
    given = ["  %a = f32[30,40] parameter(0)", "  %b = f32[40,50] parameter(1)"]
    call = "  %c = (f32[30,50], s8[9]) custom-call(%a, %b), custom_call_target="
    for precision in ("HIGHEST", "DEFAULT"):
        own = settings.replace("HIGHEST", precision)
        text = part("main", *given, f'{call}"__cublas$gemm", backend_config={own}', entry=True)
        cost = read_program(text).cost
        assert cost.flops == 2 * 30 * 40 * 50
        assert cost.fp32_flops == (cost.flops if precision == "HIGHEST" else 0)


@pytest.mark.parametrize(
    ("strides", "padding", "images_spread", "kernel_spread"),
    [
        ((1, 1), "SAME", (1, 1), (1, 1)),
        ((2, 3), "VALID", (1, 1), (1, 1)),
        ((1, 1), [(2, 1), (1, 1)], (2, 1), (1, 2)),
        ((2, 1), [(0, 3), (2, 0)], (1, 3), (2, 1)),
    ],
)
def test_convolutions_are_counted_without_padding(strides, padding, images_spread, kernel_spread):
    def convolution(images, kernel):
        return jax.lax.conv_general_dilated(
            images,
            kernel,
            strides,
            padding,
            images_spread,
            kernel_spread,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    costs, expected = compiled(convolution, jnp.ones((4, 9, 10, 3)), jnp.ones((3, 2, 3, 8)))
    assert costs.cost.flops == expected["flops"] > 0
    assert costs.cost.bytes == expected["bytes accessed"]


def test_costs_of_a_loop_are_multiplied():
    square = jnp.ones((30, 30))

    def powers(a):
        return jax.lax.fori_loop(0, 7, lambda _, power: jnp.tanh(power @ a), a)

    costs, _ = compiled(powers, square)
    assert [(each.trip_count, each.known) for each in costs.loops] == [(7, True)]
    assert costs.cost.flops == 7 * 2 * 30**3
    # At least two matrices are read and one is written each time.
    assert costs.cost.bytes > 7 * 3 * square.nbytes


def test_lookups_count_the_rows_only():
    table, rows = jnp.ones((1000, 64)), jnp.arange(5)
    costs, _ = compiled(lambda table, rows: 2 * table[rows], table, rows)
    assert costs.cost.bytes < table.nbytes / 10


TABLE, NEW, IDS = "f32[50,100]{1,0}", "f32[4,100]{1,0}", "s32[4,1]{1,0}"
OPERANDS = [f"  %table = {TABLE} parameter(0)", f"  %ids = {IDS} parameter(1)",
            f"  %new = {NEW} parameter(2)"]  # fmt: skip
SCATTER = f"  ROOT %written = {TABLE} scatter(%table, %ids, %new), to_apply=%replace"


@pytest.mark.parametrize("fused", [False, True])
def test_only_the_rows_that_a_scatter_writes_are_counted(fused):
    """The table is written in place; a copy of it would be an instruction of its own."""
    call = f"  ROOT %fusion = {TABLE} fusion(%table, %ids, %new), kind=kInput, calls=%fused"
    parts = [part("main", *OPERANDS, call if fused else SCATTER, entry=True)]
    if fused:
        parts.insert(0, part("fused", *OPERANDS, SCATTER))
    costs = read_program("\n\n".join(parts))
    assert costs.cost.bytes == 4 * 4 + 2 * 4 * 400  # Indices; new rows are read and written.


def test_kernels_and_collectives_are_counted():
    text = part(
        "main",
        "  %a = f32[8]{0} parameter(0)",
        "  %b = f32[8]{0} bitcast(%a)",
        "  %c = f32[8]{0} fusion(%b), kind=kLoop, calls=%fused",
        '  %d = (f32[8]{0}, s8[33554432]{0}) custom-call(%c), custom_call_target="__cublas$gemm"',
        "  %e = f32[8]{0} get-tuple-element(%d), index=0",
        "  %f = f32[8]{0} all-reduce-start(%e), to_apply=%sum",
        "  ROOT %g = f32[8]{0} all-reduce-done(%f)",
        entry=True,
    )
    cost = read_program(text).cost
    assert (cost.kernels, cost.collectives, cost.collective_bytes) == (3, 1, 8 * 4)
    # Three times eight numbers in and out; a library's workspace is not counted.
    assert cost.bytes == 3 * 2 * 8 * 4


def test_on_chip_arrays_are_not_moved():
    text = part(
        "main",
        "  %a = f32[8,128]{1,0:T(8,128)} parameter(0)",
        "  %b = f32[8,128]{1,0:T(8,128)S(1)} negate(%a)",
        "  ROOT %c = f32[8,128]{1,0:T(8,128)} negate(%b)",
        entry=True,
    )
    assert read_program(text).cost.bytes == 2 * 8 * 128 * 4
