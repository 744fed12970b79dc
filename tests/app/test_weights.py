"""Files of weights."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path

from fedjax_fair.app.weights import check_base, read_weights, write_base
from fedjax_fair.roles import Variables

RNG = np.random.default_rng(0)
KERNEL, BIAS = RNG.normal(size=(3, 4)).astype(np.float32), np.arange(4, dtype=np.float32)
MEAN = np.ones(4, np.float32)


def write_safetensors(path, arrays, types):
    """Writes a file as https://huggingface.co/docs/safetensors specifies."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        start, data = len(data), data + array.tobytes()
        header[name] = {
            "dtype": types[name],
            "shape": list(array.shape),
            "data_offsets": [start, len(data)],
        }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def assert_same(actual, expected):
    actual, expected = tree_leaves_with_path(actual), tree_leaves_with_path(expected)
    assert [path for path, _ in actual] == [path for path, _ in expected]
    for (_, one), (_, other) in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_base_is_read_as_it_was_written(tmp_path):
    variables = Variables({"head": {"kernel": KERNEL, "bias": BIAS}}, {"norm": {"mean": MEAN}})
    file = tmp_path / write_base(variables, tmp_path)
    assert write_base(variables, tmp_path) == file.name
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    check_base(file)
    assert_same(read_weights(str(file)), variables)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="damaged"):
        check_base(file)
    file.unlink()
    with pytest.raises(ValueError, match="missing"):
        check_base(file)


def test_paths_may_omit_params_and_floats_become_float32(tmp_path):
    np.savez(tmp_path / "x.npz", **{"head/kernel": KERNEL.astype(np.float64), "state/mean": MEAN})
    expected = Variables({"head": {"kernel": KERNEL}}, {"mean": MEAN})
    assert_same(read_weights(str(tmp_path / "x.npz")), expected)


def test_arrays_of_safetensors_are_renamed_and_transposed(tmp_path):
    half = BIAS.astype(jnp.bfloat16)
    arrays = {"fc.weight": np.ascontiguousarray(KERNEL.T), "fc.bias": half, "unused": MEAN}
    types = {"fc.weight": "F32", "fc.bias": "BF16", "unused": "F32"}
    write_safetensors(tmp_path / "x.safetensors", arrays, types)
    names = {"head/kernel": ["fc.weight", [1, 0]], "head/bias": "fc.bias"}
    (tmp_path / "names.json").write_text(json.dumps(names))
    read = read_weights(str(tmp_path / "x.safetensors"), str(tmp_path / "names.json"))
    assert_same(read, Variables({"head": {"kernel": KERNEL, "bias": BIAS}}, {}))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("[1]", "model.weights_names='names.json': expected a JSON object"),
        ('{"head/kernel": "fc"}', "head/kernel has 'fc': expected the name of an array: a, a/b."),
        ('{"head/kernel": {}}', r"head/kernel has {}: expected the name of an array: a, a/b."),
        ('{"head/kernel": ["a", [0, 1]]}', r"has axes \[0, 1\]: expected those of \[4\]."),
        (None, "expected paths, of which none continues another one"),
    ],
)
def test_names_of_arrays_are_checked(names, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arrays: dict[str, Any] = {"a": BIAS, "a/b": BIAS}
    np.savez("x.npz", **arrays)
    if names is not None:
        (tmp_path / "names.json").write_text(names)
    with pytest.raises(ValueError, match=message):
        read_weights("x.npz", None if names is None else "names.json")


@pytest.mark.parametrize("name", ["missing.npz", "bad.npz", "bad.safetensors", "bad.h5"])
def test_a_file_that_cannot_be_read_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "bad" in name:
        (tmp_path / name).write_bytes(b"\x05\0\0\0\0\0\0\0nothing")
    with pytest.raises(ValueError, match=f"model.weights='{name}': expected a .npz or .safe"):
        read_weights(name)
