"""Tests of the settings that a benchmark tries, and of their selection."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import times_for

from fedjax_fair import models
from fedjax_fair.app.build import method_round
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import Config
from fedjax_fair.app.settings.method import Range
from fedjax_fair.app.settings.named_methods import method_settings, resolve_method
from fedjax_fair.app.settings.names import SETTINGS, change
from fedjax_fair.app.settings.registry import GROUPS, METHODS, RANGES
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


@pytest.mark.parametrize("num_blocks", [1, 3, 8, 12])
def test_settings_of_blocks_are_a_centered_sobol_sequence(num_blocks):
    ranges = {"a": Range(0.01, 1.0), "b": Range(1.0, 3.0, "linear"), "c": Range(1e-5, 0.1)}
    num = 8 * num_blocks
    whole = 2 ** int(np.ceil(np.log2(num)))
    u = _sobol(num) + 0.5 / whole
    expected = np.stack([10 ** (2 * u[:, 0] - 2), 1 + 2 * u[:, 1], 10 ** (4 * u[:, 2] - 5)], 1)
    settings = tuning.block_settings(ranges, num_blocks)
    assert [list(values) for values in settings] == [["a", "b", "c"]] * num
    actual = np.array([list(values.values()) for values in settings])
    np.testing.assert_allclose(actual, expected, rtol=5.1e-3)
    for value in actual.flat:
        assert float(f"{value:.3g}") == value
    for block in u.reshape(num_blocks, 8, 3):  # One value of each setting in each eighth.
        np.testing.assert_array_equal(np.sort(np.floor(8 * block), axis=0).T, [range(8)] * 3)
    for column in u.T:
        assert len(set(column)) == num


def test_range_finding_spans_four_decades():
    for num in (8, 12):
        rates = tuning.rates(num)
        assert rates[0] == 0.003
        np.testing.assert_allclose(np.diff(np.log10(rates)), 4 / num, atol=2e-3)


def test_range_finding_has_the_batch_axes_of_tuning():
    """Other settings are at the center of their ranges, up to the last of three digits."""
    ranges = {"q": Range(0.001, 15.0), "beta": Range(0.1, 0.9, "linear")}
    settings = tuning.range_settings(ranges, 12)
    assert [values["learning_rate"] for values in settings] == tuning.rates(12)
    for name, center in {"q": (0.001 * 15.0) ** 0.5, "beta": 0.5}.items():
        values = [values[name] for values in settings]
        assert len(set(values)) == 2
        np.testing.assert_allclose(values, center, rtol=0.011)


@pytest.mark.parametrize(
    ("accuracies", "low"),
    [([0.1, 0.9, 0.5], 0.01), ([0.9, np.nan, np.inf], 0.001), ([np.nan] * 3, 0.001)],
)
def test_the_window_is_a_decade_to_either_side_of_the_best(accuracies, low):
    assert tuning.window([0.01, 0.1, 1.0], accuracies) == Range(low, 100 * low)


@pytest.mark.parametrize(("num_blocks", "needed"), [(8, 3), (12, 4)])
def test_a_third_of_the_blocks_in_an_outer_eighth_is_a_limit(num_blocks, needed):
    ranges = {"a": Range(1.0, 1e8), "b": Range(0.0001, 1.0, "linear")}
    for num in range(num_blocks + 1):
        for value, side in ((5.0, -1), (5e7, 1), (50.0, 0), (5e6, 0)):
            chosen = [{"a": value, "b": 1.0}] * num + [{"a": 1e4, "b": 1.0}] * (num_blocks - num)
            expected = {"a": side} if num >= needed and side else {}
            assert tuning.at_limits(ranges, chosen) == expected


def test_of_two_limits_the_one_of_more_blocks_counts():
    ranges = {"a": Range(1.0, 1e8), "b": Range(0.0001, 1.0, "linear")}
    chosen = [{"a": 5.0, "b": 0.5}] * 4 + [{"a": 5e7, "b": 0.5}] * 5 + [{"a": 1e4, "b": 0.5}] * 3
    assert tuning.at_limits(ranges, chosen) == {"a": 1}
    assert tuning.moved(ranges["a"], 1) == Range(10.0, 1e9)
    assert tuning.moved(ranges["a"], -1) == Range(0.1, 1e7)


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
    "loss_gap.aggregator.strength": (0.3, 1, 3, 10),
    "shapfed.memory": (0.5, 0.9),
    "fedpw.beta": (0.3,),
    "fedpw.drop_rate": (0.3,),
    "fedmdfg.max_angle": (11.25,),
    "fedheal.min_consistency": (0.3,),
    "fedheal.beta": (0.4,),
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
    "pfedfair.solver.strength": (0.9,),
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
        setting = used[lookup("setting", key, SETTINGS)]
        assert setting.traced
        assert values.low / 2 <= setting.default <= values.high * 2


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].centralized_fn is None])
def test_settings_share_compiled_functions(name):
    rounds, network = [], None
    if name in GROUPS["adapters"]:
        plain = models.logistic(10)
        variables = plain.init(jax.random.key(0), jnp.zeros((1, 64)))
        network = models.lora(plain, variables, rank=2)
    config = change(change(CONFIG, "solver", "epochs", None), "solver", "steps", 5)

    def made(own):
        times = times_for(name, 20)
        return method_round(own, name, 10, 100, model=network, num_clients=20, times=times)

    for end in ("low", "high"):
        own = change(config, "solver", "learning_rate", tuning.rates(8)[end == "high"])
        for key, values in METHODS[name].ranges.items():
            own = change(own, *lookup("setting", key, SETTINGS), getattr(values, end))
        rounds.append(made(own))
    # The learning rate and each range differ between the rounds.
    assert len(stack_trees(rounds).per_run) >= 1 + len(METHODS[name].ranges)


def test_combined_methods_have_the_ranges_of_both():
    method, _ = resolve_method(CONFIG, "subtrunc+q_fedavg")
    assert method.ranges == {**METHODS["subtrunc"].ranges, **METHODS["q_fedavg"].ranges}


def test_names_with_settings_are_parsed():
    name = tuning.with_settings("divfl+q_fedavg", {"learning_rate": 0.0123, "q": 1e-5})
    _, own = resolve_method(CONFIG, name)
    assert (own.solver.learning_rate, own.aggregator.q) == (0.0123, 1e-5)
    assert tuning.with_settings("fedavg", {}) == "fedavg"
    name = tuning.with_settings("fedavg:batch_size=20", {"learning_rate": 0.1})
    assert resolve_method(CONFIG, name)[1].solver.batch_size == 20


def _brute_force(accuracy, deviation, compute, parity):
    """Returns the choices of a block."""
    values = [*zip(accuracy, deviation, strict=True)]
    finite = [i for i, row in enumerate(values) if np.isfinite(row).all()]
    known = [i for i, value in enumerate(compute) if np.isfinite(value)]
    best = max((accuracy[i] for i in finite), default=0)
    near = [i for i in finite if accuracy[i] > best - 0.01 - 1e-6]
    equal = [i for i in near if np.isfinite(parity[i])]
    return [
        min(finite, key=lambda i: (-round(accuracy[i], 7), i), default=0),
        min(near, key=lambda i: (round(deviation[i], 7), i), default=0),
        min(known, key=lambda i: (-round(compute[i], 7), i), default=0),
        min(equal, key=lambda i: (round(parity[i], 7), i), default=0),
    ]


@pytest.mark.parametrize("seed", range(100))
def test_selection_equals_brute_force(seed):
    random = np.random.default_rng(seed)
    shape = random.integers(1, 4), random.integers(1, 9)
    # Few different values, for ties; steps of 0.005, for means at the tolerance.
    values = [random.integers(160, 166, shape) * 0.005 for _ in range(4)]
    for value in values:
        value[random.random(shape) < 0.1] = random.choice([np.nan, np.inf, -np.inf])
    names = ("accuracy", "standard_deviation", "compute", "parity")
    chosen = tuning.select(dict(zip(names, values, strict=True)))
    assert list(chosen) == ["mean", "fairest", "compute", "parity"]
    for block, of_block in enumerate(zip(*values, strict=True)):
        assert [indices[block] for indices in chosen.values()] == _brute_force(*of_block)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tuning.block_settings({"a": Range(0.0, 2.0)}, 2), "a=.*: expected 0 < low"),
        (lambda: tuning.block_settings({"a": Range(1.0, np.nan)}, 2), "a=.*: expected 0 < low"),
        (lambda: tuning.block_settings({"a": Range(1, 2, "x")}, 2), "a=.*: expected scale"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
