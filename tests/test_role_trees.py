"""Aggregators, faults and uploads as pytrees: what is equal, what is a leaf, what is printed."""

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from fedjax_fair import aggregators, communication, faults, server_optimizers, solvers
from fedjax_fair.utils.tree import Tree


class Case(NamedTuple):
    """A class of a role.

    Attributes:
        make: Makes a new instance in every call.
        shown: Its ``repr``, without defaults.
        numbers: Other values of fields that never recompile.
        structure: Other values of fields that do.
    """

    make: Callable[[], Tree]
    shown: str
    numbers: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    structure: dict[str, Any] = {}  # noqa: RUF012 (never changed)


def trusted(factor=1.0):
    return factor * np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 1])


CASES = {
    "Mean": Case(
        lambda: aggregators.Mean("num_examples"),
        "Mean(weights='num_examples')",
        structure={"weights": "uniform"},
    ),
    "Equitable": Case(
        lambda: aggregators.Equitable(3, center=True),
        "Equitable(num_clusters=3, center=True)",
        structure={"num_clusters": "eigengap", "center": False},
    ),
    "FairFed": Case(
        lambda: aggregators.FairFed(0.5),
        "FairFed(beta=0.5)",
        {"beta": 1.0},
        {"metric": "accuracy", "sensitive_feature": "sex", "clip": False},
    ),
    "FedFBMean": Case(
        lambda: aggregators.FedFBMean(0.5),
        "FedFBMean(alpha=0.5)",
        {"alpha": 1.0},
        {"criterion": "equal_opportunity", "sensitive_feature": "sex"},
    ),
    "FedMinMaxMean": Case(
        lambda: aggregators.FedMinMaxMean(0.5),
        "FedMinMaxMean(step_size=0.5)",
        {"step_size": 1.0},
        {"sensitive_feature": "sex"},
    ),
    "ReweighingMean": Case(
        lambda: aggregators.ReweighingMean("global"),
        "ReweighingMean(scope='global')",
        structure={"scope": "local", "sensitive_feature": "sex"},
    ),
    "FairFATE": Case(
        lambda: aggregators.FairFATE(5),
        "FairFATE(num_rounds=5)",
        {"beta": 0.5, "strength": 0.2, "growth": 0.1},
        {"num_rounds": 6, "criteria": ("equal_opportunity",), "sensitive_feature": "sex"},
    ),
    "FLTrust": Case(
        lambda: aggregators.FLTrust(trusted(), solvers.SGD(0.1, 2, steps=1)),
        "FLTrust(\n    root=([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [0, 1]),\n"
        "    solver=SGD(learning_rate=0.1, batch_size=2, steps=1),\n)",
        {"root": trusted(2.0), "solver": solvers.SGD(0.3, 2, steps=1)},
        {"solver": solvers.SGD(0.1, 2, steps=2), "seed": 1},
    ),
    "GIFAIR": Case(lambda: aggregators.GIFAIR(0.5), "GIFAIR(strength=0.5)", {"strength": 0.25}),
    "QFedAvg": Case(
        lambda: aggregators.QFedAvg(2.0, learning_rate=0.1),
        "QFedAvg(q=2.0, learning_rate=0.1)",
        {"q": 1.0, "learning_rate": 0.3},
        {"q": 0.0},
    ),
    "Tilted": Case(
        lambda: aggregators.Tilted(2.0), "Tilted(tilt=2.0)", {"tilt": -1.0}, {"weights": "selector"}
    ),
    "AdaFed": Case(
        lambda: aggregators.AdaFed(0.5, max_step=2.0),
        "AdaFed(gamma=0.5, max_step=2.0)",
        {"gamma": 1.5, "max_step": 3.0},
    ),
    "AAggFF": Case(
        lambda: aggregators.AAggFF("silo"), "AAggFF(regime='silo')", structure={"cdf": "normal"}
    ),
    "FedFA": Case(lambda: aggregators.FedFA(0.25), "FedFA(beta=0.25)", {"beta": 0.75}),
    "FedFV": Case(
        lambda: aggregators.FedFV(0.5),
        "FedFV(keep_fraction=0.5)",
        {"keep_fraction": 0.25},
        {"history": 2},
    ),
    "FedHEAL": Case(
        lambda: aggregators.FedHEAL(0.5),
        "FedHEAL(min_consistency=0.5)",
        {"min_consistency": 0.25, "beta": 0.75},
    ),
    "FedMDFG": Case(
        lambda: aggregators.FedMDFG(20.0),
        "FedMDFG(max_angle=20.0)",
        {"max_angle": 10.0},
        {"halvings": 2, "requires_decrease": True},
    ),
    "FedLF": Case(aggregators.FedLF, "FedLF()"),
    "FedPW": Case(
        lambda: aggregators.FedPW(0.5, 0.25),
        "FedPW(beta=0.5, drop_rate=0.25)",
        {"beta": 0.25, "drop_rate": 0.5},
    ),
    "ShapFed": Case(
        lambda: aggregators.ShapFed(0.5),
        "ShapFed(memory=0.5)",
        {"memory": 0.75},
        {"last_layer": "last"},
    ),
    "LossGap": Case(
        lambda: aggregators.LossGap(2.0, optimal_losses=[0.0, 1.0]),
        "LossGap(strength=2.0, optimal_losses=[0.0, 1.0])",
        {"strength": 0.5, "optimal_losses": [1.0, 2.0]},
        {"iterations": 100, "clip": False, "weights": "uniform"},
    ),
    "FedMGDA": Case(
        lambda: aggregators.FedMGDA(0.5),
        "FedMGDA(epsilon=0.5)",
        {"epsilon": 0.25, "step_length": 2.0},
        {"weights": "num_examples"},
    ),
    "FedAsync": Case(
        lambda: aggregators.FedAsync(0.5),
        "FedAsync(mixing=0.5)",
        {"mixing": 0.25, "staleness": aggregators.Polynomial(1.0)},
        {"staleness": aggregators.Hinge()},
    ),
    "FedBuff": Case(
        lambda: aggregators.FedBuff(staleness=aggregators.Hinge(2.0)),
        "FedBuff(staleness=Hinge(slope=2.0))",
        {"learning_rate": 0.5, "staleness": aggregators.Hinge(3.0)},
        {"staleness": aggregators.Constant(), "weights": "num_examples", "normalize": True},
    ),
    "CA2FL": Case(
        lambda: aggregators.CA2FL(0.5), "CA2FL(learning_rate=0.5)", {"learning_rate": 2.0}
    ),
    "FedStaleWeight": Case(
        lambda: aggregators.FedStaleWeight(0.5),
        "FedStaleWeight(learning_rate=0.5)",
        {"learning_rate": 2.0},
        {"exact": True},
    ),
    "AREA": Case(aggregators.AREA, "AREA()"),
    "Constant": Case(aggregators.Constant, "Constant()"),
    "Polynomial": Case(
        lambda: aggregators.Polynomial(1.0), "Polynomial(exponent=1.0)", {"exponent": 2.0}
    ),
    "Hinge": Case(
        lambda: aggregators.Hinge(delay=4.0), "Hinge(delay=4.0)", {"slope": 2.0, "delay": 3.0}
    ),
    "ScaffoldMean": Case(
        aggregators.ScaffoldMean, "ScaffoldMean()", {}, {"weights": "num_examples"}
    ),
    "FedNovaMean": Case(aggregators.FedNovaMean, "FedNovaMean()", {}, {"weights": "uniform"}),
    "FedDynMean": Case(aggregators.FedDynMean, "FedDynMean()"),
    "IFCAMean": Case(
        lambda: aggregators.IFCAMean(3),
        "IFCAMean(num_models=3)",
        {},
        {"num_models": 4, "weights": "num_examples"},
    ),
    "FedIT": Case(
        lambda: aggregators.FedIT("uniform"),
        "FedIT(weights='uniform')",
        structure={"weights": "num_examples"},
    ),
    "FedEx": Case(aggregators.FedEx, "FedEx()", structure={"weights": "uniform"}),
    "FlexLoRA": Case(aggregators.FlexLoRA, "FlexLoRA()", structure={"weights": "uniform"}),
    "LoRAFair": Case(
        lambda: aggregators.LoRAFair(strength=0.5),
        "LoRAFair(strength=0.5)",
        {"strength": 1.0, "step_size": 0.5},
        {"objective": "cosine", "num_steps": 10, "weights": "uniform"},
    ),
    "HetLoRAMean": Case(aggregators.HetLoRAMean, "HetLoRAMean()"),
    "MimeLiteMean": Case(
        lambda: aggregators.MimeLiteMean(beta=0.5),
        "MimeLiteMean(beta=0.5)",
        {"beta": 0.8},
        {"weights": "num_examples"},
    ),
    "Median": Case(aggregators.Median, "Median()"),
    "WithServerOptimizer": Case(
        lambda: aggregators.WithServerOptimizer(
            aggregators.Median(), server_optimizers.FedAdam(0.1)
        ),
        "WithServerOptimizer(inner=Median(), optimizer=FedAdam(learning_rate=0.1))",
        {"optimizer": server_optimizers.FedAdam(0.3)},
        {"inner": aggregators.Mean(), "optimizer": server_optimizers.FedYogi(0.1)},
    ),
    "TrimmedMean": Case(
        lambda: aggregators.TrimmedMean(0.2), "TrimmedMean(trim=0.2)", {"trim": 0.1}, {"trim": 0.0}
    ),
    "Krum": Case(
        lambda: aggregators.Krum(2),
        "Krum(byzantine=2)",
        structure={"byzantine": 1, "selected": 2},
    ),
    "GeometricMedian": Case(
        lambda: aggregators.GeometricMedian(iterations=4),
        "GeometricMedian(iterations=4)",
        structure={"weights": "num_examples", "iterations": 8},
    ),
    "NormClipping": Case(
        lambda: aggregators.NormClipping(0.5, "num_examples"),
        "NormClipping(bound=0.5, weights='num_examples')",
        {"bound": 1.0},
        {"weights": "uniform"},
    ),
    "CenteredClipping": Case(
        lambda: aggregators.CenteredClipping(iterations=2),
        "CenteredClipping(iterations=2)",
        {"bound": 0.5},
        {"weights": "num_examples", "iterations": 1},
    ),
    "Diurnal": Case(
        lambda: faults.Diurnal(24, min_availability=0.1),
        "Diurnal(period=24, min_availability=0.1)",
        {"min_availability": 0.2, "max_availability": 0.9},
        {"period": 12},
    ),
    "Trace": Case(
        lambda: faults.Trace([[1, 0, 1], [0, 1, 1]]),
        "Trace(table=[[True, False, True], [False, True, True]])",
        {"table": np.ones((2, 3))},
    ),
    "Byzantine": Case(
        lambda: faults.Byzantine([3, 7], "noise", 2.0),
        "Byzantine(clients=[3, 7], attack='noise', strength=2.0)",
        {"clients": [1, 2], "strength": 1.5},
        {"attack": "alie", "seed": 1},
    ),
    "Dropout": Case(
        lambda: faults.Dropout(0.1), "Dropout(probability=0.1)", {"probability": np.float32(0.2)}
    ),
    "Staleness": Case(
        lambda: faults.Staleness(0.1, max_staleness=2),
        "Staleness(probability=0.1, max_staleness=2)",
        {"probability": 0.2},
        {"max_staleness": 3},
    ),
    "Stragglers": Case(
        lambda: faults.Stragglers(0.1, deadline_steps=5),
        "Stragglers(probability=0.1, deadline_steps=5)",
        {"probability": 0.2},
        {"deadline_steps": 6},
    ),
    "TopK": Case(
        lambda: communication.TopK(0.1), "TopK(fraction=0.1)", structure={"fraction": 0.2}
    ),
    "StochasticQuantization": Case(
        lambda: communication.StochasticQuantization(4),
        "StochasticQuantization(bits=4)",
        structure={"bits": 8},
    ),
    "DifferentialPrivacy": Case(
        lambda: communication.DifferentialPrivacy(1.0, 0.5),
        "DifferentialPrivacy(clipping_norm=1.0, noise_multiplier=0.5)",
        {"clipping_norm": 2.0, "noise_multiplier": 1.0},
        {"noise_multiplier": 0.0},
    ),
    "AdaptiveClipping": Case(
        lambda: communication.AdaptiveClipping(0.5, clipped_count_stddev=2.0),
        "AdaptiveClipping(noise_multiplier=0.5, clipped_count_stddev=2.0)",
        {
            "noise_multiplier": 1.0,
            "initial_clipping_norm": 0.2,
            "target_unclipped_quantile": 0.8,
            "clipped_count_stddev": 3.0,
        },
        {"clipped_count_stddev": None},
    ),
    "SecureAggregation": Case(
        lambda: communication.SecureAggregation(4.0),
        "SecureAggregation(max_abs_value=4.0)",
        structure={"max_abs_value": 2.0},
    ),
}


def each_case(function):
    return pytest.mark.parametrize("case", CASES.values(), ids=CASES)(function)


def each_change(kind):
    changes = [
        pytest.param(case.make, {field: value}, id=f"{name}.{field}")
        for name, case in CASES.items()
        for field, value in getattr(case, kind).items()
    ]
    return pytest.mark.parametrize(("make", "change"), changes)


def test_every_role_has_a_case():
    names = {*aggregators.__all__, *faults.__all__, *communication.__all__} - {
        "epsilon",
        "Compression",
        "PrivacyMechanism",
    }
    assert set(CASES) == names


@each_case
def test_equal_settings_are_equal(case):
    one, other = case.make(), case.make()
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)


@each_change("numbers")
def test_a_new_number_changes_one_leaf(make, change):
    role, traced = make(), []
    changed = role.replace(**change)
    assert changed != role
    assert jax.tree.structure(changed) == jax.tree.structure(role)
    leaves = zip(*map(jax.tree.leaves, (role, changed)), strict=True)
    assert any(not np.array_equal(old, new) for old, new in leaves)

    @jax.jit
    def once(role):
        traced.append(role)

    for one in (role, changed):
        # Arrays, because a Python number has another type for JAX than a NumPy one.
        once(jax.tree.map(lambda leaf: np.asarray(leaf, jax.dtypes.result_type(leaf)), one))
    assert len(traced) == 1


@each_change("structure")
def test_a_new_size_changes_the_structure(make, change):
    role = make()
    changed = role.replace(**change)
    assert changed != role
    assert jax.tree.structure(changed) != jax.tree.structure(role)


@each_case
def test_a_role_is_rebuilt_from_leaves_and_structure(case):
    role = case.make()
    leaves, structure = jax.tree.flatten(role)
    assert jax.tree.unflatten(structure, leaves) == role
    assert not jax.tree.leaves(jax.tree.map(lambda leaf: None, role))


@each_case
def test_defaults_are_not_printed(case):
    assert repr(case.make()) == case.shown


@each_case
def test_a_role_survives_pickling(case):
    role = case.make()
    again = pickle.loads(pickle.dumps(role))
    assert again == role
    assert hash(again) == hash(role)
    assert repr(again) == repr(role)


def test_settings_are_converted_once():
    one_each = faults.Dropout([0.0, 0.5])
    assert one_each.probability.dtype == np.float32
    assert one_each.replace() == one_each
    trust = CASES["FLTrust"].make()
    assert [part.dtype for part in trust.root] == [np.float32, np.int32]
    assert trust.replace(seed=0) == trust
    assert faults.Trace([[1, 0]]).table.dtype == bool


@pytest.mark.parametrize("attack", ["sign_flip", "scaling", "noise", "nan"])
def test_single_attacks_define_send(attack):
    assert faults.Byzantine(0.5, attack).collude is None
    assert faults.Byzantine(0.5, attack).send is not None


@pytest.mark.parametrize("attack", ["alie", "ipm"])
def test_colluding_attacks_define_collude(attack):
    assert faults.Byzantine(0.5, attack).collude is not None
    assert faults.Byzantine(0.5, attack).send is None
