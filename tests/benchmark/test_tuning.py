"""Tests of the settings that a benchmark tries, and of their selection."""

from dataclasses import replace

import numpy as np
import pytest

from fedjax_fair.app.build import method_round
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.method import Range
from fedjax_fair.app.settings.named_methods import method_settings, resolve_method
from fedjax_fair.app.settings.names import change, setting_names
from fedjax_fair.app.settings.registry import METHODS, RANGES
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.benchmark import tuning
from fedjax_fair.training.stacked import stack_trees

CONFIG = presets.resolve(Config())


def _sobol(num):
    """Three dimensions, from the direction numbers of Joe and Kuo, in the order of Gray codes."""
    bits = 30
    directions = [[1] * bits, [1], [1, 3]]
    for j in range(1, bits):
        directions[1].append(2 * directions[1][j - 1] ^ directions[1][j - 1])
    m = directions[2]
    for j in range(2, bits):
        m.append(2 * m[j - 1] ^ 4 * m[j - 2] ^ m[j - 2])
    points = np.zeros((num, 3))
    for i in range(num):
        gray = i ^ (i >> 1)
        for d in range(3):
            x = 0
            for j in range(bits):
                if gray >> j & 1:
                    x ^= directions[d][j] << (bits - 1 - j)
            points[i, d] = x / 2**bits
    return points


@pytest.mark.parametrize("num", [1, 2, 16, 32])
def test_settings_are_a_centered_sobol_sequence(num):
    ranges = {"a": Range(0.01, 1.0), "b": Range(1.0, 3.0, "linear"), "c": Range(1e-5, 0.1)}
    u = _sobol(num) + 0.5 / num
    expected = np.stack([10 ** (2 * u[:, 0] - 2), 1 + 2 * u[:, 1], 10 ** (4 * u[:, 2] - 5)], 1)
    settings = tuning.sobol_settings(ranges, num)
    assert [list(values) for values in settings] == [["a", "b", "c"]] * num
    actual = np.array([list(values.values()) for values in settings])
    np.testing.assert_allclose(actual, expected, rtol=5.1e-3)
    for column in u.T:  # One value in each part.
        np.testing.assert_allclose(np.sort(column), (np.arange(num) + 0.5) / num)
    for value in actual.flat:
        assert float(f"{value:.3g}") == value


def test_all_methods_try_the_same_learning_rates():
    rates = {
        tuple(values["learning_rate"] for values in tuning.settings_of(name, CONFIG, 16))
        for name in ("fedavg", "fedadam", "divfl+equitable", "local_converged")
    }
    assert len(rates) == 1
    assert min(min(rates)) > tuning.LEARNING_RATES.low
    assert max(max(rates)) < tuning.LEARNING_RATES.high


def test_every_range_belongs_to_a_method():
    assert RANGES.keys() <= METHODS.keys()


# Grids of the papers, or of the code of their authors. The zero of a grid (FedFV) is excluded,
# because a plain zero changes what is compiled.
_GRIDS = {
    "q_fedavg.q": (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15),
    "agnostic.mixture_learning_rate": (0.01, 0.1, 1),
    "tilted.tilt": (0.01, 0.1, 1, 10),
    "fedmgda.epsilon": (0.05, 0.1, 0.5, 1),
    "fedfv.keep_fraction": (0.1, 0.2, 1 / 3, 1 / 2, 2 / 3),
    "propfair.baseline": (2, 3, 4, 5),
    "gifair.aggregator.strength": (0.1, 0.5, 0.9),
    "fairfed.beta": (0.1, 0.5, 1, 5),
    "fedfb.aggregator.alpha": (0.001, 0.05, 0.08, 0.1, 0.2, 0.5, 1, 2),
    "fedcor.annealing": (0.9, 0.95),
    "fedprox.prox": (0.001, 0.01, 0.1, 1),
    "feddyn.solver.alpha": (0.001, 0.01, 0.1),
    "mime_lite.beta": (0.9, 0.99),
    **{
        f"{name}.server_learning_rate": (10**-2.5, 0.01, 0.1, 1, 10)
        for name in ("fedavgm", "fedadagrad", "fedadam", "fedyogi")
    },
    **{f"{name}.tau": (1e-5, 0.1) for name in ("fedadagrad", "fedadam", "fedyogi")},
    "fedavgm.beta1": (0.9,),
    "ditto.personal_prox": (0.05, 0.1, 0.2, 1, 2),
    "pfedme.personal_prox": (15, 30),
    "pfedme.inner_learning_rate": (0.01, 0.1),
    "per_fedavg.inner_learning_rate": (0.01,),
    "apfl.mixing_weight": (0.25, 0.5, 0.75),
}


@pytest.mark.parametrize("setting", _GRIDS)
def test_ranges_contain_the_grids_of_the_papers(setting):
    name, _, key = setting.partition(".")
    low, high, _ = RANGES[name][key]
    assert low <= min(_GRIDS[setting])
    assert max(_GRIDS[setting]) <= high


@pytest.mark.parametrize("name", METHODS)
def test_ranges_are_of_traced_settings(name):
    ranges = METHODS[name].ranges
    assert len(ranges) <= 2
    config = replace(CONFIG, methods=(name,))
    used = method_settings(config, name)
    assert used["solver", "learning_rate"].traced
    for key, values in ranges.items():
        values.check(key)
        setting = used[lookup("setting", key, setting_names(config))]
        assert setting.traced
        assert values.low / 2 <= setting.default <= values.high * 2
    assert len(tuning.settings_of(name, CONFIG, 16)) == 16


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].centralized_fn is None])
def test_settings_share_compiled_functions(name):
    rounds = []
    config = change(change(CONFIG, "solver", "epochs", None), "solver", "steps", 5)
    for end in ("low", "high"):
        own = change(config, "solver", "learning_rate", getattr(tuning.LEARNING_RATES, end))
        for key, values in METHODS[name].ranges.items():
            own = change(own, *lookup("setting", key, setting_names(own)), getattr(values, end))
        rounds.append(method_round(own, name, 10, 100, num_clients=20))
    # The learning rate and each range differ between the rounds.
    assert len(stack_trees(rounds).per_run) >= 1 + len(METHODS[name].ranges)


def test_combined_methods_have_the_ranges_of_both():
    method, _ = resolve_method(CONFIG, "subtrunc+q_fedavg")
    assert method.ranges == {**METHODS["subtrunc"].ranges, **METHODS["q_fedavg"].ranges}
    assert list(tuning.settings_of("subtrunc+q_fedavg", CONFIG, 2)[0]) == [
        "learning_rate",
        "lam",
        "q",
    ]


def test_names_with_settings_are_parsed():
    name = tuning.with_settings("divfl+q_fedavg", {"learning_rate": 0.0123, "q": 1e-5})
    _, own = resolve_method(CONFIG, name)
    assert (own.solver.learning_rate, own.aggregator.q) == (0.0123, 1e-5)
    assert tuning.with_settings("fedavg", {}) == "fedavg"
    name = tuning.with_settings("fedavg:batch_size=20", {"learning_rate": 0.1})
    assert resolve_method(CONFIG, name)[1].solver.batch_size == 20


def _brute_force(accuracy, worst, deviation):
    means = []
    for rows in zip(accuracy, worst, deviation, strict=True):
        values = [sum(row) / len(row) for row in rows]
        means.append(values if np.isfinite(values).all() else None)
    finite = [i for i, row in enumerate(means) if row is not None]
    if not finite:
        return [0] * 3
    best = max(means[i][0] for i in finite)
    near = [i for i in finite if means[i][0] > best - 0.01 - 1e-6]
    return [
        min(finite, key=lambda i: (-round(means[i][0], 7), i)),
        min(finite, key=lambda i: (-round(means[i][1], 7), i)),
        min(near, key=lambda i: (round(means[i][2], 7), i)),
    ]


@pytest.mark.parametrize("seed", range(100))
def test_selection_equals_brute_force(seed):
    random = np.random.default_rng(seed)
    shape = random.integers(1, 9), random.integers(1, 4)
    # Few different values, for ties; steps of 0.005, for means at the tolerance.
    values = [random.integers(160, 166, shape) * 0.005 for _ in range(3)]
    for value in values:
        value[random.random(shape) < 0.05] = random.choice([np.nan, np.inf, -np.inf])
    chosen = tuning.select(dict(zip(tuning.MEASURES, values, strict=True)))
    assert list(chosen) == ["mean", "worst", "fairest"]
    assert list(chosen.values()) == _brute_force(*values)


def test_nothing_is_selected_if_all_settings_diverged():
    nan = np.full((3, 2), np.nan)
    chosen = tuning.select(dict.fromkeys(tuning.MEASURES, nan))
    assert set(chosen.values()) == {0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tuning.sobol_settings({"a": Range(1.0, 2.0)}, 12), "num=12: expected a power"),
        (lambda: tuning.sobol_settings({"a": Range(1.0, 2.0)}, 0), "num=0: expected a power"),
        (lambda: tuning.sobol_settings({}, 2), "expected one or more ranges"),
        (lambda: tuning.sobol_settings({"a": Range(0.0, 2.0)}, 2), "a=.*: expected 0 < low"),
        (lambda: tuning.sobol_settings({"a": Range(1.0, np.nan)}, 2), "a=.*: expected 0 < low"),
        (lambda: tuning.sobol_settings({"a": Range(1, 2, "x")}, 2), "a=.*: expected scale"),  # pyright: ignore[reportArgumentType]
        (lambda: tuning.select({"accuracy": [[1.0]]}), "no worst_10pct"),
        (lambda: tuning.select({n: [1.0] for n in tuning.MEASURES}), "shape \\(1,\\)"),
        (
            lambda: tuning.select(
                {"accuracy": [[1.0]], "worst_10pct": [[1.0]], "standard_deviation": [[1.0, 2]]}
            ),
            "expected one shape",
        ),
        (lambda: tuning.settings_of("fedavgg", CONFIG, 2), "fedavg"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
