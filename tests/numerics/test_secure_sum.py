"""The secure sum: its accuracy, uniform messages, and its range."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_fair.numerics.secure_sum import (
    SecureAggregation,
    as_secure,
    mask_values,
    quantization_step,
    secure_sum,
    unmask_sum,
)

KEY = jax.random.key(7)
PARTICIPANTS = 5
MAX_ABS_VALUE = 4.0
VALUES = (
    np.random.default_rng(0)
    .uniform(-MAX_ABS_VALUE, MAX_ABS_VALUE, (PARTICIPANTS, 33))
    .astype(np.float32)
)
ALL = [True] * PARTICIPANTS

add = jax.jit(secure_sum, static_argnames="max_abs_value")


def plain(values, answered):
    """Returns the sum and its maximum rounding error."""
    kept = np.asarray(values, np.float64)[np.asarray(answered)]
    step = quantization_step(MAX_ABS_VALUE * len(values), len(values))
    return kept.sum(axis=0), len(kept) * step / 2 + np.abs(kept.sum(axis=0)) * 2**-24


@pytest.mark.parametrize(
    "answered",
    [ALL, [True, False, True, True, True], [False, True, False, False, True], [True] + [False] * 4,
     [False] * 5],
)  # fmt: skip
def test_sum_over_responding_participants_is_exact_to_the_step(answered):
    expected, error = plain(VALUES, answered)
    found = np.asarray(
        add(KEY, VALUES, np.array(answered), max_abs_value=MAX_ABS_VALUE), np.float64
    )
    assert (np.abs(found - expected) <= error).all()


def test_without_dropouts_no_mask_is_removed():
    np.testing.assert_array_equal(
        add(KEY, VALUES, max_abs_value=MAX_ABS_VALUE),
        add(KEY, VALUES, np.array(ALL), max_abs_value=MAX_ABS_VALUE),
    )


STEP = quantization_step(MAX_ABS_VALUE * PARTICIPANTS, PARTICIPANTS)


@partial(jax.jit, static_argnums=(2, 3))
def sent(key, values, participants=PARTICIPANTS, max_abs_value=MAX_ABS_VALUE):
    """Returns the messages of all participants, ``[participants, width]``."""
    step = quantization_step(max_abs_value * participants, participants)
    numbers = jnp.arange(participants, dtype=jnp.int32)
    return jax.vmap(lambda i, own: mask_values(key, i, participants, own, max_abs_value, step))(
        numbers, values
    )


def test_messages_follow_the_protocol():
    """Compares with a second implementation in Python integers."""
    encoded = np.round(VALUES.astype(np.float64) / STEP).astype(object)
    words = np.asarray(sent(KEY, VALUES).words).astype(object)
    for one in range(PARTICIPANTS):
        expected = encoded[one].copy()
        for other in range(PARTICIPANTS):
            if other != one:
                low, high = sorted((one, other))
                pair = jax.random.fold_in(jax.random.fold_in(KEY, low), high)
                mask = np.asarray(jax.random.bits(pair, VALUES.shape[1:], jnp.uint32))
                expected += mask.astype(object) * (1 if one < other else -1)
        assert (words[one] == expected % 2**32).all()


WIDTH = 2**14
INPUTS = {
    "zeros": np.zeros(WIDTH),
    "the limit": np.full(WIDTH, MAX_ABS_VALUE),
    "alternating": np.where(np.arange(WIDTH) % 2, MAX_ABS_VALUE, -MAX_ABS_VALUE),
    "small": np.full(WIDTH, 1e-7),
}


def chi_square(counts, expected):
    """Returns a chi-squared statistic in standard deviations from its mean."""
    degrees = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees)


def assert_uniform(words):
    """Returns the bytes of the words."""
    for byte in np.ascontiguousarray(words).view(np.uint8).reshape(-1, 4).T:
        counts = np.bincount(byte, minlength=256)
        assert abs(chi_square(counts, byte.size / 256)) < 5


@pytest.mark.parametrize("name", INPUTS)
def test_messages_are_uniform_for_any_values(name):
    values = np.tile(INPUTS[name].astype(np.float32), (PARTICIPANTS, 1))
    words = np.asarray(sent(KEY, values).words)
    for own in words:
        assert_uniform(own)
        assert_uniform(np.diff(own))  # Coordinates differ in their masks.
    # Participants together say no more, unless they are all.
    for some in ([0, 1], [1, 3, 4], [0, 1, 2, 3]):
        assert_uniform(words[some].sum(axis=0, dtype=np.uint32))


def test_messages_are_independent_of_the_values():
    values = (
        np.random.default_rng(1)
        .uniform(-MAX_ABS_VALUE, MAX_ABS_VALUE, (2, 2**15))
        .astype(np.float32)
    )
    words = np.asarray(sent(KEY, values, 2).words)
    for own, seen in zip(values, words, strict=True):
        had = np.digitize(own, np.quantile(own, np.arange(1, 16) / 16))
        table = np.bincount(had * 16 + (seen >> 28), minlength=256)
        assert abs(chi_square(table, own.size / 256)) < 5


def test_masks_depend_on_the_key():
    one, other = (np.asarray(sent(jax.random.key(seed), VALUES).words) for seed in (0, 1))
    assert (one != other).mean() > 0.99


@pytest.mark.parametrize("participants", [1, 2, 7, 100])
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_values_do_not_wrap(participants, sign):
    values = np.full((participants, 2), sign * MAX_ABS_VALUE, np.float32)
    found = add(KEY, values, max_abs_value=MAX_ABS_VALUE)
    np.testing.assert_allclose(found, sign * participants * MAX_ABS_VALUE, rtol=1e-6)


@pytest.mark.parametrize("total", [1e-6, 0.3, 1.0, 16.0, 1e9])
@pytest.mark.parametrize("participants", [1, 3, 1000, 2**15])
def test_step_is_the_smallest_that_does_not_wrap(total, participants):
    step = quantization_step(total, participants)
    assert total / step + participants / 2 < 2**31
    assert np.log2(step) == round(np.log2(step))
    assert 2 * total * 1.001 / step + participants > 2**31 - participants


@pytest.mark.parametrize("value", [4.01, -4.01, 1e30, np.inf, -np.inf, np.nan])
def test_values_out_of_range_make_the_sum_nan(value):
    values = VALUES.copy()
    values[2, 5] = value
    assert np.isnan(add(KEY, values, max_abs_value=MAX_ABS_VALUE)).all()
    # Not if it is of one that dropped out.
    answered = np.arange(PARTICIPANTS) != 2
    expected, error = plain(VALUES, answered)
    assert (
        np.abs(add(KEY, values, answered, max_abs_value=MAX_ABS_VALUE) - expected) <= error
    ).all()


def test_memory_does_not_contain_all_masks():
    width, participants = 2**16, 40
    vectors = jax.ShapeDtypeStruct((participants, width), np.float32)
    answered = jax.ShapeDtypeStruct((participants,), bool)
    compiled = add.lower(KEY, vectors, answered, max_abs_value=1.0).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 16 * 4 * width


def test_unmasking_removes_masks_of_pairs_with_one_response():
    words = sent(KEY, VALUES)
    answered = np.array([True, True, False, True, False])
    some = jax.tree.map(lambda leaf: leaf[answered].sum(axis=0, dtype=jnp.uint32), words)
    found = jax.jit(unmask_sum, static_argnums=2)(KEY, some, STEP, answered)
    expected, error = plain(VALUES, answered)
    assert (np.abs(found - expected) <= error).all()
    lost = jax.jit(unmask_sum, static_argnums=2)(KEY, some, STEP)
    assert (np.abs(lost - expected) > 1).mean() > 0.5  # Of no use without it.


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: as_secure("masked"), "aggregation='masked'"),
        (lambda: as_secure(None), "aggregation=None"),
        (lambda: SecureAggregation(0.0), "max_abs_value="),
        (lambda: SecureAggregation(np.inf), "max_abs_value=inf"),
    ],
)
def test_invalid_aggregations_are_rejected(call, said, as_users_call):
    with pytest.raises(ValueError, match=said):
        call()


def test_strings_are_converted_to_aggregations():
    assert as_secure("plain") is None
    assert as_secure("secure").max_abs_value > 0
    assert as_secure(SecureAggregation(2.0)).max_abs_value == 2


def test_too_many_participants_are_rejected():
    with pytest.raises(ValueError, match="participants=32769"):
        quantization_step(1.0, 2**15 + 1)
