"""Methods that enter the benchmark with frozen networks."""

import hashlib
import json
from pathlib import Path

import jax
import pytest

from fedjax_fair.app.settings.config import PartConfig
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.registry import GROUPS, METHODS
from fedjax_fair.benchmark import entry_checks, plugin_methods, runner
from fedjax_fair.benchmark.federations import FEDERATIONS
from fedjax_fair.benchmark.tuning import RATE
from fedjax_fair.benchmark.unit import configuration, make_rounds
from fedjax_fair.models.lora import LoRA

PART = PartConfig(lora=2, trainable=("head",))


def test_networks_of_units_have_the_trained_part():
    planned = runner.plan("embedded", Path("f"), ["fedavg"], ["digits"], part=PART)
    (unit,) = planned.units
    data = unit.federation.load(None, (0, 1))
    settings = [{RATE: 0.1}, {RATE: 0.2}]
    rounds = make_rounds(unit, configuration(unit), settings, {"tuning": data})
    model = rounds[0].model
    assert model is rounds[1].model
    assert isinstance(model, LoRA)
    assert (model.rank, model.trainable) == (2, ("head",))
    entry_checks.check_method("fedavg", configuration(unit), data.seen.partition(0))
    plain = configuration(unit._replace(federation=FEDERATIONS["digits"]))
    (whole,) = make_rounds(unit, plain, settings[:1], {"tuning": data})
    assert not jax.tree.leaves(whole.model.frozen)


def test_results_belong_to_the_trained_part(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Method("Mine"))
    monkeypatch.setitem(GROUPS, "plugin", {"mine": METHODS["mine"]})
    plugin_methods.record(tmp_path, ["mine"], PART)
    (tmp_path / "programs" / "digits" / "mine").mkdir(parents=True)
    (tmp_path / "programs" / "digits" / "mine" / "tuning.jsonl").touch()
    plugin_methods.record(tmp_path, ["mine"], PART)
    for other in (None, PartConfig(lora=4, trainable=("head",))):
        with pytest.raises(ValueError, match=r"has results of other code or ranges \(model"):
            plugin_methods.record(tmp_path, ["mine"], other)


def test_results_belong_to_the_content_of_files_of_weights(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Method("Mine"))
    monkeypatch.setitem(GROUPS, "plugin", {"mine": METHODS["mine"]})
    file = tmp_path / "weights.npz"
    file.write_bytes(b"first")
    part = PartConfig(weights=str(file))
    plugin_methods.record(tmp_path, ["mine"], part)
    key, digest = "model.weights SHA-256", hashlib.sha256(b"first").hexdigest()
    described = plugin_methods.recorded(tmp_path, "mine")
    assert described["code"][key] == digest
    (tmp_path / "programs" / "digits" / "mine").mkdir(parents=True)
    (tmp_path / "programs" / "digits" / "mine" / "tuning.jsonl").touch()
    plugin_methods.record(tmp_path, ["mine"], part)
    file.write_bytes(b"second")
    with pytest.raises(ValueError, match=rf"other code or ranges \({key}={digest}, now"):
        plugin_methods.record(tmp_path, ["mine"], part)
    # Descriptions by earlier versions have no checksum.
    del described["code"][key]
    (tmp_path / "methods" / "mine.json").write_text(json.dumps(described))
    plugin_methods.record(tmp_path, ["mine"], part)
