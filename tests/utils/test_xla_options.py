"""Options that the package asks XLA for are those that the installed version has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_fair as ff
from fedjax_fair.benchmark import compute
from fedjax_fair.metrics import class_based, noise
from fedjax_fair.training import compiled_runs
from fedjax_fair.utils import xla_options

REMOVED = {"xla_cpu_use_fusion_emitters": False}


def compile_with(options):
    jax.jit(lambda x: x + 1).lower(0.0).compile(options)


@pytest.mark.parametrize("options", [compute._CPU_OPTIONS, xla_options.BRIEF_CPU_OPTIONS])
def test_the_installed_version_knows_all_options_of_the_package(options):
    assert options
    compile_with(options)


def test_options_are_left_out_exactly_where_the_installed_version_refuses_them():
    assert REMOVED.keys() == xla_options._REMOVED.keys()
    for name, value in REMOVED.items():
        if xla_options.known({name: value}):
            compile_with({name: value})
        else:
            with pytest.raises(jax.errors.JaxRuntimeError, match=name):
                compile_with({name: value})


def test_an_option_is_known_until_the_version_that_removed_it(monkeypatch):
    monkeypatch.setattr(xla_options, "_REMOVED", {"old": (0, 11, 1)})
    kept = []
    for version in ((0, 8, 1), (0, 11, 0), (0, 11, 1), (0, 12, 0)):
        monkeypatch.setattr(jax, "__version_info__", version)
        kept.append(tuple(xla_options.known({"old": 1, "new": 2})))
    assert kept == [("old", "new"), ("old", "new"), ("new",), ("new",)]


def test_flags_of_the_environment_decide_before_the_package(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3 --xla_b=1")
    options = {"xla_backend_optimization_level": 1, "xla_backend": 2, "xla_b": 3, "xla_c": 4}
    assert xla_options.undecided(options) == {"xla_backend": 2, "xla_c": 4}


@pytest.mark.parametrize(
    ("backend", "flags", "options"),
    [
        ("cpu", "", xla_options.BRIEF_CPU_OPTIONS),
        ("cpu", " ".join(f"--{name}=1" for name in xla_options.BRIEF_CPU_OPTIONS), None),
        ("gpu", "", None),
        ("tpu", "", None),
    ],
)
def test_brief_functions_have_options_of_the_backend(backend, flags, options, monkeypatch):
    asked = []
    monkeypatch.setattr(
        jax, "jit", lambda function, compiler_options: asked.append(compiler_options) or function
    )
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setenv("XLA_FLAGS", flags)
    call = xla_options.brief_jit(lambda x: x + 1)
    assert not asked  # The backend is not started by a definition.
    assert [call(1), call(2)] == [2, 3]
    assert asked == [options]


def computed(function, *arguments, **settings):
    return jax.tree.leaves(jax.jit(function, **settings)(*arguments))


USUAL_OPTIONS = xla_options.known(  # Those of XLA, which tests change.
    {
        "xla_backend_optimization_level": 3,
        "xla_cpu_use_fusion_emitters": True,
        "xla_cpu_parallel_codegen_split_count": 32,
    }
)
BRIEF_OPTIONS = USUAL_OPTIONS | xla_options.BRIEF_CPU_OPTIONS
SHAPES = [(3, 2), (10, 10), (57, 7)]


@pytest.mark.parametrize(("clients", "classes"), SHAPES)
def test_summaries_have_the_same_bits_with_brief_options(clients, classes):
    rng = np.random.default_rng(clients)
    accuracy = rng.uniform(size=(4, classes)).astype(np.float32)
    counts = rng.integers(0, 30, (clients, classes)).astype(np.int32)
    function = class_based._measure.__wrapped__
    with jax.numpy_rank_promotion("allow"):
        usual, brief = (
            computed(function, accuracy, counts, compiler_options=options)
            for options in (USUAL_OPTIONS, BRIEF_OPTIONS)
        )
    assert [x.tobytes() for x in usual] == [x.tobytes() for x in brief]


@pytest.mark.parametrize(("clients", "classes"), SHAPES)
@pytest.mark.parametrize("is_class_based", [False, True])
def test_noise_floors_are_equal_within_rounding(clients, classes, is_class_based):
    rng = np.random.default_rng(clients)
    of_what = classes if is_class_based else clients
    accuracies = jnp.asarray(rng.uniform(size=(20, of_what)), jnp.float32)
    counts = rng.integers(1, 30, (clients, classes)).astype(np.int32)
    groups = (np.arange(clients) % 2).astype(np.int32)
    function = noise._averages.__wrapped__
    arguments = noise.OF_SPREAD, is_class_based, accuracies, counts, groups
    usual, brief = (
        computed(function, *arguments, compiler_options=options, static_argnums=(0, 1))
        for options in (USUAL_OPTIONS, BRIEF_OPTIONS)
    )
    np.testing.assert_allclose(usual, brief, rtol=4e-7)


@pytest.mark.parametrize(
    ("model", "clients", "shape"),
    [
        (ff.models.logistic(7), 57, (9,)),
        (ff.models.mlp(10, (64, 16)), 31, (64,)),
    ],
    ids=["logistic", "mlp"],
)
def test_evaluations_have_the_same_bits_with_brief_options(model, clients, shape, monkeypatch):
    rng = np.random.default_rng(clients)
    count = 23 * clients
    features = rng.normal(size=(count, *shape)).astype(np.float32)
    owned = np.split(np.arange(count), clients)
    data = ff.data.from_arrays(features, rng.integers(0, 7, count).astype(np.int32), owned)
    method = ff.Round(model, ff.selectors.Uniform(2), ff.solvers.SGD(0.1, 10, epochs=1),
                      ff.aggregators.Mean())  # fmt: skip
    results, asked = [], []
    for options in (USUAL_OPTIONS, BRIEF_OPTIONS):
        monkeypatch.setattr(
            compiled_runs,
            "undecided",
            lambda brief, options=options: asked.append(brief) or options,
        )
        results.append(ff.fit(method, data, rounds=1).dataset)
    assert asked == 2 * [xla_options.BRIEF_CPU_OPTIONS]
    for name, values in results[0].items():
        assert values.values.tobytes() == results[1][name].values.tobytes(), name
