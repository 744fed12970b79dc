"""Counted floating-point operations equal closed forms, and those of unrolled programs."""

import jax
import jax.numpy as jnp
import pytest

import fedjax_fair as ff
from fedjax_fair.benchmark.compute import count_flops

MATRIX, VECTOR = jnp.ones((4, 4)), jnp.ones(4)
PRODUCT = 2 * 4 * 4


def test_a_batched_product_counts_all_of_its_products():
    batch, left, right = 3, 5, 7
    arguments = jnp.zeros((batch, left, 4)), jnp.zeros((batch, 4, right))
    assert count_flops(jnp.matmul, *arguments) == 2 * batch * left * 4 * right


def test_a_convolution_counts_its_kernel_at_every_output():
    images, kernel = jnp.zeros((2, 8, 8, 3)), jnp.zeros((5, 5, 3, 6))

    def convolve(images, kernel):
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", None, None, dimensions)

    assert count_flops(convolve, images, kernel) == 2 * (2 * 4 * 4 * 6) * (5 * 5 * 3)


def test_iterations_of_a_scan_are_counted():
    def repeat(matrix, vector):
        return jax.lax.scan(lambda x, _: (matrix @ x, None), vector, None, 6)[0]

    assert count_flops(repeat, MATRIX, VECTOR) == 6 * PRODUCT


@pytest.mark.parametrize("count", [0, 1, 5])
def test_iterations_of_a_loop_that_depend_on_a_value_are_counted(count):
    def repeat(matrix, vector, count):
        return jax.lax.fori_loop(0, count, lambda _, x: matrix @ x, vector)

    assert count_flops(repeat, MATRIX, VECTOR, jnp.int32(count)) == count * PRODUCT


def test_nested_loops_and_results_that_end_a_loop_are_counted():
    def search(vector):
        def body(state):
            x, steps = state
            x = jax.lax.fori_loop(0, steps, lambda _, x: MATRIX @ x, x)
            return x, steps + 1

        return jax.lax.while_loop(lambda state: state[0][0] < 50, body, (vector, jnp.int32(0)))

    # x is 1, then 1, 4 and 4 ** 3: loops with 0, 1 and 2 products.
    assert count_flops(search, VECTOR) == 3 * PRODUCT


def test_batched_loops_run_until_the_last_one_ends():
    def repeat(vector, count):
        return jax.lax.fori_loop(0, count, lambda _, x: MATRIX @ x, vector)

    counts = jnp.array([1, 4, 2])
    batched = jax.vmap(repeat)
    vectors = jnp.ones((3, 4))
    assert count_flops(batched, vectors, counts) == 4 * 3 * PRODUCT

    # A product by itself is no part of the count, and the number of iterations depends on it.
    def twice(vectors, counts):
        shorter = batched(vectors, counts)[:, 0].astype(jnp.int32) // 4
        return batched(vectors, shorter)

    assert count_flops(twice, vectors, counts) == (4 + 4**4 // 4) * 3 * PRODUCT


@pytest.mark.parametrize("is_long", [False, True])
def test_the_branch_that_runs_is_counted(is_long):
    def branch(vector, is_long):
        return jax.lax.cond(is_long, lambda x: MATRIX @ (MATRIX @ x), lambda x: MATRIX @ x, vector)

    assert count_flops(branch, VECTOR, jnp.bool_(is_long)) == (1 + is_long) * PRODUCT


def test_results_of_a_scan_whose_count_depends_on_values_are_its_own():
    def sums(counts):
        def step(total, count):
            x = jax.lax.fori_loop(0, count, lambda _, x: MATRIX @ x, VECTOR)
            return total + x[0], x[0].astype(jnp.int32)

        _, lengths = jax.lax.scan(step, 0.0, counts, reverse=True)
        return jax.lax.fori_loop(0, lengths[0], lambda _, x: MATRIX @ x, VECTOR)

    assert count_flops(sums, jnp.array([2, 1, 0])) == (3 + 4**2) * PRODUCT


def test_a_round_of_fedavg_has_the_products_of_its_steps():
    digits = ff.data.load("digits")
    steps, batch_size, cohort = 3, 7, 4
    method = ff.Round(
        model=ff.models.logistic(10),
        selector=ff.selectors.Uniform(cohort),
        solver=ff.solvers.SGD(0.1, batch_size=batch_size, steps=steps),
        aggregator=ff.aggregators.Mean(),
    )

    def train(method, data):
        return ff.run(method, method.init(jax.random.key(0), data), data, 2)

    # A step: logits and the gradient of the weights. The mean over the cohort is a product, too.
    parameters = 64 * 10 + 10
    of_steps = cohort * steps * 2 * (2 * batch_size * 64 * 10)
    of_init = 2 * 64 * 10  # Shapes of the parameters come from the logits of one example.
    assert count_flops(train, method, digits) == of_init + 2 * (of_steps + 2 * cohort * parameters)
