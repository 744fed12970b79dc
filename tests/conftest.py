"""Strict arithmetic, a small federated dataset and helpers that all tests share."""

import gc
import os
from functools import cache, partial
from itertools import chain, combinations
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from compilation_report import CompilationReport
from jax.flatten_util import ravel_pytree

from fedjax_fair.app.settings.named_methods import method_parts
from fedjax_fair.app.settings.registry import METHODS
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.models import from_flax
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import Cohort, Context, LocalResult, Model, Variables
from fedjax_fair.timing import ClientTimes, lognormal
from fedjax_fair.training import checkpoints, executable_cache
from fedjax_fair.utils.xla_options import known

# Nothing may rely on silent broadcasting or promotion.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Tracing and lowering take most of the time and create many small objects that stay alive. Without
# garbage collection of these and without source lines in programs, they take a seventh less.
jax.config.update("jax_traceback_in_locations_limit", 0)
gc.set_threshold(200_000, 20, 50)

# Runs of tests take a second and go on from every evaluation.
checkpoints.SAVE_INTERVAL_S = 0.0

SIZES = (3, 8, 5, 1, 6, 9)
NUM_CLASSES = 3
WIDTH = 4


INTEGRATION = (
    "README.md",
    "tests/app/",
    "tests/data/sources/test_named_sources.py",
    "tests/experiments/",
    "tests/golden/",
    "tests/parallel/",
    "tests/planning/",
    "tests/report/",
    "tests/submodular/test_processes.py",
    "tests/test_docs.py",
    "tests/test_first_hour.py",
    "tests/test_large_populations.py",
    "tests/test_mnist.py",
    "tests/test_notebooks.py",
    "tests/test_package.py",
    "tests/test_platforms.py",
    "tests/test_site.py",
    "tests/training/test_memory.py",
    "tests/training/test_recompilation.py",
)
"""Files and folders of tests that run processes, the command line, documentation or experiments."""


# Programs of tests are small and run once: compiled with little effort they are ready in a third of
# the time. The exhaustive tests run what users run.
QUICK_COMPILATION = tuple(
    f"--{option}={value}"
    for option, value in known(
        {
            "xla_backend_optimization_level": 0,
            "xla_cpu_use_fusion_emitters": "false",
            "xla_cpu_parallel_codegen_split_count": 1,
        }
    ).items()
)


def pytest_addoption(parser):
    parser.addoption(
        "--compilation-report",
        action="store_true",
        help="print processor time and compilations per test file",
    )


def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(INTEGRATION):
            item.add_marker(pytest.mark.integration)


def pytest_collection_finish():
    """Takes modules and collected tests, 700,000 objects, out of later garbage collections.

    Each would take 0.9 s.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config):
    """Starts JAX before any test can request a device for each core: all of a process see one."""
    if config.option.compilation_report:
        config.pluginmanager.register(CompilationReport())
    if "not slow" in config.option.markexpr:
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILATION])
    jax.devices()


def own(features, labels, owners, num_clients) -> ClientExamples:
    """Ownership from an owner per example."""
    order = np.argsort(owners, kind="stable").astype(np.int32)
    sizes = np.bincount(owners, minlength=num_clients).astype(np.int32)
    offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
    return ClientExamples(features, labels, order, offsets, sizes)


def make_federation(seed=0, sizes=SIZES) -> FederatedData:
    """Gaussian features, labels from a linear rule that differs between clients."""
    rng = np.random.default_rng(seed)
    num_clients, total = len(sizes), sum(sizes)

    def draw():
        owners = rng.permutation(np.repeat(np.arange(num_clients), sizes))
        features = rng.normal(size=(total, WIDTH)).astype(np.float32)
        rule = rng.normal(size=(num_clients, WIDTH, NUM_CLASSES))
        labels = np.einsum("tw,twc->tc", features, rule[owners]).argmax(axis=1)
        return own(features, labels.astype(np.int32), owners, num_clients)

    return FederatedData(draw(), draw(), None, NUM_CLASSES, "small")


def with_people(data: FederatedData) -> FederatedData:
    """Adds a sensitive feature of two values and validation examples, which some methods need."""

    def with_codes(part):
        codes = np.arange(len(part.labels), dtype=np.int32)[:, None] % 2
        return part._replace(sensitive_features=codes)

    names = (SensitiveFeature("sex", ("F", "M")),)
    validated = data._replace(validation=data.validation or data.test)
    return validated.map_parts(with_codes)._replace(sensitive_names=names)


def times_for(method: str, num_clients: int) -> ClientTimes | None:
    """Times of clients for an asynchronous method of the registry; None for another one."""
    is_asynchronous = any(METHODS[part].schedule is not None for part in method_parts(method))
    return lognormal(0.05, 1.0, num_clients) if is_asynchronous else None


@cache  # Programs are kept by the model that they train.
def linear_model(num_classes=NUM_CLASSES) -> Model:
    """A linear classifier written out, so that tests of the loop need no network library."""

    def init(key, x):
        kernel = 0.1 * jax.random.normal(key, (x.shape[-1], num_classes))
        return Variables({"kernel": kernel, "bias": jnp.zeros(num_classes)}, {})

    def apply(params, state, x, *, train, key):
        return x @ params["kernel"] + params["bias"][None, :], state

    def features(params, state, x):
        return x

    return Model.from_functions(init, apply, features)


def examples_of(client):
    """Returns the training features and labels of a client of `make_federation`."""
    train = make_federation().train
    first = train.offsets[client]
    rows = train.order[first : first + train.sizes[client]]
    return np.float64(train.features[rows]), train.labels[rows]


def linear_gradient(params, client):
    """Returns the gradient of `linear_model` on a client of `make_federation` in NumPy."""
    features, labels = examples_of(client)
    logits = features @ params["kernel"] + params["bias"]
    errors = np.exp(logits - logits.max(1, keepdims=True))
    errors /= errors.sum(1, keepdims=True)
    errors[np.arange(len(labels)), labels] -= 1
    return {"kernel": features.T @ errors / len(labels), "bias": errors.mean(0)}


class _Normalized(nn.Module):
    """A hidden layer with batch normalization whose name says nothing, and an output layer."""

    @nn.compact
    def __call__(self, x, train):
        # Minibatches of one example have no variance, and would magnify rounding errors.
        norm = nn.BatchNorm(not train, momentum=0.5, epsilon=0.1, name="middle")
        return nn.Dense(NUM_CLASSES)(nn.relu(norm(nn.Dense(5)(x))))


@cache
def normalized_model() -> Model:
    """A classifier with batch normalization, without a method ``features``."""
    return from_flax(_Normalized())


def make_context(examples, variables=None, model=None, round=0, **answers) -> Context:
    """A context of these examples that gives fixed answers, for example ``losses=array``."""

    if "gradients" in answers:  # As contexts do.
        answers["gradients"] = answers["gradients"].mask_nonfinite()

    def answer(name):
        def ask(variables, clients=None, **settings):
            return jax.tree.map(lambda leaf: leaf if clients is None else leaf[clients], fixed)

        fixed = answers.get(name)
        return None if fixed is None else ask

    return Context(
        round=jnp.int32(round),
        variables=variables,
        model=model,
        examples=jax.tree.map(jnp.asarray, examples),
        groups=None,
        losses=answer("losses"),
        accuracies=answer("accuracies"),
        gradients=answer("gradients"),
        client_means=answer("client_means"),
        weighted_sum=partial(collectives.weighted_sum, examples),
        map_clients=partial(collectives.map_clients, examples),
    )


def aggregate(aggregator, state, cohort, results, context):
    """Aggregates as a round does, which sums updates whose weights are known beforehand.

    Aggregators of equal structure share a compiled function for each context object.
    """
    if id(context) not in _aggregations:

        @jax.jit
        def compiled(aggregator, state, cohort, results):
            if aggregator.compute_weights is not None:
                weights = aggregator.compute_weights(state, cohort, context)
                total = context.weighted_sum(weights, results.update)
                results = results._replace(weighted_sum=total)
            return aggregator.aggregate(state, cohort, results, context)

        _aggregations[id(context)] = compiled, context
    return _aggregations[id(context)][0](aggregator, state, cohort, results)


_aggregations: dict = {}
"""Compiled functions by the identity of a context, which is kept alive with them."""


def aggregate_rows(aggregator, rows, clients, context, state=None, responded=None, losses=0.0):
    """Aggregates updates that are given as rows; without a state, in the first round.

    Returns the update as a vector, the state, and the aggregation, whose weights sum to 1.
    """
    rows, count = np.asarray(rows, np.float32), len(clients)
    _, unravel = ravel_pytree(context.variables.params)
    update = Variables(jax.vmap(unravel)(rows), {})
    losses = np.broadcast_to(np.float32(losses), count)
    results = LocalResult(update, losses, np.ones(count, np.int32))
    weights = np.full(count, 1 / count, np.float32)
    cohort = Cohort(np.asarray(clients, np.int32), weights, responded=responded)
    state = aggregator.init(context) if state is None else state
    update, state, aggregation = aggregate(aggregator, state, cohort, results, context)
    np.testing.assert_allclose(aggregation.weights.sum(), 1, rtol=1e-6)
    return np.float64(ravel_pytree(update.params)[0]), state, aggregation


def nearest_mixture(values):
    """Projection onto the simplex, by bisection for the level above which mass is kept."""
    low, high = values.min() - 1, values.max()
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.maximum(values - level, 0).sum() > 1 else (low, level)
    return np.maximum(values - low, 0)


def shortest_in_hull(rows):
    """The shortest vector in a convex hull, by the optima of all supports."""
    rows, best = np.asarray(rows), None
    sizes = range(1, len(rows) + 1)
    for support in chain.from_iterable(combinations(range(len(rows)), size) for size in sizes):
        part = rows[list(support)]
        system = np.ones((len(part) + 1, len(part) + 1))
        system[:-1, :-1], system[-1, -1] = part @ part.T, 0
        weights = np.linalg.lstsq(system, np.append(np.zeros(len(part)), 1))[0][:-1]
        found = weights @ part
        is_valid = (weights > -1e-9).all() and abs(weights.sum() - 1) < 1e-9
        if is_valid and (best is None or found @ found < best @ best - 1e-12):
            best = found
    return best


def pytest_runtest_teardown(item, nextitem):
    """Gives up compiled programs at the end of a file, if there are many.

    JAX keeps the text of each program, 1.5 MB, and lowers another one slower by what is kept: 300
    programs of a sine took 24 ms each in a new process, and 67 ms after 2,700 others. Each also
    maps memory, and all together would exceed the 65,530 maps that Linux allows a process, upon
    which it dies.
    """
    if (nextitem is None or nextitem.path != item.path) and num_maps() > MAX_MAPS:
        jax.clear_caches()
        executable_cache.clear()
        gc.collect()


MAX_MAPS = 5_000
"""Memory maps of about 700 programs."""


def num_maps() -> int:
    """Memory maps of this process; more than are allowed where the system does not say."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return MAX_MAPS + 1
    with maps.open("rb") as lines:
        return sum(1 for _ in lines)


@pytest.fixture
def wide_terminal(monkeypatch):
    """Output that is not wrapped."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def without_figures(monkeypatch):
    """Runs and sweeps of commands without figures and report, which take longer than training."""
    from fedjax_fair.app import experiment, sweep

    monkeypatch.setattr(experiment, "draw", lambda dataset, folder: None)
    monkeypatch.setattr(sweep.report, "page", lambda *arguments: "")


@pytest.fixture
def federation() -> FederatedData:
    return make_federation()


@pytest.fixture
def model() -> Model:
    return linear_model()


@pytest.fixture
def as_users_call():
    """Without the type checks of the test run, so that our own errors answer wrong types."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def tfds_folder() -> Path:
    """Folder of prepared tensorflow-datasets; skips the test without one."""
    beside = Path(__file__).parents[2] / "shared" / "data" / "tfds"
    folder = Path(os.environ.get("FEDJAX_FAIR_TFDS", beside))
    if not folder.is_dir():
        pytest.skip(f"no prepared data sets in {folder} (set FEDJAX_FAIR_TFDS)")
    return folder
