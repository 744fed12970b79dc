"""Federations, methods, seeds and rates, which docs/reproduction/adapters.md fixes before runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import optax
from sklearn.datasets import load_digits

import fedjax_fair as ff
from experiments.reproduction.runs import federate
from fedjax_fair.data import FederatedData
from fedjax_fair.data.sources.shakespeare import find_shakespeare, read_roles
from fedjax_fair.data.text.windows import characters, make_windows
from fedjax_fair.roles import Model, Solver, Variables
from fedjax_fair.solvers import SGD

__all__ = [
    "ALL", "COHORT", "FEDERATIONS", "GROUPS", "METHODS", "RANKS", "ROUNDS",
    "Federation", "make_round",
]  # fmt: skip

ROUNDS, COHORT = 48, 5
CLIENTS_PER_GROUP, GROUPS = 10, ("near", "far")
"""Groups of clients: near to the data of the base, and far from it."""
ALPHA, DIGITS_TEST_FRACTION = 0.3, 0.4
NUM_BASE_DIGITS, LENGTH, WINDOWS = 300, 40, (100, 60)
"""Images of the base, characters of a window, and windows of a role for training and testing."""
COMEDIES = (
    "a-midsummer-night-s-dream", "all-s-well-that-ends-well", "as-you-like-it",
    "love-s-labours-lost", "measure-for-measure", "much-ado-about-nothing", "the-comedy-of-errors",
    "the-merchant-of-venice", "the-merry-wives-of-windsor", "the-taming-of-the-shrew",
    "twelfth-night", "two-gentlemen-of-verona",
)  # fmt: skip
HISTORIES = (
    "edward-iii", "henry-iv-part-1", "henry-iv-part-2", "henry-v", "henry-vi-part-1",
    "henry-vi-part-2", "henry-vi-part-3", "henry-viii", "king-john", "richard-ii", "richard-iii",
)  # fmt: skip

Loaded = tuple[FederatedData, FederatedData]


class Federation(NamedTuple):
    """A federated dataset of the study.

    Attributes:
        load: A function of the data folder and the seeds, which returns the examples of the base,
            as one client, and the federated dataset, with one partition for each seed.
        model: The network for a number of classes.
        pretraining: Solver of a round of pretraining.
        pretraining_rounds: Number of these rounds.
        eval_every: Rounds between evaluations.
        sgd: Local training of a client in a round, for a step size.
        rates: Step sizes to choose from.
        methods: Names of the methods that are trained.
        tuning_seeds: Seeds of the choice of step sizes.
        seeds: Seeds of the results.
    """

    load: Callable[[str | None, Sequence[int]], Loaded]
    model: Callable[[int], Model]
    pretraining: Solver
    pretraining_rounds: int
    eval_every: int
    sgd: Callable[[float], SGD]
    rates: tuple[float, ...]
    methods: tuple[str, ...]
    tuning_seeds: tuple[int, ...]
    seeds: tuple[int, ...]


def digits(data_dir: str | None, seeds: Sequence[int]) -> Loaded:
    """Returns 300 images of 0 to 4, and clients with other images of 0 to 4 or images of 5 to 9.

    Each group has as many images, in proportions of classes from a Dirichlet distribution.
    """
    pixels, labels = load_digits(return_X_y=True)
    features = (pixels / 16).astype(np.float32)
    of_near = np.random.default_rng(0).permutation(np.flatnonzero(labels < 5))
    of_base, of_near = np.split(of_near, [NUM_BASE_DIGITS])

    def partition(seed: int) -> FederatedData:
        rng = np.random.default_rng(seed)
        of_far = rng.permutation(np.flatnonzero(labels >= 5))[: len(of_near)]
        clients = [
            rng.permutation(examples[client])
            for examples in (of_near, of_far)
            for client in ff.data.dirichlet(CLIENTS_PER_GROUP, ALPHA)
            .split(labels[examples], seed)
            .client_indices
        ]
        parts = [np.split(client, [int(len(client) * DIGITS_TEST_FRACTION)]) for client in clients]
        test, train = zip(*parts, strict=True)
        return _grouped(features, labels, train, test, seed, name="digits", num_classes=10)

    base = ff.data.from_arrays(features[of_base], labels[of_base], [range(len(of_base))])
    return base._replace(num_classes=10), ff.data.stack([partition(seed) for seed in seeds])


def shakespeare(data_dir: str | None, seeds: Sequence[int]) -> Loaded:
    """Returns the roles of six comedies as one client, and roles of other comedies or histories.

    A seed draws ten roles of each group from the roles with enough text.
    """
    roles = read_roles(find_shakespeare(data_dir))
    vocabulary = characters(speech for speeches in roles.values() for speech in speeches)

    def of_plays(plays: Sequence[str]) -> dict[str, list[str]]:
        return {name: roles[name] for name in roles if name.partition(":")[0] in plays}

    speeches = [speech for each in of_plays(COMEDIES[::2]).values() for speech in each]
    base = ff.data.from_text({"base": speeches}, LENGTH, vocabulary)
    groups = [of_plays(COMEDIES[1::2]), of_plays(HISTORIES)]
    windows = make_windows({**groups[0], **groups[1]}, LENGTH, vocabulary)
    starts = np.cumsum(windows.sizes) - windows.sizes
    is_long, num_near = windows.sizes >= sum(WINDOWS), len(groups[0])
    candidates = np.flatnonzero(is_long[:num_near]), num_near + np.flatnonzero(is_long[num_near:])

    def partition(seed: int) -> FederatedData:
        rng = np.random.default_rng(seed)
        drawn = [rng.choice(group, CLIENTS_PER_GROUP, replace=False) for group in candidates]
        firsts = starts[np.concatenate(drawn)]
        train, test = (
            [first + np.arange(*ends) for first in firsts]
            for ends in ((0, WINDOWS[0]), (WINDOWS[0], sum(WINDOWS)))
        )
        about = {"name": "shakespeare", "num_classes": len(vocabulary)}
        return _grouped(windows.features, windows.labels, train, test, seed, **about)

    return base, ff.data.stack([partition(seed) for seed in seeds])


_grouped = partial(federate, groups=np.repeat(np.arange(len(GROUPS)), CLIENTS_PER_GROUP))


class Method(NamedTuple):
    """Parameters that clients train.

    Attributes:
        rank: Rank of the adapters of all kernels but the head's; 0 for the head alone, None for the
            whole network. With adapters the head is trained as a whole.
        train: Factors that are trained, ``"both"`` or ``"b"``.
        solver: A function that wraps SGD, of it and the model; by default none.
    """

    rank: int | None = None
    train: Literal["both", "b"] = "both"
    solver: Callable[[Solver, Model], Solver] = lambda sgd, model: sgd


def _with_personal_b(sgd, model) -> Solver:
    return ff.solvers.FedPer(sgd, tuple(f"adapters/{path}/b" for path in model.targets))


ALL, RANKS = "full", ("lora r=1", "lora r=4", "lora r=16")
"""Names of full training, and of the methods of the claim."""
METHODS = {
    ALL: Method(),
    "head": Method(0),
    **dict(zip(RANKS, (Method(1), Method(4), Method(16)), strict=True)),
    "ffa r=4": Method(4, train="b"),
    "fedsa r=4": Method(4, solver=_with_personal_b),
    "local r=4": Method(4, solver=lambda sgd, model: ff.solvers.Local(sgd)),
}


FEDERATIONS = {
    "digits": Federation(
        digits,
        lambda num_classes: ff.models.mlp(num_classes, hidden=(128, 128)),
        SGD(0.1, 20, steps=100),
        10,
        2,
        lambda rate: SGD(rate, batch_size=10, steps=10),
        (0.01, 0.03, 0.1, 0.3, 1.0),
        tuple(METHODS),
        tuple(range(1490, 1494)),
        tuple(range(1500, 1520)),
    ),
    "shakespeare": Federation(
        shakespeare,
        lambda num_classes: ff.models.char_transformer(num_classes, width=32, layers=2),
        SGD(2e-3, 32, steps=100, optimizer=optax.adam),
        10,
        4,
        lambda rate: SGD(rate, batch_size=10, steps=5, optimizer=optax.adam),
        (0.0003, 0.001, 0.003, 0.01),
        (ALL, "head", *RANKS),
        (1490,),
        tuple(range(1500, 1510)),
    ),
}


def make_round(
    federation: Federation, num_classes: int, method: str, rate: float, base: Variables
) -> ff.Round:
    """Returns the round of a method that starts from a base."""
    network, (rank, train, wrap) = federation.model(num_classes), METHODS[method]
    if rank is None:
        model = ff.models.pretrained(network, base)
    elif rank == 0:
        model = ff.models.freeze(network, base, ("head",))
    else:
        model = ff.models.lora(network, base, rank=rank, trainable=("head",), train=train)
    selector = ff.selectors.Uniform(COHORT)
    solver = wrap(federation.sgd(rate), model)
    return ff.Round(model, selector, solver, ff.aggregators.Mean("num_examples"))
