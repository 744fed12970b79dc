"""Data sources of files and installed packages."""

import importlib
import sys

import numpy as np
import pytest

from fedjax_fair import data
from fedjax_fair.app.settings import plugins
from fedjax_fair.app.settings.config import Config, DataConfig
from fedjax_fair.app.settings.presets import resolve

WARDS = """
from pathlib import Path

import numpy as np

from fedjax_fair.data import Examples, Source, Splits, shards


def find(data_dir):
    path = Path(data_dir) / "wards.npy"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    return path


def read(path):
    features = np.load(path)
    return Splits(Examples(features, np.arange(len(features)) % 3), None, num_classes=3)


SOURCES = {
    "wards": Source(
        read, find, partition=shards, num_clients=5, model="logistic", learning_rate=0.5
    )
}
"""


@pytest.fixture
def unloaded(monkeypatch):
    """A process that has not imported the registry."""
    sources, modules, app = dict(data.SOURCES), set(sys.modules), sys.modules["fedjax_fair.app"]
    monkeypatch.setattr(app, "registry", None, raising=False)
    monkeypatch.delitem(sys.modules, "fedjax_fair.app.settings.registry", raising=False)
    monkeypatch.setattr(plugins, "_files", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    data.SOURCES.clear()
    data.SOURCES.update(sources)
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_file_adds_a_source_with_its_defaults(tmp_path, unloaded):
    file = tmp_path / "wards_plugin.py"
    file.write_text(WARDS)
    plugins.load(str(file))
    importlib.import_module("fedjax_fair.app.settings.registry")

    with pytest.raises(FileNotFoundError, match=r"wards\.npy"):
        data.load("wards", data_dir=tmp_path)
    assert not data.describe("wards", tmp_path).prepared
    np.save(tmp_path / "wards.npy", np.ones((60, 4), np.float32))
    described = {entry.name: entry for entry in data.available(tmp_path)}["wards"]
    assert (described.prepared, described.shape, described.num_train) == (True, (4,), 60)
    loaded = data.load("wards", data_dir=tmp_path)
    assert loaded.train.sizes.tolist() == [10] * 5  # A fifth of 12 is held out, rounded down.

    config = resolve(Config(data=DataConfig(name="wards")))
    assert (config.data.partition, config.data.clients) == ("shards", 5)
    assert (config.model.name, config.solver.learning_rate) == ("logistic", 0.5)


def test_a_package_adds_a_source(monkeypatch):
    monkeypatch.setattr(plugins, "_files", {})
    valid = plugins.metadata.EntryPoint("wards", "wards_package:wards", "fedjax_fair.sources")
    invalid = plugins.metadata.EntryPoint("wards", "json:dumps", "fedjax_fair.sources")
    package = type(sys)("wards_package")
    package.wards = data.Source(lambda location: None)
    monkeypatch.setitem(sys.modules, "wards_package", package)

    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: [valid])
    assert plugins.collect("sources", []) == {"wards": package.wards}
    with pytest.raises(ValueError, match="'wards'"):
        plugins.collect("sources", ["wards"])
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: [invalid])
    with pytest.raises(ValueError, match="'wards'"):
        plugins.collect("sources", [])
