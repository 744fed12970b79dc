"""The target device of tracing."""

import jax
import pytest

from fedjax_fair.numerics import target


def test_default_target_is_the_default_device():
    assert target.current().platform == jax.default_backend()


def test_target_is_reset_after_the_block():
    before = target.current()
    with target.tracing_for("tpu"):
        with target.tracing_for("gpu"):
            assert target.current().platform == "gpu"
        assert target.current().platform == "tpu"
        assert not target.current().is_cpu
    assert target.current() == before
    with pytest.raises(KeyError), target.tracing_for("gpu"):
        raise KeyError
    assert target.current() == before


def test_functions_are_traced_per_target():
    traced = []

    @jax.jit
    def program(x):
        traced.append(target.current().platform)
        return x + 1 if target.current().platform == "tpu" else x

    for platform in ("cpu", "tpu", "cpu", "tpu"):
        with target.tracing_for(platform):
            assert float(program(1.0)) == 1 + (platform == "tpu")
    assert traced == ["cpu", "tpu"]


def test_a_core_has_smaller_limits_than_a_cpu():
    with target.tracing_for("cpu"):
        whole = target.current()
    with target.tracing_for("cpu", devices=2):
        core = target.current()
    assert core.models_bytes < whole.models_bytes
    assert core.client_examples < whole.client_examples


@pytest.mark.parametrize(
    ("settings", "message"),
    [(("cuda",), "platform='cuda'"), ((None,), "platform=None"), (("tpu", 0), "devices=0")],
)
def test_invalid_targets_are_rejected(settings, message, as_users_call):
    with pytest.raises(ValueError, match=message):
        target.tracing_for(*settings)
