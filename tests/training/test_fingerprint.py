"""Fingerprints distinguish runs."""

import importlib
import linecache
import os
import sys
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import NUM_CLASSES, make_federation, times_for

from fedjax_fair import aggregators, models, selectors, server_optimizers, solvers
from fedjax_fair.app.build import method_round
from fedjax_fair.app.settings import presets, registry
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.rounds.round import Round
from fedjax_fair.training.fingerprint import describe, differences
from fedjax_fair.training.fit import fit


def of_round(selector=None, solver=None, aggregator=None, model=None):
    return Round(
        model or models.logistic(NUM_CLASSES),
        selector or selectors.Uniform(2),
        solver or solvers.SGD(0.1, 2, steps=2),
        aggregator or aggregators.Mean(),
    )


def test_settings_are_found_by_their_names():
    described = describe(round=of_round(selector=selectors.SubTrunc(2, 0.5)))
    settings = {place.rsplit(".", 1)[-1]: text for place, text in described.items()}
    assert settings["learning_rate"] == "0.1"
    assert settings["lam"] == "0.5"


def test_classes_are_described_by_public_names_wherever_they_are_defined():
    method = of_round(selectors.UnionFL(2))
    described = describe(method=type(method), selector=method.selector, model=method.model)
    names = {
        "method": ("ff.Round", "fedjax_fair.rounds.round.Round"),
        "selector": ("ff.selectors.UnionFL", "fedjax_fair.selectors.unionfl.UnionFL"),
        "model": ("ff.LinenModel", "fedjax_fair.models.wrap.LinenModel"),
    }
    assert {path: described[path] for path in names} == {
        path: public for path, (public, _) in names.items()
    }
    earlier = described | {path: module for path, (_, module) in names.items()}
    assert not differences(described, earlier)
    other = earlier | {"selector": "fedjax_fair.selectors.divfl.DivFL"}
    assert [path for path, *_ in differences(described, other)] == ["selector"]


def test_equal_rounds_have_equal_descriptions():
    def made():
        return of_round(
            selectors.DivFL(2, gradients=selectors.gradients.RefreshEvery(3)),
            solvers.SGD(optax.cosine_decay_schedule(0.1, 10), 2, steps=2, momentum=0.9),
            aggregators.WithServerOptimizer(
                aggregators.Mean(), server_optimizers.Optax(optax.adam, 0.1)
            ),
            models.mlp(3, hidden=(8,)),
        )

    assert describe(round=made()) == describe(round=made())


CONFIG = replace(
    presets.resolve(replace(presets.PRESETS["equitable"].config, methods=("fedavg",))),
    selector=replace(Config().selector, cohort_size=4),
    solver=replace(Config().solver, learning_rate=0.1, batch_size=10, steps=2),
)


@pytest.mark.parametrize("name", sorted(set(registry.METHODS) - {"centralized"}))
def test_every_hyperparameter_of_every_method_is_described(name):
    config = drop_unused_settings(replace(CONFIG, methods=(name,)))
    network = None
    if name in registry.GROUPS["adapters"]:
        plain = models.logistic(10)
        network = models.lora(plain, plain.init(jax.random.key(0), jnp.zeros((1, 4))), rank=2)

    def made(written):
        return method_round(config, written, 10, model=network, times=times_for(name, 10))

    for key, setting in method_settings(config, name).items():
        if not setting.traced or key[0] == "timing":
            continue
        one, other = (
            describe(round=made(f"{name}:{'.'.join(key)}={value}"))
            for value in ((2, 3) if setting.type is int else (0.25, 0.375))
        )
        assert one != other, key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (selectors.Uniform(2), selectors.BySize(2)),
        (selectors.Uniform(2), selectors.Uniform(3)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x + 1, lambda x: x - 1),
        (partial(max, 1), partial(max, 2)),
        (np.arange(3), np.arange(3) + 1),
        (jnp.arange(3), jnp.arange(3.0)),
        (models.mlp(3, hidden=(8,)), models.mlp(3, hidden=(9,))),
        (optax.sgd(0.1), optax.sgd(0.2)),
        (Config(), Config(methods=("divfl",))),
    ],
    ids=range(10),
)
def test_different_values_have_different_descriptions(one, other):
    assert differences(describe(a=one), describe(a=other))
    assert not differences(describe(a=one), describe(a=one))


PLUGIN = {
    "plugin": """
import enum
import functools
import operator
import types
from collections import deque
from fractions import Fraction

import jax
import numpy as np

import helpers
import package.inner
from helpers import imported
from fedjax_fair import Cohort, Selector
from fedjax_fair.selectors import BySize, Full, Uniform

CONSTANT = 9
TABLE = {"first": [1, 2]}
ARRAY = np.arange(3)
SPACE = types.SimpleNamespace(rate=0.1)
QUEUE = deque([4])
NAMES = {"a", "b"}
WORDS = np.array(["x", None], dtype=object)
GETTER = operator.itemgetter(25)
LOOKUP = {"a": 26}.get
THIRD = Fraction(1, 27)
VALUES = (GETTER, LOOKUP, THIRD)


class Color(enum.Enum):
    RED = 28


@functools.singledispatch
def dispatched(x):
    return x


@dispatched.register
def _(x: int):
    return x + 29


@functools.lru_cache
def cached_function(x):
    return x + 30


def helper(x):
    return second_helper(x) + 1


def second_helper(x):
    return x * 2


def multiply(factor):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            return factor * function(*arguments)
        return wrapper
    return decorate


@multiply(3)
def decorated(x):
    return x + 5


@jax.jit
def jitted(x):
    return x + 6


@jax.custom_jvp
def curved(x):
    return x


@curved.defjvp
def curved_jvp(primals, tangents):
    return curved(primals[0]), 7 * tangents[0]


mapped = jax.vmap(helper, in_axes=0)
alias = helper


class Settings:
    step = 0.25

    def __init__(self):
        self.size = 8


class Slotted:
    __slots__ = ("depth",)

    def __init__(self):
        self.depth = 10


SETTINGS, SLOTTED = Settings(), Slotted()


class Base(Selector):
    shared = (1, 2)

    def predict(self, x):
        return x

    def __call__(self, x):
        return x - 1

    @staticmethod
    def fixed():
        return 11

    @functools.cached_property
    def cached(self):
        return 12

    @property
    def size(self):
        return 13


class Mine(Base):
    rate: float = 0.5
    bound = functools.partial(helper, 14)

    def select(self, key, state, context, default=15, *, keyword=16):
        def inner():
            return CONSTANT, TABLE, ARRAY, SPACE, QUEUE, NAMES, WORDS, SETTINGS, SLOTTED
        dispatched(1.0), cached_function(1), Color.RED, VALUES
        import lazy
        from package import late
        helper(1), decorated(2), jitted(3), curved(4), mapped(5), alias(6), imported(7)
        helpers.function(8), package.inner.value, lazy.value, late.value, self(9), Uniform(2)
        return Cohort(None, None), state, {"kind": "x" in {"x", "y", "z"}}


def captured(value=17):
    def function():
        return value
    return function


ENTRY = (Mine(), captured(18))
""",
    "helpers": """
OUTER = 19


def function(x):
    return x + OUTER


def imported(x):
    return deeper(x)


def deeper(x):
    return x + 20


def unused():
    return 21
""",
    "package/__init__": "",
    "package/inner": "value = 22",
    "package/late": "value = 23",
    "lazy": "value = 24",
}

EDITS = {
    "a module constant": ("plugin", "CONSTANT = 9", "CONSTANT = 8"),
    "a container": ("plugin", "[1, 2]}", "[1, 3]}"),
    "an array": ("plugin", "np.arange(3)", "np.arange(4)"),
    "an array of objects": ("plugin", '["x", None]', '["y", None]'),
    "a namespace": ("plugin", "rate=0.1", "rate=0.2"),
    "a queue": ("plugin", "deque([4])", "deque([5])"),
    "a set": ("plugin", '{"a", "b"}', '{"a", "c"}'),
    "a helper": ("plugin", "second_helper(x) + 1", "second_helper(x) + 2"),
    "a helper of a helper": ("plugin", "x * 2", "x * 3"),
    "a decorated function": ("plugin", "x + 5", "x + 4"),
    "an argument of a decorator": ("plugin", "@multiply(3)", "@multiply(4)"),
    "a decorator": ("plugin", "return factor * function", "return factor + function"),
    "a jitted function": ("plugin", "x + 6", "x + 7"),
    "a derivative": ("plugin", "7 * tangents", "8 * tangents"),
    "an argument of vmap": ("plugin", "in_axes=0", "in_axes=1"),
    "another helper": ("plugin", "alias = helper", "alias = second_helper"),
    "an attribute of a class": ("plugin", "step = 0.25", "step = 0.5"),
    "an attribute of an object": ("plugin", "self.size = 8", "self.size = 7"),
    "a slot": ("plugin", "self.depth = 10", "self.depth = 9"),
    "a tuple in a base class": ("plugin", "shared = (1, 2)", "shared = (1, 3)"),
    "a special method": ("plugin", "x - 1", "x - 2"),
    "a static method": ("plugin", "return 11", "return 10"),
    "a cached property": ("plugin", "return 12", "return 11"),
    "a property": ("plugin", "return 13", "return 12"),
    "another base class": ("plugin", "class Base(Selector)", "class Base(Full)"),
    "a field's default": ("plugin", "rate: float = 0.5", "rate: float = 0.25"),
    "an argument of partial": ("plugin", "partial(helper, 14)", "partial(helper, 13)"),
    "a default argument": ("plugin", "default=15", "default=14"),
    "a default of a keyword": ("plugin", "keyword=16", "keyword=15"),
    "an installed class": ("plugin", "Uniform(2)", "BySize(2)"),
    "a set in the code": ("plugin", '{"x", "y", "z"}', '{"x", "y", "w"}'),
    "a captured variable": ("plugin", "captured(18)", "captured(19)"),
    "a getter": ("plugin", "itemgetter(25)", "itemgetter(24)"),
    "an object of a builtin method": ("plugin", '"a": 26', '"a": 25'),
    "a fraction": ("plugin", "Fraction(1, 27)", "Fraction(1, 26)"),
    "an enumeration": ("plugin", "RED = 28", "RED = 27"),
    "a dispatched function": ("plugin", "x + 29", "x + 28"),
    "a cached function": ("plugin", "x + 30", "x + 29"),
    "a constant of a module": ("helpers", "OUTER = 19", "OUTER = 18"),
    "a function of a module": ("helpers", "x + OUTER", "x - OUTER"),
    "an imported function": ("helpers", "x + 20", "x + 19"),
    "a module of a package": ("package/inner", "22", "21"),
    "a module that a function imports": ("lazy", "24", "23"),
    "a package that a function imports": ("package/late", "23", "22"),
}


@pytest.fixture
def describe_plugin(tmp_path, monkeypatch):
    """Describes the plugin after an edit, in which its modules are imported again."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "package").mkdir()

    def describe_plugin(file="plugin", old="", new=""):
        for name, text in PLUGIN.items():
            assert name != file or old in text
            edited = text.replace(old, new) if name == file else text
            (tmp_path / f"{name}.py").write_text(edited)
            for module in (name.replace("/", "."), name.split("/")[0]):
                sys.modules.pop(module, None)
        importlib.invalidate_caches()
        return describe(entry=importlib.import_module("plugin").ENTRY)

    yield describe_plugin
    for name in ("plugin", "helpers", "package", "package.inner", "package.late", "lazy"):
        sys.modules.pop(name, None)


def test_everything_that_a_plugin_refers_to_is_described(describe_plugin):
    before = describe_plugin()
    sys.modules["plugin"].dispatched(1)  # Fills a cache.
    assert describe(entry=sys.modules["plugin"].ENTRY) == before
    assert describe_plugin() == before
    unnoticed = []
    for name, edit in EDITS.items():
        now = describe_plugin(*edit)
        if f"file {edit[0]}.py" not in {path for path, *_ in differences(now, before)}:
            unnoticed.append(name)
    assert unnoticed == []


NOTEBOOK = """
import enum
import numpy as np
import pandas as pd
from collections import defaultdict

RATE = 0.1
TABLE = defaultdict(int, a=2)
SERIES = pd.Series([3.0, 4.0])


class Color(enum.Enum):
    RED = 1


def helper(x):
    return x + 5, Color.RED


class Meta(type):
    bound = 6


class Mine(metaclass=Meta):
    \"""Has a text.\"""

    step = 7

    def call(self, x=8):
        return helper(x) + RATE + len(TABLE) + SERIES.sum()


def captured(value):
    return lambda: value


ENTRY = Mine(), helper, captured(9)
"""


def of_notebook(old="", new="", name="cell"):
    """Describes an object of a notebook, whose cells have no file."""
    text = NOTEBOOK.replace(old, new) if old else NOTEBOOK
    file = f"<{name} {hash((old, new))}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    variables = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), variables)
    return describe(entry=variables["ENTRY"])


def test_code_of_notebooks_is_described_by_its_text():
    before = of_notebook()
    assert of_notebook(name="another cell") == before
    for edit in (
        ("= 0.1", "= 0.2"), ("a=2", "a=3"), ("3.0, 4.0", "3.0, 4.5"), ("x + 5", "x + 6"),
        ("bound = 6", "bound = 5"), ("RED = 1", "RED = 2"),
        ("step = 7", "step = 8"), ("x=8", "x=9"), ("(9)", "(8)"),
    ):  # fmt: skip
        assert differences(of_notebook(*edit), before), edit
    changed = of_notebook("x + 5", "x + 6")
    assert not differences(changed, before, allow_changed_code=True)


def test_what_a_class_captures_is_described():
    def make(value):
        class Capturing(selectors.Uniform):
            def select(self, key, state, context):
                return value, super().select(key, state, context)

        return Capturing(2)

    assert differences(describe(a=make(1)), describe(a=make(2)))
    assert not differences(describe(a=make(1)), describe(a=make(1)))


def test_code_without_a_text_is_an_error_that_says_what_to_do():
    variables = {"__name__": "__main__"}
    exec("def function(x):\n    return x", variables)
    with pytest.raises(ValueError, match=r"__main__.function: its source text .* Define it in a"):
        describe(function=variables["function"])


def test_the_order_of_sets_does_not_matter():
    one, other = frozenset([0, 8]), frozenset([8, 0])
    assert repr(one) != repr(other)
    assert describe(a=one) == describe(a=other)


def test_settings_of_jax_that_change_results_are_part_of_a_run(tmp_path, monkeypatch):
    data, settings = make_federation(), {"rounds": 1, "checkpoints": tmp_path}
    fit(of_round(), data, **settings)
    for name, value in (
        ("enable_x64", True),
        ("threefry_partitionable", False),
        ("default_prng_impl", "rbg"),
        ("default_matmul_precision", "highest"),
        ("random_seed_offset", 1),
    ):
        before = getattr(jax.config, f"jax_{name}")
        jax.config.update(f"jax_{name}", value)
        try:
            with pytest.raises(ValueError, match=f"JAX_{name.upper()}={value}: .* with {before}"):
                fit(of_round(), data, **settings)
        finally:
            jax.config.update(f"jax_{name}", before)
    flags = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count=4")
    fit(of_round(), data, **settings)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x --xla_cpu_enable_fast_math=true")
    with pytest.raises(ValueError, match="XLA_FLAGS='--xla_cpu_enable_fast_math=true'"):
        fit(of_round(), data, **settings)


def test_a_checkpoint_of_another_run_is_an_error(tmp_path):
    data = make_federation()
    moved = data._replace(train=data.train._replace(features=data.train.features + 1))
    settings = {"rounds": 4, "eval_every": 2, "checkpoints": tmp_path}
    fit(of_round(), data, **settings)
    for round, own, changed, message in (
        (of_round(solver=solvers.SGD(0.2, 2, steps=2)), data, {}, r"learning_rate=0.2: .* 0\.1\."),
        (
            of_round(selector=selectors.BySize(2)),
            data,
            {},
            "selector.*BySize.* of a run with .*Uniform",
        ),
        (of_round(), moved, {}, "data.train.features=float32"),
        (of_round(), data, {"eval_every": 1}, "eval_every=1: .* a run with 2"),
        (of_round(), data, {"rounds": 2}, "rounds=2: the checkpoints in .* has done 4"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(round, own, **(settings | changed))


def test_an_extended_run_equals_a_longer_one(tmp_path):
    data, settings = make_federation(), {"eval_every": 2, "seeds": (0, 3)}
    fit(of_round(), data, rounds=4, checkpoints=tmp_path, **settings)
    longer = fit(of_round(), data, rounds=8, checkpoints=tmp_path, **settings).dataset
    assert longer.identical(fit(of_round(), data, rounds=8, **settings).dataset)
