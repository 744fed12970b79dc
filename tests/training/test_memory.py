"""Estimates of memory against the memory that runs take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from dataclasses import replace
from fedjax_fair.app.settings import presets
from fedjax_fair.app.build import build, method_round
from fedjax_fair.training.fit import fit
from experiments.benchmarks.memory import Watch, resident
from fedjax_fair.app.settings.config import ModelConfig

runs, rounds, eval_every, clients, width = map(int, sys.argv[1:])

config = presets.PRESETS["digits"].config
config = presets.resolve(replace(
    config, methods=("fedavg",), model=ModelConfig(hidden=(width,)),
    data=replace(config.data, clients=clients),
    solver=replace(config.solver, steps=1, batch_size=1),
    selector=replace(config.selector, cohort_size=1),
))
data, watch = build(config).data, Watch()
methods = [method_round(config, "fedavg", data.num_classes)] * runs
fit(
    methods, data, rounds=rounds, seeds=range(runs), eval_every=eval_every,
    train_loss=False, callbacks=[watch],
)
print(watch.reported, resident("VmHWM") - watch.before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("runs", "rounds", "eval_every", "clients", "width"),
    [
        pytest.param(80, 2, 2, 10, 16_384, id="models", marks=pytest.mark.slow),
        pytest.param(100, 300, 1, 300, 2, id="records", marks=pytest.mark.slow),
    ],
)
def test_the_estimate_is_near_what_is_used(runs, rounds, eval_every, clients, width):
    arguments = map(str, (runs, rounds, eval_every, clients, width))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": ""},  # It computes for longer than it is compiled.
        capture_output=True,
        text=True,
        check=True,
    )
    estimate, used = map(int, done.stdout.split())
    assert estimate > 200 * 2**20  # Enough for what the interpreter itself takes not to matter.
    assert 0.75 * estimate < used < 1.25 * estimate


FROZEN = """
import sys
import jax
import numpy as np
import fedjax_fair as ff
from experiments.benchmarks.memory import resident

clients, seeds = map(int, sys.argv[1:])
data, key = ff.data.load("digits", ff.data.iid(100)), jax.random.key(0)

class Estimate(ff.Callback):
    def on_compiled(self, num_bytes):
        self.num_bytes = num_bytes

def train(width):
    network, estimate = ff.models.mlp(10, hidden=(width, width, 16)), Estimate()
    shapes = jax.eval_shape(network.init, key, data.train.features[:1])
    base = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.01, np.float32), shapes)
    method = ff.Round(
        ff.models.freeze(network, base, ("head",)),
        ff.selectors.Uniform(clients),
        ff.solvers.SGD(0.1, 1, steps=1),
        ff.aggregators.Mean(),
        clients_per_batch=clients,
    )
    before = resident("VmRSS")
    ff.fit(
        method, data, rounds=1, seeds=range(seeds), train_loss=False, callbacks=[estimate]
    )
    return estimate.num_bytes, resident("VmHWM") - before

train(16)
print(*train(8000), 4 * 8000 * (64 + 8000 + 16))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("clients", "seeds"), [(1, 1), (100, 1), (1, 8)])
def test_memory_grows_by_one_copy_of_a_frozen_network(clients, seeds):
    done = subprocess.run(
        [sys.executable, "-c", FROZEN, str(clients), str(seeds)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    estimate, used, base = map(int, done.stdout.split())
    assert base < estimate < 1.1 * base
    assert 0.98 * base < used < base + 64 * 2**20  # The executables of new shapes take 40 MB.


SHAPES = """
import fedjax_fair as ff
from experiments.benchmarks.memory import resident

federation = ff.data.load("digits", ff.data.iid(5))
method = ff.Round(
    ff.models.logistic(10),
    ff.selectors.Uniform(2),
    ff.solvers.SGD(0.1, 10, steps=2),
    ff.aggregators.Mean(),
)

def train(clients):
    ff.fit(method, ff.data.load("digits", ff.data.iid(clients)), rounds=1)
    with open("/proc/self/maps") as maps:
        print(len(maps.readlines()), resident("VmRSS") >> 20, flush=True)

for clients in range(20, 28):
    train(clients)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_fits_of_new_shapes_do_not_use_up_memory_maps():
    """Of which Linux allows 65,530; a fit of a new shape takes hundreds."""
    done = subprocess.run(
        [sys.executable, "-c", SHAPES],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    maps, resident = zip(
        *(map(int, line.split()) for line in done.stdout.splitlines()), strict=True
    )
    of_one = maps[1] - maps[0]
    assert of_one > 100
    assert maps[-1] - maps[3] < of_one / 2  # Nothing in four more fits.
    assert resident[-1] - resident[3] < 80
