"""A configuration becomes the functions it describes."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_fair import simulate
from fedjax_fair.app import presets, registry
from fedjax_fair.app.build import build, memory_of, method_round
from fedjax_fair.app.config import (
    AggregatorConfig,
    CommunicationConfig,
    Config,
    DataConfig,
    FaultsConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TrainingConfig,
)
from fedjax_fair.app.variants import drop_unused_settings, method_settings
from fedjax_fair.training.fingerprint import describe

SMALL = presets.resolve(
    Config(
        data=DataConfig(clients=10),
        model=ModelConfig(name="logistic"),
        solver=SolverConfig(steps=3),
        selector=SelectorConfig(cohort_size=4),
        training=TrainingConfig(rounds=2, seeds=(0,)),
    )
)


PLANTED = replace(
    SMALL, data=DataConfig(name="digits", partition="planted_clusters", clusters="digits")
)


FEDERATION = build(drop_unused_settings(replace(PLANTED, methods=("fedavg",)))).data


@cache
def trained(config: Config, name: str):
    """Variables before and after a few rounds of one method."""
    ready = build(drop_unused_settings(replace(config, methods=(name,))))
    state = ready.rounds[name].init(jax.random.key(0), ready.data)
    end, info = jax.jit(simulate.run, static_argnums=(0, 3))(
        ready.rounds[name], state, ready.data, config.training.rounds
    )
    return state.variables, end.variables, info


def distance(one, other) -> float:
    """Largest difference between two trees."""
    gaps = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b), initial=0.0)), one, other)
    return max(jax.tree.leaves(gaps))


@pytest.mark.parametrize("name", registry.METHODS)
def test_every_method_trains(name):
    # Of four participants none may be Byzantine for Krum.
    written = "krum:byzantine=0" if name == "krum" else name
    before, after, info = trained(PLANTED if name == "gifair" else SMALL, written)
    assert distance(before, after) > 0
    assert np.all(info.finite)
    assert 0 < len(registry.METHODS[name].describe()) < 100


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("subtrunc:lam=0", "divfl:weights=uniform"),
        ("unionfl:mu=0,window=2", "divfl:weights=uniform"),
        ("fedprox:prox=0", "fedavg"),
        ("power_of_choice:pool=4,variant=cpow", "power_of_choice:pool=4"),
    ],
)
def test_settings_in_a_name_apply_to_that_method_only(one, other):
    config = replace(SMALL, methods=tuple(dict.fromkeys((one, other, other.split(":")[0]))))
    assert list(build(config).rounds) == list(config.methods)
    ends = [trained(SMALL, name)[1] for name in (one, other)]
    assert distance(*ends) == 0


def test_settings_in_a_name_have_an_effect():
    pools = [trained(SMALL, f"power_of_choice:pool={pool}")[2].clients for pool in (4, 10)]
    assert (pools[0] != pools[1]).any()
    steps = trained(SMALL, "fedavg:solver.steps=1")[2].steps
    assert (steps == 1).all()


@pytest.mark.parametrize(
    ("config", "combined", "one", "other"),
    [
        (SMALL, "unionfl+fedprox:prox=0", "unionfl", "fedavg"),
        (
            PLANTED,
            "fedprox+equitable:prox=2,groups=oracle",
            "equitable:prox=2,groups=oracle",
            "fedprox:prox=2",
        ),
        (SMALL, "divfl+tilted:tilt=0", "divfl", "tilted"),
    ],
)
def test_methods_that_differ_in_different_roles_combine(config, combined, one, other):
    (_, together, cohorts), (_, alone, expected), (_, apart, _) = (
        trained(config, name) for name in (combined, one, other)
    )
    # Weights that are equal but computed otherwise differ in the last place.
    assert distance(together, alone) < 1e-7
    assert distance(together, apart) > 1e-4
    assert (cohorts.clients == expected.clients).all()


def test_the_selector_determines_the_default_weights():
    skewed = replace(
        SMALL, data=replace(SMALL.data, partition="quantity_skew", min_partition_size=None)
    )

    def spread(name):
        return np.ptp(trained(skewed, name)[2].weights)

    assert spread("fedavg") > 0.01
    assert spread("fedprox+power_of_choice") == 0
    assert spread("power_of_choice+fedprox") == 0
    assert spread("power_of_choice:weights=num_examples") > 0.01


def test_every_method_can_have_a_proximal_term():
    pulled = trained(SMALL, "divfl:prox=5")[1]
    assert distance(pulled, trained(SMALL, "divfl")[1]) > 0
    assert distance(pulled, trained(SMALL, "divfl+fedprox:prox=5")[1]) == 0


def test_default_methods_run_with_few_clients():
    few = replace(
        SMALL, data=replace(SMALL.data, clients=5), selector=SelectorConfig(cohort_size=3)
    )
    build(replace(few, methods=Config().methods))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("subtrunc:lamda=1", "'subtrunc:lamda=1': setting='lamda': did you mean 'lam'"),
        ("subtrunc:lam=much", "lam='much': expected a number."),
        ("subtrunc:lam", "lam='': expected a number"),
        ("subtrunc:lam=-1", "lam=-1"),
        ("unionfl:window=0", "window=0"),
        ("subtrunk:lam=1", "did you mean 'subtrunc'"),
        ("divfl+unionfl", r"'divfl\+unionfl': expected methods with one selector"),
        ("divfl+equitable+fairfed", "expected methods with one aggregator"),
        ("fedavg+equitable", "expected methods that each differ from fedavg in a role"),
        ("centralized+equitable", "expected methods that each differ from fedavg in a role"),
        ("divfl+equitible", "did you mean 'equitable'"),
        ("equitable:num_clusters=0", "num_clusters=0"),
        ("equitable:num_clusters=some", "num_clusters='some': expected"),
        ("equitable:groups=oracle", "groups='oracle': expected a federation with planted"),
        (
            "gifair:strength=0.5",
            "groups=None: expected .* such as planted_clusters makes",
        ),
        ("drfa:steps=None", "steps='None': expected an integer"),
        ("power_of_choice:pool=3", "cohort_size=4: expected an integer >= 1 and <= 3"),
        ("power_of_choice:pool=11", "pool=11: expected an integer >= 1 and <= 10"),
        ("divfl:pool=3", "cohort_size=4: expected an integer >= 1 and <= 3"),
        ("unionfl:pool=11", "pool=11: expected an integer >= 1 and <= 10"),
        ("divfl:num_reference_clients=5", "num_reference_clients=5: expected None where pool=None"),
        (
            "unionfl:pool=5,num_reference_clients=11",
            "num_reference_clients=11: expected an integer >= 1 and <= 10",
        ),
        ("subtrunc:pool=5,candidates=6", "candidates=6: expected an integer >= 1 and <= 5"),
        ("divfl:candidates=0", "candidates=0: expected an integer >= 1"),
        ("fedavg:alpha=9", "setting='alpha': expected one of learning_rate, batch_size"),
        ("fedavg:rounds=5", "setting='rounds': expected one of"),
        ("divfl:tilt=9", "setting='tilt': expected one of"),
        ("centralized:prox=1", "setting='prox': expected one of"),
        ("fedavg:hidden=5", "setting='hidden': expected one of"),
        ("subtrunc:lam=1,lam=2", "expected lam once"),
    ],
)
def test_invalid_settings_in_a_name_are_rejected(name, message):
    with pytest.raises(ValueError, match=message):
        build(drop_unused_settings(replace(SMALL, methods=(name,))))


def test_agnostic_weighs_by_the_mixture_and_drfa_uniformly():
    assert np.ptp(trained(SMALL, "agnostic")[2].weights, axis=1).min() > 1e-4
    assert np.ptp(trained(SMALL, "drfa")[2].weights) == 0


def test_fedprox_has_a_default_proximal_term():
    pulled = trained(SMALL, "fedprox")[1]
    assert distance(pulled, trained(SMALL, "fedavg:prox=1")[1]) == 0
    assert distance(pulled, trained(SMALL, "fedavg")[1]) > 0


def test_fedprox_without_its_term_is_fedavg():
    def moved(name, prox):
        before, after, _ = trained(
            replace(SMALL, solver=SolverConfig(0.1, 10, epochs=20, prox=prox)), name
        )
        return distance(before, after), after

    _, fedavg = moved("fedavg", None)
    far, without = moved("fedprox", 0.0)
    near, _ = moved("fedprox", 5.0)
    assert distance(fedavg, without) == 0
    assert near < far


@pytest.mark.parametrize(
    ("solver", "steps"),
    [
        (SolverConfig(steps=7), {7}),
        # About 1,437 training examples over 10 clients in batches of 50: three a pass.
        (SolverConfig(epochs=2, batch_size=50), {6}),
    ],
)
def test_local_steps_follow_the_configuration(solver, steps):
    config = presets.resolve(replace(SMALL, solver=solver))
    _, _, info = trained(config, "fedavg")
    assert set(info.steps.ravel().tolist()) == steps


def test_a_learning_rate_of_zero_changes_nothing():
    before, after, _ = trained(replace(SMALL, solver=SolverConfig(0.0, 10, epochs=1)), "fedavg")
    assert distance(before, after) == 0


@pytest.mark.parametrize("name", sorted(set(registry.PARTITIONERS) - {"planted_clusters"}))
def test_every_partitioner_makes_as_many_clients(name):
    data = replace(SMALL.data, partition=name, clients=8, min_partition_size=1)
    assert build(drop_unused_settings(replace(SMALL, data=data))).data.num_clients == 8


def test_settings_of_a_partition_have_an_effect():
    def classes(**settings):
        config = drop_unused_settings(replace(SMALL, data=replace(SMALL.data, **settings)))
        federation = build(config).data
        owners = np.repeat(np.arange(federation.num_clients), federation.train.sizes)
        labels = federation.train.labels[federation.train.order]
        return [len(np.unique(labels[owners == client])) for client in range(10)]

    assert set(classes(classes_per_client=2)) == {2}
    # A shard of a tenth of the examples, sorted by class, spans three classes at most.
    assert max(classes(partition="shards", shards_per_client=1)) <= 3
    assert max(classes(partition="shards", shards_per_client=9)) > 3
    assert min(classes(partition="dirichlet", alpha=1000.0)) == 10
    assert min(classes(partition="dirichlet", alpha=0.05, min_partition_size=1)) < 10


def test_the_seed_of_the_data_changes_the_partition():
    first, again, other = (
        build(replace(SMALL, data=replace(SMALL.data, seed=seed))).data.train.order
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", registry.MODELS)
def test_every_network_has_an_output_for_every_class(name):
    model = registry.MODELS[name](10)
    images = jax.ShapeDtypeStruct((2, 32, 32, 3), np.uint8)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)
    logits, _ = jax.eval_shape(
        lambda v, x: model.apply(v.params, v.state, x, train=False, key=None), variables, images
    )
    assert logits.shape == (2, 10)


def test_the_configuration_sets_the_precision_of_layers():
    def program(name):
        model = method_round(SMALL, name, 10).model
        x = jnp.zeros((2, 8, 8, 1), jnp.uint8)
        variables = model.init(jax.random.key(0), x)
        return str(jax.make_jaxpr(lambda v: model.apply(*v, x, train=False, key=None))(variables))

    assert "bf16" in program("fedavg:compute=bfloat16")
    assert "bf16" not in program("fedavg")


def test_the_configuration_sets_the_widths_of_the_mlp():
    config = replace(SMALL, model=ModelConfig(name="mlp", hidden=(7,)))
    variables, _, _ = trained(config, "fedavg")
    assert sorted(leaf.size for leaf in jax.tree.leaves(variables)) == [7, 10, 70, 7 * 64]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"methods": ("fedagv",)}, "did you mean 'fedavg'"),
        ({"methods": ()}, "methods"),
        ({"methods": ("fedavg", "fedavg")}, "expected one or more different methods"),
        ({"data": replace(SMALL.data, alpha=0.1)}, "data.alpha=0.1 is not used by data.partition"),
        ({"selector": SelectorConfig(lam=3.0)}, "selector.lam=3.0 is not used by methods fedavg"),
        (
            {"model": replace(SMALL.model, hidden=(5,))},
            r"model.hidden=\(5,\) is not used by model.name",
        ),
        (
            {"aggregator": AggregatorConfig(beta=1.0)},
            "aggregator.beta=1.0 is not .* methods fedavg",
        ),
        ({"model": ModelConfig(name="lenett")}, "did you mean 'lenet'"),
        ({"model": ModelConfig(name="femnist_cnn")}, r"model\.name='femnist_cnn'.* \(8, 8, 1\)"),
        ({"data": replace(SMALL.data, partition="dirichlt")}, "did you mean 'dirichlet'"),
        ({"data": replace(SMALL.data, clients=0)}, "num_clients=0"),
        ({"solver": SolverConfig(0.1, 10)}, "steps"),
        ({"solver": SolverConfig(-0.1, 10, epochs=1)}, "learning_rate=-0.1"),
        ({"selector": SelectorConfig(cohort_size=11)}, "cohort_size=11"),
        ({"training": replace(SMALL.training, rounds=0)}, "training.rounds=0"),
        ({"training": replace(SMALL.training, eval_every=0)}, "training.eval_every=0"),
        ({"training": replace(SMALL.training, seeds=(1, 1))}, "training.seeds"),
        ({"training": replace(SMALL.training, seeds=(-1,))}, "training.seeds"),
        ({"training": replace(SMALL.training, clients_per_batch=0)}, "clients_per_batch=0"),
        # What constructors call otherwise.
        (
            {"communication": CommunicationConfig(top_k=float("nan"))},
            r"communication\.top_k=nan: fraction=nan",
        ),
        (
            {
                "communication": CommunicationConfig(
                    clipping_norm=-1.0, noise_multiplier=1.0, target_unclipped_quantile=0.5
                )
            },
            r"communication\.clipping_norm .*initial_clipping_norm=-1\.0",
        ),
        (
            {"faults": FaultsConfig(staleness=0.5, max_staleness=0)},
            r"faults\.staleness=0\.5: max_staleness=0",
        ),
    ],
)
def test_invalid_settings_are_rejected(changed, message):
    with pytest.raises(ValueError, match=message):
        build(replace(replace(SMALL, methods=("fedavg",)), **changed))


def test_defaults_follow_the_data_set_unless_given():
    assert presets.resolve(Config()).data.clients == 50
    mnist = presets.resolve(Config(data=DataConfig(name="mnist", clients=7)))
    assert (mnist.data.clients, mnist.model.name) == (7, "lenet")
    assert presets.resolve(mnist) == mnist
    assert presets.resolve(Config(solver=SolverConfig(steps=5))).solver.epochs is None


def test_every_setting_of_a_method_is_a_field_with_help():
    """The signature and the configuration name the same: a value that is given arrives."""
    config = presets.resolve(Config(solver=SolverConfig(steps=2)))
    for name in registry.METHODS:
        for section, settings in method_settings(config, name).items():
            for key, setting in settings.items():
                assert hasattr(getattr(config, section), key), (name, section, key)
                assert setting.help, (name, section, key)


@pytest.mark.usefixtures("as_users_call")  # Their types are of what people write.
@pytest.mark.parametrize("name", registry.METHODS)
def test_settings_annotated_as_traced_can_be_traced(name):
    config = drop_unused_settings(replace(PLANTED, methods=(name,)))
    traced = {
        (section, key): setting
        for section, settings in method_settings(config, name).items()
        for key, setting in settings.items()
        if setting.traced
    }
    assert ("solver", "learning_rate") in traced

    def init(values, key):
        own = config
        for (section, setting), value in zip(traced, values, strict=True):
            own = replace(own, **{section: replace(getattr(own, section), **{setting: value})})
        return method_round(own, name, 10).init(key, FEDERATION)

    values = [jnp.asarray(setting.type(0.5)) for setting in traced.values()]
    values[list(traced).index(("solver", "learning_rate"))] = jnp.float32(0.1)
    jax.eval_shape(init, values, jax.random.key(0))


def test_settings_of_a_preset_for_other_methods_are_dropped():
    preset = presets.resolve(presets.PRESETS["equitable"].config)
    few = replace(preset, methods=("fedavg",), aggregator=AggregatorConfig(num_clusters=2, q=3.0))
    assert drop_unused_settings(few).aggregator == AggregatorConfig()
    # What differs from the preset was meant by somebody, who should hear of it.
    assert drop_unused_settings(few, base=preset).aggregator == AggregatorConfig(q=3.0)


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [("fedavg", 7), ("fedavg:batch_size=1000000000", "largest"), ("fedavg:replacement=True", 7)],
)
def test_minibatches_are_not_larger_than_the_largest_client(name, batch_size):
    config = replace(SMALL, methods=(name,), solver=replace(SMALL.solver, batch_size=7))
    ready = build(config)
    if batch_size == "largest":
        batch_size = int(ready.data.train.sizes.max())
    made_of = describe(round=ready.rounds[name])
    assert made_of["round.solver.batch_size"] == str(batch_size)


def test_minibatches_with_replacement_may_be_larger_than_any_client():
    name = "fedavg:replacement=True,batch_size=500"
    made_of = describe(round=method_round(SMALL, name, 10, largest_client=20))
    assert made_of["round.solver.batch_size"] == "500"


def test_memory_is_bounded_by_states_and_minibatches():
    """A logistic model of 64 pixels and 10 classes, and the counts of its 10 clients."""
    model, counts = 4 * (64 * 10 + 10), 4 * 10
    runs = len(SMALL.training.seeds)
    # Models and clients, the number of the round, and what a client trains with.
    states = runs * (model + counts + 4) + 2 * model
    steps, batch_size = 1000, 3
    minibatches = batch_size * (steps * (4 + 4 + 1) + 64)
    big = replace(SMALL.solver, steps=steps, batch_size=batch_size, epochs=None)
    for config, needed, message in (
        (SMALL, states, "runs of fedavg"),
        (replace(SMALL, solver=big), minibatches, "minibatches of a client of fedavg"),
    ):
        own = replace(config, methods=("fedavg",))
        build(own, memory=needed)
        with pytest.raises(ValueError, match=message):
            build(own, memory=needed - 1)


def test_a_device_needs_memory_for_its_share_of_the_runs():
    def states(seeds, mesh=None):
        config = replace(SMALL, training=replace(SMALL.training, seeds=tuple(range(seeds))))
        experiment = build(drop_unused_settings(replace(config, methods=("fedavg",))))
        return memory_of(experiment._replace(mesh=mesh))["fedavg"].runs

    devices = np.array(8 * jax.devices()[:1])  # Nothing runs on them.
    groups = Mesh(devices.reshape(4, 2), ("runs", "clients"))
    assert states(6, groups) == states(2) < states(3) == states(9, groups)
    assert states(6, Mesh(devices, ("clients",))) == states(6)
