"""Descriptions of classes, sources and methods that commands read instead of importing them."""

import inspect
import math
import sys
from functools import partial

import pytest

from fedjax_fair import aggregators, data, solvers
from fedjax_fair.app import build
from fedjax_fair.app.cli import main
from fedjax_fair.app.overview import STORED
from fedjax_fair.app.settings import method_summary, registry
from fedjax_fair.app.settings.constructors import Reference, class_of, describe, describe_signature
from fedjax_fair.app.settings.method import Method
from fedjax_fair.app.settings.source_defaults import SourceDefaults, find_source


@pytest.mark.parametrize("name", STORED["descriptions"])
def test_stored_descriptions_are_read_as_the_signature_has_them(name):
    found = describe(Reference(name))
    assert found == describe_signature(Reference(name).resolve())
    assert all(type(setting.default) is not list for setting in found.settings.values())


@pytest.mark.parametrize("name", registry.METHODS)
def test_names_of_classes_exist(name):
    for role in registry.role_classes(registry.METHODS[name]).values():
        assert inspect.isclass(class_of(role))


@pytest.mark.parametrize(
    ("lazy", "imported"),
    [
        (partial(Reference("solvers.SGD"), prox=1.0), partial(solvers.SGD, prox=1.0)),
        (partial(Reference("aggregators.Mean"), "selector"), partial(aggregators.Mean, "selector")),
        (partial(Reference("data.dirichlet"), alpha=1.0), partial(data.dirichlet, alpha=1.0)),
        (partial(Reference("data.dirichlet"), 5), partial(data.dirichlet, 5)),
    ],
)
def test_a_partial_of_a_name_is_described_as_that_of_the_class(lazy, imported):
    assert describe(lazy) == describe(imported)


def test_a_class_that_is_not_stored_yet_is_read_from_its_signature():
    assert "aggregators.WithServerOptimizer" not in STORED["descriptions"]
    found = describe(Reference("aggregators.WithServerOptimizer"))
    assert found.summary == describe(aggregators.WithServerOptimizer).summary


@pytest.mark.parametrize("name", data.SOURCES)
def test_defaults_of_sources_are_the_same_without_an_import(name, monkeypatch):
    imported = find_source(name)
    monkeypatch.delitem(sys.modules, "fedjax_fair.data.sources.named_sources")
    assert find_source(name) == imported == SourceDefaults.of(data.get_source(name))


@pytest.mark.parametrize("name", registry.READERS)
def test_data_sets_with_settings_have_a_reader(name):
    with_settings = {key for key, source in data.SOURCES.items() if source.settings}
    assert with_settings <= registry.READERS.keys()
    assert class_of(registry.READERS[name]) is data.SOURCES[name].read


@pytest.mark.parametrize("name", ["fedavg", "drfa", "divfl", "centralized", "fedfb", "fedadam"])
def test_server_views_are_those_of_the_roles(name):
    assert method_summary.server_view(name) == build.server_view(registry.METHODS[name])


def test_the_view_of_a_plugins_method_is_that_of_its_roles(monkeypatch):
    monkeypatch.setitem(registry.METHODS, "own", Method("x", aggregator=aggregators.Krum))
    assert method_summary.server_view("own") == "vectors"
    assert method_summary.server_view("fedavg+own") == "vectors"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "q_fedavg",
            [
                "server view scalars",
                "source Li et al., 2020, https://arxiv.org/abs/1905.10497",
                "aggregator fedjax_fair.aggregators.QFedAvg",
                "selector fedjax_fair.selectors.Uniform",
                "--aggregator.q a number; default: 1.0; tuned from 0.001 to 15. Exponent of the",
                "--solver.learning-rate a number; default: that of the data set.",
                "--selector.cohort-size an integer; default: 10, or all clients.",
            ],
        ),
        (
            "divfl+equitable",
            [
                "server view vectors",
                "openreview.net/forum?id=nwKXyFvaUm and Anonymous, 2024,",
                "selector fedjax_fair.selectors.DivFL",
                "aggregator fedjax_fair.aggregators.Equitable",
                "--selector.candidates an integer or 'auto' or 'all'; default: auto.",
                "--aggregator.num-clusters",
            ],
        ),
        (
            "fedfb",
            [
                "solver fedjax_fair.solvers.CellWeighted, fedjax_fair.solvers.SGD",
                "--aggregator.alpha a number; default: 0.1; tuned from 0.001 to 2.",
            ],
        ),
        (
            "fedyogi",
            [
                "server_optimizer fedjax_fair.server_optimizers.FedYogi",
                "--server-optimizer.tau",
                "--server-optimizer.server-learning-rate a number; default: 0.01; tuned from",
            ],
        ),
        ("centralized", ["server view examples", "solver fedjax_fair.solvers.SGD"]),
    ],
)
def test_a_method_is_described_by_name(name, parts, capsys, wide_terminal):
    assert main(["methods", name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in parts:
        assert part in shown
    assert ("--selector" in shown) == (name != "centralized")
    assert "--model" not in shown


def test_every_method_has_a_description_with_its_range(capsys, wide_terminal):
    for name, method in registry.METHODS.items():
        shown = method_summary.format_method(name)
        assert shown.startswith(f"{name}: {method.describe()}.")
        assert shown.count("; tuned from") == len(method.ranges)
        assert all(math.isfinite(each.high) for each in method.ranges.values())
