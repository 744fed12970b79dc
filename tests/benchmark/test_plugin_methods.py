"""Descriptions of plugins: results belong to code, and damaged files are named."""

import pytest

from fedjax_fair import aggregators, selectors
from fedjax_fair.app.settings import registry
from fedjax_fair.app.settings.method import Method, Range
from fedjax_fair.benchmark import plugin_methods

MINE = Method("Mine", aggregator=aggregators.Median)


@pytest.fixture
def register(monkeypatch):
    """Registers a method of a plugin, in place of an earlier one."""

    def add(method):
        monkeypatch.setitem(registry.GROUPS, "plugin", {"mine": method})
        monkeypatch.setitem(registry.METHODS, "mine", method)

    add(MINE)
    return add


def finish(folder, method="mine"):
    unit = folder / "programs" / "digits" / method
    unit.mkdir(parents=True)
    (unit / "tuning.jsonl").touch()


def test_methods_of_the_package_have_no_description(register, tmp_path):
    plugin_methods.record(tmp_path, ["fedavg", "fedprox+mine:prox=1"])
    assert [file.name for file in (tmp_path / "methods").iterdir()] == ["mine.json"]
    assert plugin_methods.recorded(tmp_path, "fedavg") == {}


@pytest.mark.parametrize("of_pair", [False, True])
def test_results_belong_to_code_and_ranges(register, tmp_path, of_pair):
    plugin_methods.record(tmp_path, ["mine"])
    register(MINE._replace(ranges={"power": Range(0.1, 1.0)}))
    plugin_methods.record(tmp_path, ["mine"])  # There are no results yet.
    finish(tmp_path, "fedprox+mine" if of_pair else "mine")
    register(MINE._replace(ranges={"power": Range(0.1, 1.0)}, summary="Another text"))
    plugin_methods.record(tmp_path, ["mine"])
    for changed in (
        MINE._replace(ranges={"power": Range(0.1, 2.0)}),
        Method("Mine", selector=selectors.Full, ranges={"power": Range(0.1, 1.0)}),
    ):
        register(changed)
        with pytest.raises(ValueError, match=r"method='mine': .* has results of other code"):
            plugin_methods.record(tmp_path, ["mine"])


def test_descriptions_are_read_without_the_plugin(register, tmp_path, monkeypatch):
    plugin_methods.record(tmp_path, ["mine"])
    monkeypatch.delitem(registry.GROUPS, "plugin")
    monkeypatch.delitem(registry.METHODS, "mine")
    found = plugin_methods.read(tmp_path, "mine")
    assert found.summary == "Mine"
    assert found.link.startswith("https://")
    included = plugin_methods.read(tmp_path, "fedavg")
    assert (included.file, included.paper) == ("", "McMahan et al., 2017")
    with pytest.raises(ValueError, match="method='other': a method of your own"):
        plugin_methods.read(tmp_path, "other")


@pytest.mark.parametrize("text", ["{", "[]", '{"summary": "Mine"}'])
def test_damaged_descriptions_are_named(register, tmp_path, text):
    finish(tmp_path)
    plugin_methods.record(tmp_path, ["mine"])
    (tmp_path / "methods" / "mine.json").write_text(text)
    for use in (plugin_methods.recorded, plugin_methods.read):
        with pytest.raises(ValueError, match=r"mine\.json': expected an undamaged description"):
            use(tmp_path, "mine")
    with pytest.raises(ValueError, match=r"mine\.json': expected an undamaged description"):
        plugin_methods.record(tmp_path, ["mine"])
