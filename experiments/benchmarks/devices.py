"""Communication between devices and their speedup: ``python -m experiments.benchmarks.devices``.

With 100 clients unless stated otherwise:

* the bytes of all collectives in the compiled round of LeNet, against a formula;
* the balance of cohorts over devices, which bounds the speedup of local training;
* with ``--time``, a round of a small network on a mesh of one device against one without.

Force devices on the host with ``XLA_FLAGS=--xla_force_host_platform_device_count=8``.
"""

from __future__ import annotations

import math
import re
from functools import partial

import jax
import numpy as np

import fedjax_fair as ff
from experiments.benchmarks.timing import alternate, federated_round, random_data, start
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.parallel.mesh import assign_clients, client_mesh, over_mesh, shard_data
from fedjax_fair.roles import Model, Selector
from fedjax_fair.rounds.round import Round
from fedjax_fair.selectors import gradients

CLIENTS, COHORT, POOL = 100, 10, 20
BITS = {"pred": 8, "s32": 32, "u32": 32, "f32": 32, "bf16": 16, "f16": 16}
METHODS = {
    # name: (selector, numbers that clients send beside losses and steps of local training)
    "fedavg": (ff.selectors.Uniform(COHORT), lambda width: 0),
    "power_of_choice": (ff.selectors.PowerOfChoice(COHORT, POOL), lambda width: POOL),
    "divfl, fresh": (ff.selectors.DivFL(COHORT), lambda width: CLIENTS * (width + 1)),
    "divfl, stale": (
        ff.selectors.DivFL(COHORT, gradients="stale"), lambda width: COHORT * (width + 1),
    ),
    "divfl, fresh, last layer": (
        ff.selectors.DivFL(COHORT, gradients=gradients.Fresh(gradients.LastLayer())),
        lambda width: CLIENTS * (85 * 10 + 1),
    ),
    "agnostic": (ff.selectors.Agnostic(0.1), lambda width: CLIENTS + 3 * (CLIENTS - COHORT)),
}  # fmt: skip


def make(selector: Selector, model: Model) -> Round:
    return federated_round(
        model, selector, 10, steps=20, aggregator=ff.aggregators.Mean("num_examples")
    )


def collective_bytes(hlo: str) -> tuple[int, int]:
    """Bytes that the collectives of a compiled program return, and how many there are."""
    pattern = r"= (.*?) (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\w*\("
    results = re.findall(pattern, hlo)
    shapes = [shape for result in results for shape in re.findall(r"(\w+)\[([\d,]*)\]", result)]
    sizes = [
        BITS[kind] // 8 * math.prod(int(n) for n in dims.split(",") if n) for kind, dims in shapes
    ]
    return sum(sizes), len(results)


def communication(data: FederatedData) -> None:
    mesh = client_mesh("all")
    placed = shard_data(data, mesh)
    print(f"\n| {mesh.size} devices | formula, bytes | compiled, bytes | collectives |")
    for name, (selector, sent) in METHODS.items():
        method = make(selector, ff.models.lenet(10))
        state = jax.eval_shape(method.init, jax.random.key(0), data)
        width = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.variables))
        program = jax.jit(over_mesh(method.step, mesh))
        counted, number = collective_bytes(program.lower(state, placed).compile().as_text() or "")
        formula = 4 * (width + 3 * COHORT + sent(width))
        print(f"| {name} | {formula:,} | {counted:,} | {number} |")


def busiest(repeats: int = 2000) -> None:
    """The mean, over random cohorts, of the busiest device's share of a cohort's examples."""
    rng = np.random.default_rng(0)
    print("\n| clients, cohort | " + " | ".join(f"{n} devices" for n in (2, 4, 8, 16, 64)) + " |")
    for clients, cohort in ((100, 10), (1000, 100), (10_000, 1000), (1000, 1000)):
        for law in ("equal sizes", "lognormal sizes"):
            sizes = np.full(clients, 600)
            if law != "equal sizes":
                sizes = np.maximum(1, rng.lognormal(4, 1, clients)).astype(int)
            row = [_speed_up(rng, sizes, cohort, devices, repeats) for devices in (2, 4, 8, 16, 64)]
            print(f"| {clients:,}, {cohort:,}, {law} | " + " | ".join(f"{x:.1f}" for x in row), "|")


def _speed_up(rng, sizes: np.ndarray, cohort: int, devices: int, repeats: int) -> float:
    """Examples of a cohort over those of its busiest device, on average over cohorts."""
    assigned = assign_clients(sizes, devices)
    ratios = []
    for _ in range(max(20, repeats * 10 // cohort)):
        chosen = rng.choice(len(sizes), cohort, replace=False)
        loads = np.bincount(assigned[chosen], weights=sizes[chosen], minlength=devices)
        ratios.append(loads.max() / loads.sum())
    return 1 / float(np.mean(ratios))


def overhead(data: FederatedData, repeats: int) -> None:
    """A round on a mesh of one device over a round without a mesh."""
    mesh = client_mesh(1)
    placed, data = shard_data(data, mesh), jax.device_put(data)
    for name in ("fedavg", "divfl, stale"):
        method = make(METHODS[name][0], ff.models.mlp(10, hidden=(64,)))
        state = jax.jit(method.init)(jax.random.key(0), data)
        plain, sharded = jax.jit(method.step), jax.jit(over_mesh(method.step, mesh))
        one, many = alternate(
            partial(plain, state, data), partial(sharded, state, placed), repeats=repeats
        )
        print(f"{name}: a mesh of one device takes {many.ratio_to(one):.2f} of the time without.")


def main() -> None:
    options = start("Communication between devices and their speedup", time=False, repeats=61)
    data = random_data((28, 28, 1), CLIENTS, 100)
    if options.time:
        overhead(data, options.repeats)
    else:
        busiest()
        communication(data)


if __name__ == "__main__":
    main()
