"""Runs of federated training whose results are kept.

A case is a function without arguments that returns NumPy arrays by name. Runs are compiled, so that
their results are reproduced bit for bit on a machine of the same kind.
"""

import warnings
from dataclasses import replace
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from conftest import times_for
from people_federation import FEATURES, make_people

import fedjax_fair as ff
from fedjax_fair import (
    aggregators,
    communication,
    data,
    faults,
    models,
    selectors,
    server_optimizers,
    solvers,
)
from fedjax_fair.app.build import build, largest_client, method_round
from fedjax_fair.app.settings import presets, registry
from fedjax_fair.app.settings.config import (
    Config,
    DataConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.numerics.sketch import CountSketch
from fedjax_fair.submodular import Modular, Scaled, Sum, facility_location_from_features

SEEDS = (0, 1)
ROUNDS, EVAL_EVERY = 6, 3
CONFIG = presets.resolve(
    Config(
        data=DataConfig(
            name="digits", partition="dirichlet", alpha=0.5, clients=12, min_partition_size=20
        ),
        model=ModelConfig(hidden=(4,)),
        solver=SolverConfig(learning_rate=0.1, batch_size=10, steps=3),
        selector=SelectorConfig(cohort_size=5),
        training=TrainingConfig(rounds=ROUNDS, eval_every=EVAL_EVERY, seeds=SEEDS),
        devices=1,
    )
)
PLANTED = replace(
    CONFIG, data=DataConfig(name="digits", partition="planted_clusters", clusters="digits")
)


@cache
def federation(config=CONFIG):
    """Twelve clients of unequal sizes; ten clients in known groups for ``PLANTED``."""
    return build(drop_unused_settings(replace(config, methods=("fedavg",)))).data


@cache  # Runs of one model share the program of the evaluation.
def network():
    return models.mlp(10, hidden=CONFIG.model.hidden)


DESCRIPTIONS = ("train_examples", "test_examples")
DERIVED = ("sensitive_feature_", "loss_parity_difference")
"""Variables that follow from the recorded sums of sensitive groups."""
SUMMARIES = (
    *("accuracy_", "sigma_acc", "train_loss_mean", "test_loss_mean"),
    *("num_clients_participated", "participation_gini"),
)


def numeric(dataset, summaries=False):
    """The numeric variables of a Dataset, without those that describe the federation.

    Summaries follow from the values of all clients, and are kept for the methods alone.
    """
    left_out = DESCRIPTIONS + DERIVED + (() if summaries else SUMMARIES)
    found = {name: dataset[name].values for name in dataset.data_vars}
    return {
        name: values
        for name, values in found.items()
        if values.dtype.kind in "biuf" and not name.startswith(left_out)
    }


def trained(round, clients=None, summaries=False, **settings):
    """The results of a short run and the trained parameters of both seeds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some of the faults cause updates that are not finite.
        result = ff.fit(
            round,
            clients or federation(),
            rounds=ROUNDS,
            seeds=SEEDS,
            eval_every=EVAL_EVERY,
            **settings,
        )
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result.variables)]
    params = np.concatenate([leaf.reshape(len(SEEDS), -1) for leaf in leaves], axis=1)
    return numeric(result.dataset, summaries) | {"params": params}


def method(name, config=CONFIG, model=None, clients=None):
    """A run of a method by its name, with the settings of ``config``."""
    model = network() if model is None else model
    own = drop_unused_settings(replace(config, methods=(name,)))
    clients = clients or federation(config)
    times, largest = times_for(name, clients.num_clients), largest_client(clients)
    round = method_round(own, name, clients.num_classes, largest, model, times=times)
    return trained(round, clients, summaries=True)


def method_of_adapters(name):
    """A run of a network with adapters of rank 3, of which some clients have rank 1."""
    variables = network().init(jax.random.key(0), federation().train.features[:1])
    config = replace(CONFIG, solver=replace(CONFIG.solver, ranks=(1, 3)))
    return method(name, config, models.lora(network(), variables, rank=3))


def method_on_people(name, validated=False):
    """A run on clients with sensitive features, with which test examples may be validation ones."""
    features = FEATURES[:1] if validated else FEATURES
    clients = make_people(features=features, sizes=(20, 30) * 6)
    clients = clients._replace(validation=clients.test if validated else None)
    return method(name, clients=clients, model=models.mlp(2, hidden=(4,)))


def roles(selector=None, solver=None, aggregator=None, on_nonfinite="raise", **settings):
    """A run of roles from the Python API; each is FedAvg's unless it is given."""
    round = ff.Round(
        network(),
        selectors.Uniform(5) if selector is None else selector,
        solvers.SGD(0.1, 10, steps=3) if solver is None else solver,
        aggregators.Mean() if aggregator is None else aggregator,
        **settings,
    )
    return trained(round, on_nonfinite=on_nonfinite)


def with_promotion(run):
    """A run of an optimizer from optax that divides floats by an integer count."""
    with jax.numpy_dtype_promotion("standard"):
        return run()


class _Normalized(nn.Module):
    """The smallest network with batch normalization; that of the registry takes minutes."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(4)(x.reshape(len(x), -1))
        return nn.Dense(10)(nn.relu(nn.BatchNorm(not train, momentum=0.5, epsilon=0.1)(x)))


NORMALIZED = models.from_flax(_Normalized())

SELECTIVE = ("oort", "fedcor")
FAIR = ("propfair", "adafed", "fedmgda", "fedfv", "fedfa", "aaggff")
FAIR_TO_CLIENTS = ("loss_gap", "fedheal", "fedmdfg", "fedlf", "fedpw", "shapfed")
AGAINST_DRIFT = ("fednova", "feddyn", "mime_lite")
PERSONALIZED = (
    *("fedper", "fedrep", "lg_fedavg", "fedbabu", "fine_tuned", "per_fedavg", "pfedme"),
    *("apfl", "ifca", "fedbn"),
)
FAIR_TO_GROUPS = ("fedfb", "fedminmax", "reweighing", "group_penalty")
FAIR_AND_PERSONAL = ("pfedfair",)
FAIR_BY_VALIDATION = ("fair_fate",)
ADAPTERS = tuple(registry.GROUPS["adapters"])
ASYNCHRONOUS = tuple(registry.GROUPS["asynchronous"])
OWN_FILES = {
    "informed_selection": SELECTIVE,
    "fair_methods": FAIR,
    "fair_client_methods": FAIR_TO_CLIENTS,
    "fair_personal_methods": FAIR_AND_PERSONAL,
    "client_drift_methods": AGAINST_DRIFT,
    "personalized_methods": PERSONALIZED,
    "group_fairness_methods": FAIR_TO_GROUPS,
    "fair_validation_methods": FAIR_BY_VALIDATION,
    "local_models": ("local_converged",),
    "adapter_methods": ADAPTERS,
    "asynchronous_methods": ASYNCHRONOUS,
}
"""Methods by file, which were recorded on other machines than ``methods``."""


def method_case(name):
    """The case of a method in the data, model and settings that it needs."""
    if name in (*FAIR_TO_GROUPS, *FAIR_AND_PERSONAL):
        return partial(method_on_people, name)
    if name in FAIR_BY_VALIDATION:
        return partial(method_on_people, name, validated=True)
    if name in ADAPTERS:
        return partial(method_of_adapters, name)
    if name == "fedbn":
        return partial(method, name, model=NORMALIZED)
    return partial(method, name, PLANTED if name == "gifair" else CONFIG)


METHOD_FILES = {
    file: {f"method-{name}": method_case(name) for name in names}
    for file, names in OWN_FILES.items()
}
METHODS = {
    f"method-{name}": method_case(name)
    for name in registry.METHODS
    if all(f"method-{name}" not in cases for cases in METHOD_FILES.values())
}
METHODS |= {
    "method-divfl+equitable": partial(method, "divfl+equitable"),
    "method-equitable-oracle": partial(method, "equitable:groups=oracle", PLANTED),
}


def represented_losses(context):
    """Facility location of gradients plus the losses of the chosen clients."""
    known = context.gradients(context.variables)
    return Sum(
        (
            Scaled(facility_location_from_features(known.gradient), 1 / context.num_clients),
            Modular(known.loss),
        )
    )


SELECTORS = {
    "by_size": lambda: roles(selectors.BySize(5)),
    "power_of_choice-cpow": lambda: roles(
        selectors.PowerOfChoice(5, 8, variant="cpow", loss_examples=4)
    ),
    "power_of_choice-rpow": lambda: roles(selectors.PowerOfChoice(5, 8, variant="rpow")),
    "clustered_by_similarity-l1": lambda: roles(
        selectors.ClusteredBySimilarity(4, measure="l1", ward_input="distances")
    ),
    "divfl-all": lambda: roles(selectors.DivFL(5, candidates="all", scale="sum")),
    "divfl-candidates": lambda: roles(selectors.DivFL(5, candidates=3)),
    "divfl-last_layer": lambda: roles(
        selectors.DivFL(5, gradients=selectors.gradients.Fresh(selectors.gradients.LastLayer()))
    ),
    "divfl-count_sketch": lambda: roles(
        selectors.DivFL(5, gradients=selectors.gradients.Fresh(CountSketch(16, seed=3)))
    ),
    "divfl-stale": lambda: roles(selectors.DivFL(5, gradients="stale")),
    "divfl-refresh_every": lambda: roles(
        selectors.DivFL(5, gradients=selectors.gradients.RefreshEvery(2))
    ),
    "divfl-updates": lambda: roles(
        selectors.DivFL(5, gradients=selectors.gradients.Updates(0.1, CountSketch(16)))
    ),
    "divfl-pool": lambda: roles(selectors.DivFL(5, pool=8)),
    "divfl-reference_clients": lambda: roles(
        selectors.DivFL(
            5, pool=6, num_reference_clients=4, gradients=selectors.gradients.Stale(CountSketch(16))
        )
    ),
    "subtrunc-identity": lambda: roles(
        selectors.SubTrunc(5, 0.8, 2.0, phi="identity", candidates="all")
    ),
    "subtrunc-phi": lambda: roles(selectors.SubTrunc(5, 0.8, 2.0, phi=jnp.sqrt, scale="sum")),
    "subtrunc-reference_clients": lambda: roles(
        selectors.SubTrunc(5, pool=7, num_reference_clients=4, candidates=6)
    ),
    "unionfl-pool": lambda: roles(
        selectors.UnionFL(5, 0.5, 2, pool=8, gradients="stale", candidates="all")
    ),
    "unionfl-updates": lambda: roles(
        selectors.UnionFL(5, 0.2, 3, gradients=selectors.gradients.Updates(0.1))
    ),
    "submodular": lambda: roles(selectors.Submodular(represented_losses, 5)),
    "submodular-candidates": lambda: roles(
        selectors.Submodular(represented_losses, 5, candidates=4)
    ),
    "agnostic": lambda: roles(selectors.Agnostic(0.3), aggregator=aggregators.Mean("selector")),
    "drfa": lambda: roles(selectors.DRFA(0.3, cohort_size=4, local_steps=3)),
    "drfa-epochs": lambda: roles(
        selectors.DRFA(0.3, cohort_size=4, local_steps=2), solvers.SGD(0.1, 10, epochs=1)
    ),
}

SOLVERS = {
    "sgd-momentum": lambda: roles(solver=solvers.SGD(0.05, 10, steps=4, momentum=0.9)),
    "sgd-weight_decay-prox": lambda: roles(
        solver=solvers.SGD(0.1, 7, steps=4, weight_decay=0.01, prox=0.5)
    ),
    "sgd-schedule": lambda: roles(
        solver=solvers.SGD(lambda round: 0.2 / (1 + round).astype(jnp.float32), 10, steps=3)
    ),
    "sgd-adam": lambda: with_promotion(
        lambda: roles(solver=solvers.SGD(0.01, 10, steps=3, prox=0.1, optimizer=optax.adam))
    ),
    "sgd-replacement": lambda: roles(solver=solvers.SGD(0.1, 30, steps=3, replacement=True)),
    "sgd-epochs": lambda: roles(solver=solvers.SGD(0.1, 16, epochs=2, momentum=0.5)),
    "clients_per_batch": lambda: roles(clients_per_batch=2),
}


def trusted():
    train = federation().train
    return train.features[:40], train.labels[:40]


AGGREGATORS = {
    "mean-size": lambda: roles(aggregator=aggregators.Mean("num_examples")),
    "mean-cohort": lambda: roles(
        selectors.DivFL(5, candidates="all"), aggregator=aggregators.Mean("selector")
    ),
    "mean-server_optimizer": lambda: roles(
        aggregator=aggregators.WithServerOptimizer(
            aggregators.Mean("num_examples"),
            server_optimizers.Optax(partial(optax.sgd, momentum=0.9), 0.5),
        )
    ),
    "mean-server_adam": lambda: with_promotion(
        lambda: roles(
            aggregator=aggregators.WithServerOptimizer(
                aggregators.Mean(), server_optimizers.Optax(optax.adam, 0.01)
            )
        )
    ),
    "equitable-eigengap": lambda: roles(
        aggregator=aggregators.Equitable(
            "eigengap", layer="logits", examples="last_batch", center=True
        )
    ),
    "equitable-received": lambda: roles(
        aggregator=aggregators.Equitable(3, model="received", cosine=True)
    ),
    "fairfed": lambda: roles(aggregator=aggregators.FairFed(0.5)),
    "q_fedavg": lambda: roles(aggregator=aggregators.QFedAvg(2.0, learning_rate=0.1)),
    "tilted-uniform": lambda: roles(aggregator=aggregators.Tilted(0.5, "uniform")),
    "tilted-cohort": lambda: roles(
        selectors.BySize(5), aggregator=aggregators.Tilted(-1.0, "selector")
    ),
    "fltrust": lambda: roles(
        aggregator=aggregators.FLTrust(trusted(), solvers.SGD(0.1, 10, epochs=1), seed=2)
    ),
    "trimmed_mean": lambda: roles(aggregator=aggregators.TrimmedMean(0.25)),
    "krum-several": lambda: roles(aggregator=aggregators.Krum(1, selected=2)),
    "geometric_median-size": lambda: roles(
        aggregator=aggregators.GeometricMedian("num_examples", iterations=3)
    ),
    "norm_clipping-size": lambda: roles(aggregator=aggregators.NormClipping(0.2, "num_examples")),
    "centered_clipping": lambda: roles(aggregator=aggregators.CenteredClipping(0.2, iterations=3)),
}

AVAILABLE = np.random.default_rng(0).random((4, 12)) < 0.7
FAULTS = {
    "dropout": lambda: roles(faults=faults.Dropout(0.4)),
    "dropout-by-client": lambda: roles(
        selectors.UnionFL(5, 0.5, 2), faults=faults.Dropout(np.linspace(0, 0.9, 12))
    ),
    "stragglers": lambda: roles(faults=faults.Stragglers(0.5, deadline_steps=1)),
    "staleness": lambda: roles(faults=faults.Staleness(0.6, max_staleness=2)),
    "byzantine-sign_flip": lambda: roles(faults=faults.Byzantine(0.4, "sign_flip", seed=1)),
    "byzantine-scaling": lambda: roles(faults=faults.Byzantine([0, 3, 7], "scaling", 3.0)),
    "byzantine-noise": lambda: roles(faults=faults.Byzantine(0.4, "noise")),
    "byzantine-nan-drop": lambda: roles(
        faults=faults.Byzantine(0.3, "nan"), on_nonfinite="drop_client"
    ),
    "byzantine-nan-keep": lambda: roles(
        selectors.DivFL(5), faults=faults.Byzantine([2], "nan"), on_nonfinite="skip_round"
    ),
    "byzantine-alie": lambda: roles(
        aggregator=aggregators.Median(), faults=faults.Byzantine(0.4, "alie")
    ),
    "byzantine-ipm": lambda: roles(
        aggregator=aggregators.Krum(1), faults=faults.Byzantine(0.4, "ipm", 0.5)
    ),
    "diurnal": lambda: roles(faults=faults.Diurnal(4, min_availability=0.2, max_availability=0.9)),
    "trace": lambda: roles(selectors.DivFL(3), faults=faults.Trace(AVAILABLE)),
    "trace-power_of_choice": lambda: roles(
        selectors.PowerOfChoice(3, 5), faults=faults.Trace(AVAILABLE)
    ),
    "several-faults": lambda: roles(
        faults=[
            faults.Diurnal(4, min_availability=0.5),
            faults.Staleness(0.5, max_staleness=2),
            faults.Stragglers(0.5, deadline_steps=2),
            faults.Dropout(0.2),
        ]
    ),
}

COMMUNICATION = {
    "top_k": lambda: roles(compression=communication.TopK(0.1)),
    "stochastic_quantization": lambda: roles(
        aggregator=aggregators.Mean("num_examples"),
        compression=communication.StochasticQuantization(4),
    ),
    "secure": lambda: roles(aggregator=aggregators.Mean("num_examples"), aggregation="secure"),
    "secure-max_abs_value-dropout": lambda: roles(
        aggregation=communication.SecureAggregation(4.0), faults=faults.Dropout(0.3)
    ),
    "privacy": lambda: roles(privacy=communication.DifferentialPrivacy(0.1, 0.5)),
    "adaptive_clipping": lambda: roles(
        privacy=communication.AdaptiveClipping(
            0.5, initial_clipping_norm=0.2, target_unclipped_quantile=0.6, clipped_count_stddev=0.3
        )
    ),
    "privacy-stochastic_quantization": lambda: roles(
        privacy=communication.DifferentialPrivacy(0.1, 0.5),
        compression=communication.StochasticQuantization(6),
    ),
    "privacy-secure": lambda: roles(
        privacy=communication.DifferentialPrivacy(0.1, 0.5), aggregation="secure"
    ),
}


def centralized():
    solver = solvers.SGD(0.1, 10, steps=6, momentum=0.9)
    return trained(ff.Centralized(network(), solver))


def run_by_rounds():
    """The states and infos of ``run``, without an evaluation."""
    round = ff.Round(
        network(), selectors.PowerOfChoice(5), solvers.SGD(0.1, 10, epochs=1), aggregators.Mean()
    )

    @jax.jit
    def solve(key, owners):
        state, info = ff.run(round, round.init(key, owners), owners, 3)
        return jax.tree.leaves(state.variables), state.participation, info.clients, info.loss

    variables, participation, clients, loss = solve(jax.random.key(3), federation())
    arrays = {f"variables{place}": leaf for place, leaf in enumerate(variables)}
    return arrays | {"participation": participation, "clients": clients, "loss": loss}


def sweep(name, **varied):
    own = drop_unused_settings(replace(CONFIG, methods=(name,)))
    own = replace(own, training=replace(own.training, rounds=4, eval_every=2))
    return numeric(ff.sweep(own, seeds=SEEDS, **varied))


NUMBERS = ((0.1, 1.0), (0.1, 0.05), (0.0, 0.5), (0.5, 2.0), (0.1, 0.3))


def batch():
    """Two numbers of a selector, an aggregator and a fault, one seed each."""
    methods = [
        ff.Round(
            network(),
            selectors.UnionFL(5, mu, 2, candidates="all"),
            solvers.SGD(rate, 10, steps=3, prox=prox),
            aggregators.Tilted(tilt),
            faults=faults.Dropout(dropout),
        )
        for mu, rate, prox, tilt, dropout in zip(*NUMBERS, strict=True)
    ]
    return numeric(ff.fit(methods, federation(), rounds=4, seeds=(0, 5), eval_every=2).dataset)


def partition_per_seed():
    """A run in which each seed has a partition of its own, without training losses."""
    round = ff.Round(
        network(), selectors.Uniform(5), solvers.SGD(0.1, 10, steps=3), aggregators.Mean()
    )
    owners = data.load("digits", data.iid(8), seed=(0, 1))
    return numeric(
        ff.fit(round, owners, rounds=2, seeds=SEEDS, eval_every=1, train_loss=False).dataset
    )


SWEEPS_AND_BATCHES = {
    "centralized": centralized,
    "run": run_by_rounds,
    "partition-per-seed": partition_per_seed,
    "sweep-fedprox-prox": lambda: sweep("fedprox", prox=[0.0, 0.5]),
    "sweep-subtrunc-lam": lambda: sweep("subtrunc", lam=[0.1, 1.0]),
    "sweep-fedavg-cohort_size": lambda: sweep("fedavg", cohort_size=[3, 5]),
    "fit_batch": batch,
}

GROUPS = {
    "methods": METHODS,
    **METHOD_FILES,
    "selectors": SELECTORS,
    "solvers": SOLVERS,
    "aggregators": AGGREGATORS,
    "faults": FAULTS,
    "communication": COMMUNICATION,
    "sweeps_and_batches": SWEEPS_AND_BATCHES,
}
