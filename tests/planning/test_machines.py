"""Machines by name."""

import pytest

from fedjax_fair.planning import machines


@pytest.mark.parametrize(
    ("name", "platform", "devices", "memory"),
    [
        ("v5e:1x1", "tpu", 1, 16e9),
        ("v5e:4x4", "tpu", 16, 16e9),
        ("v5p:2x2x1", "tpu", 4, 95e9),
        ("h200", "gpu", 1, 141e9),
        ("h200:8", "gpu", 8, 141e9),
        ("h100", "gpu", 1, 80e9),
        ("a100", "gpu", 1, 80e9),
        ("l4", "gpu", 1, 24e9),
    ],
)
def test_a_name_determines_kind_and_number_of_devices(name, platform, devices, memory):
    machine = machines.find(name)
    assert (machine.platform, machine.num_devices, machine.memory) == (platform, devices, memory)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v9", "v5e:1x1, v5e:2x4"),
        ("v5e:", "v5e:1x1"),
        ("v5e:0x4", "v5e:1x1"),
        ("v5e:2x2x2", "v5e:1x1, v5e:2x2 or"),
        ("v5e:3x3", "v5e:1x1, v5e:2x2 or"),
        ("v5p:2x2", "v5p:1x1x1 or"),
        ("h200:2x4", "h200:8"),
        ("h200:-1", "h200"),
        ("h100:8", "h100; without its compiler plans are for one device"),
        ("", "v5e:1x1"),
    ],
)
def test_an_invalid_name_is_an_error_with_examples(name, expected):
    with pytest.raises(ValueError, match=f"machine='{name}': expected .*{expected}"):
        machines.find(name)


def test_a_missing_compiler_is_an_error():
    missing = machines.find("h200")._replace(module="surely_not_installed")
    with pytest.raises(ValueError, match=r"pip install 'fedjax-fair\[cuda12\]'"):
        machines.prepare(missing)


def test_further_machines_are_found_and_appear_in_errors():
    others = {"mine": machines.find("l4")._replace(name="mine", memory=1e9)}
    found = machines.find("mine", others)
    assert (found.name, found.num_devices, found.memory) == ("mine", 1, 1e9)
    with pytest.raises(ValueError, match="machine='yours': expected mine, h100, "):
        machines.find("yours", others)
