"""Building of data and round functions from a configuration."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import times_for, with_people
from jax.sharding import Mesh

from fedjax_fair import aggregators, models, selectors, server_optimizers, solvers
from fedjax_fair.app.build import build, method_round
from fedjax_fair.app.memory import check_memory, min_memory
from fedjax_fair.app.settings import presets, registry
from fedjax_fair.app.settings.config import (
    AggregatorConfig,
    CommunicationConfig,
    Config,
    DataConfig,
    FaultsConfig,
    ModelConfig,
    SelectorConfig,
    SolverConfig,
    TimingConfig,
    TrainingConfig,
)
from fedjax_fair.app.settings.named_methods import method_settings
from fedjax_fair.app.settings.usage import drop_unused_settings
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Aggregator, Selector, Solver
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


def round_of(name: str, config: Config = SMALL):
    """The round that a configuration builds for one method."""
    return build(drop_unused_settings(replace(config, methods=(name,)))).rounds[name]


SGD = solvers.SGD(learning_rate=0.1, batch_size=10, steps=3)
FEDAVG = (selectors.Uniform(4), SGD, aggregators.Mean("num_examples"))
UNIFORM = aggregators.Mean("uniform")


def optimized(optimizer, inner=FEDAVG[2]):
    return aggregators.WithServerOptimizer(inner, optimizer)


ROLES = {
    "fedavg": FEDAVG,
    "full": (selectors.Full(), SGD, FEDAVG[2]),
    "agnostic": (selectors.Agnostic(), SGD, aggregators.Mean("selector")),
    "drfa": (selectors.DRFA(cohort_size=4, local_steps=3), SGD, UNIFORM),
    "fedprox": (FEDAVG[0], SGD.replace(prox=1.0), FEDAVG[2]),
    "scaffold": (FEDAVG[0], solvers.Scaffold(SGD), aggregators.ScaffoldMean()),
    "fednova": (FEDAVG[0], solvers.FedNova(SGD), aggregators.FedNovaMean()),
    "feddyn": (FEDAVG[0], solvers.FedDyn(SGD), aggregators.FedDynMean()),
    "mime_lite": (FEDAVG[0], solvers.MimeLite(SGD), aggregators.MimeLiteMean()),
    "ifca": (FEDAVG[0], solvers.IFCA(SGD), aggregators.IFCAMean()),
    "local_converged": (selectors.Full(), solvers.Local(SGD), FEDAVG[2]),
    "fedfb": (FEDAVG[0], solvers.CellWeighted(SGD), aggregators.FedFBMean()),
    "fedminmax": (FEDAVG[0], solvers.CellWeighted(SGD), aggregators.FedMinMaxMean()),
    "reweighing": (FEDAVG[0], solvers.CellWeighted(SGD), aggregators.ReweighingMean()),
    "q_fedavg": (*FEDAVG[:2], aggregators.QFedAvg(learning_rate=0.1)),
    "fedfa": (*FEDAVG[:2], optimized(server_optimizers.FedAvgM(), aggregators.FedFA())),
    "fedpw": (selectors.Full(), SGD, aggregators.FedPW()),
    "fair_fate": (*FEDAVG[:2], aggregators.FairFATE(PLANTED.training.rounds)),
    "krum": (*FEDAVG[:2], aggregators.Krum(byzantine=0)),
    "ffa_lora": FEDAVG,
    "fedex_lora": (*FEDAVG[:2], aggregators.FedEx()),
    "flexlora": (FEDAVG[0], solvers.RankLimited(SGD), aggregators.FlexLoRA()),
    "hetlora": (FEDAVG[0], solvers.HetLoRA(SGD), aggregators.HetLoRAMean()),
    "centralized": (None, SGD, None),
}
"""Selector, solver and aggregator of methods that differ from FedAvg in more than one class."""
CLASSES = {
    name.casefold(): role
    for module in (selectors, solvers, aggregators, server_optimizers)
    for name, role in vars(module).items()
    if isinstance(role, type)
}


def roles_of(name):
    """Selector, solver and aggregator of a method, by its name.

    Tests of the roles say what they compute, and `test_registry` which weights the mean has.
    """
    if name in ROLES:
        return ROLES[name]
    role, mean = CLASSES[name.replace("_", "")], aggregators.Mean(registry.METHODS[name].weighting)
    if issubclass(role, Selector):
        return role(4), SGD, mean
    if issubclass(role, Solver):
        return FEDAVG[0], role(SGD), mean
    return *FEDAVG[:2], role() if issubclass(role, Aggregator) else optimized(role())


HIDDEN = ModelConfig(name="mlp", hidden=(8,))
OTHER_MODELS = (
    dict.fromkeys(("fedper", "fedrep", "lg_fedavg", "fedbabu"), HIDDEN)
    | {"fedbn": ModelConfig(name="resnet18", norm="batch")}
    | dict.fromkeys(registry.GROUPS["adapters"], ModelConfig(name="logistic", lora=2))
)
"""Models of methods that need more than logistic regression."""


@pytest.mark.parametrize("name", registry.METHODS)
def test_every_method_has_its_roles(name):
    # Of four participants none may be Byzantine for Krum.
    written = "krum:byzantine=0" if name == "krum" else name
    config = replace(PLANTED, methods=(written,))
    if name in OTHER_MODELS:
        config = replace(config, model=OTHER_MODELS[name])
    if name in registry.GROUPS["asynchronous"]:
        config = replace(config, timing=TimingConfig(table="synthetic"))
    ready = build(drop_unused_settings(config), with_people(FEDERATION))
    built = ready.rounds[written]
    roles = (getattr(built, role, None) for role in ("selector", "solver", "aggregator"))
    assert tuple(roles) == roles_of(name)
    assert 0 < len(registry.METHODS[name].describe()) < 100


@pytest.mark.parametrize(
    ("name", "selector"),
    [
        ("subtrunc:lam=0", selectors.SubTrunc(4, lam=0.0)),
        ("unionfl:mu=0,window=2", selectors.UnionFL(4, mu=0.0, window=2)),
        ("power_of_choice:pool=4,variant=cpow", selectors.PowerOfChoice(4, 4, variant="cpow")),
    ],
)
def test_settings_in_a_name_apply_to_that_method_only(name, selector):
    plain = name.partition(":")[0]
    rounds = build(replace(SMALL, methods=(name, plain, "divfl"))).rounds
    assert list(rounds) == [name, plain, "divfl"]
    assert rounds[name].selector == selector
    assert rounds[plain] == round_of(plain)


def test_settings_of_every_section_can_be_in_a_name():
    assert round_of("fedavg:solver.steps=1").solver == SGD.replace(steps=1)
    assert round_of("divfl:prox=5").solver == SGD.replace(prox=5.0)
    assert round_of("divfl:prox=5") == round_of("divfl+fedprox:prox=5")
    assert round_of("fedprox") == round_of("fedavg:prox=1")
    assert round_of("fedprox:prox=0") == round_of("fedavg")


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("unionfl+fedprox:prox=2", (selectors.UnionFL(4), SGD.replace(prox=2.0), UNIFORM)),
        (
            "equitable+fedadam:server_learning_rate=0.5,tau=0.1",
            (
                *FEDAVG[:2],
                optimized(server_optimizers.FedAdam(0.5, tau=0.1), aggregators.Equitable()),
            ),
        ),
        (
            "power_of_choice+fedavgm:learning_rate=0.5",
            (
                selectors.PowerOfChoice(4),
                SGD.replace(learning_rate=0.5),
                optimized(server_optimizers.FedAvgM(), UNIFORM),
            ),
        ),
        (
            "fedyogi+q_fedavg",
            (*FEDAVG[:2], optimized(server_optimizers.FedYogi(), ROLES["q_fedavg"][2])),
        ),
        ("divfl+tilted:tilt=0", (selectors.DivFL(4), SGD, aggregators.Tilted(tilt=0.0))),
        (
            "fedprox+power_of_choice:prox=1",
            (selectors.PowerOfChoice(4), SGD.replace(prox=1.0), UNIFORM),
        ),
        ("power_of_choice:weights=num_examples", (selectors.PowerOfChoice(4), SGD, FEDAVG[2])),
    ],
)
def test_methods_that_differ_in_different_roles_combine(name, roles):
    built = round_of(name)
    assert (built.selector, built.solver, built.aggregator) == roles


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
        (
            "divfl+unionfl",
            r"'divfl\+unionfl': two of them set the selector; expected methods with one",
        ),
        ("divfl+equitable+fairfed", "expected methods with one aggregator"),
        ("fedavg+equitable", "expected methods that each differ from fedavg in a role"),
        ("centralized+equitable", "expected methods that each differ from fedavg in a role"),
        ("divfl+equitible", "did you mean 'equitable'"),
        ("equitable:num_clusters=0", "num_clusters=0"),
        ("equitable:num_clusters=some", "num_clusters='some': expected"),
        ("equitable:groups=oracle", "groups='oracle': expected a federated dataset with groups"),
        (
            "gifair:strength=0.5",
            "groups=None: expected .* such as of planted_clusters",
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


@pytest.mark.parametrize(
    ("settings", "solver"),
    [
        (SolverConfig(steps=7), solvers.SGD(0.1, 10, steps=7)),
        (SolverConfig(epochs=2, batch_size=50), solvers.SGD(0.1, 50, epochs=2)),
        (SolverConfig(0.0, 10, epochs=1), solvers.SGD(0.0, 10, epochs=1)),
    ],
)
def test_the_solver_follows_the_configuration(settings, solver):
    assert round_of("fedavg", presets.resolve(replace(SMALL, solver=settings))).solver == solver


@pytest.mark.parametrize(
    "name",
    sorted(set(registry.PARTITIONERS) - {"planted_clusters", "biased", "by_column", "natural"}),
)
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
    is_of_text = name.startswith("char_")
    tokens = jax.ShapeDtypeStruct((2, 5), np.int32)
    x = tokens if is_of_text else jax.ShapeDtypeStruct((2, 32, 32, 3), np.uint8)
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    logits, _ = jax.eval_shape(
        lambda v, x: model.apply(v.params, v.state, x, train=False, key=None), variables, x
    )
    assert logits.shape == ((2, 5, 10) if is_of_text else (2, 10))


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
    ready = build(drop_unused_settings(replace(config, methods=("fedavg",))))
    state = jax.eval_shape(ready.rounds["fedavg"].init, jax.random.key(0), ready.data)
    variables = state.variables
    assert sorted(leaf.size for leaf in jax.tree.leaves(variables)) == [7, 10, 70, 7 * 64]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"methods": ("fedagv",)}, "did you mean 'fedavg'"),
        ({"methods": ()}, "methods"),
        ({"methods": ("fedavg", "fedavg")}, "expected one or more different methods"),
        ({"data": replace(SMALL.data, alpha=0.1)}, "--data.alpha has no effect"),
        (
            {"selector": SelectorConfig(lam=3.0)},
            "--selector.lam has no effect: fedavg does not use it \\(subtrunc does\\)",
        ),
        (
            {"model": replace(SMALL.model, hidden=(5,))},
            r"--model.hidden has no effect: model.name",
        ),
        (
            {"aggregator": AggregatorConfig(beta=1.0)},
            "--aggregator.beta has no effect: fedavg",
        ),
        ({"model": ModelConfig(name="lenett")}, "did you mean 'lenet'"),
        ({"model": ModelConfig(name="femnist_cnn")}, r"model\.name='femnist_cnn'.* \(8, 8, 1\)"),
        ({"data": replace(SMALL.data, partition="dirichlt")}, "did you mean 'dirichlet'"),
        ({"data": replace(SMALL.data, clients=0)}, r"^clients=0"),
        ({"solver": SolverConfig(0.1, 10)}, "solver.epochs=None: expected a value"),
        ({"solver": SolverConfig(-0.1, 10, epochs=1)}, "learning_rate=-0.1"),
        ({"selector": SelectorConfig(cohort_size=11)}, "cohort_size=11"),
        ({"training": replace(SMALL.training, rounds=0)}, "training.rounds=0"),
        ({"training": replace(SMALL.training, eval_every=0)}, "training.eval_every=0"),
        ({"training": replace(SMALL.training, seeds=(1, 1))}, "training.seeds"),
        ({"training": replace(SMALL.training, seeds=(-1,))}, "training.seeds"),
        ({"training": replace(SMALL.training, clients_per_batch=0)}, "clients_per_batch=0"),
        # Settings whose parameters have another name.
        (
            {"communication": CommunicationConfig(top_k=float("nan"))},
            r"communication\.top_k=nan: expected",
        ),
        (
            {
                "communication": CommunicationConfig(
                    clipping_norm=-1.0, noise_multiplier=1.0, target_unclipped_quantile=0.5
                )
            },
            r"target_unclipped_quantile=0\.5: clipping_norm=-1\.0: expected",
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
    for rounds, eval_every in ((100, 10), (60, 6), (19, 1), (10, 1), (1, 1)):
        training = presets.resolve(Config(training=TrainingConfig(rounds=rounds))).training
        assert training.eval_every == eval_every
    mnist = presets.resolve(Config(data=DataConfig(name="mnist", clients=7)))
    assert (mnist.data.clients, mnist.model.name) == (7, "lenet")
    assert presets.resolve(mnist) == mnist
    assert presets.resolve(Config(solver=SolverConfig(steps=5))).solver.epochs is None


def test_every_setting_of_a_method_is_a_field_with_help():
    """Settings have the same names in signatures and configurations."""
    config = presets.resolve(Config(solver=SolverConfig(steps=2)))
    for name in registry.METHODS:
        for (section, key), setting in method_settings(config, name).items():
            assert hasattr(getattr(config, section), key), (name, section, key)
            assert setting.help, (name, section, key)


@pytest.mark.usefixtures("as_users_call")  # Annotations describe users' values.
@pytest.mark.parametrize("name", registry.METHODS)
def test_settings_annotated_as_traced_can_be_traced(name):
    model = OTHER_MODELS.get(name, PLANTED.model)
    config = drop_unused_settings(replace(PLANTED, methods=(name,), model=model))
    used = method_settings(config, name)
    traced = {key: setting for key, setting in used.items() if setting.traced}
    assert ("solver", "learning_rate") in traced

    def init(values, key):
        own = config
        for (section, setting), value in zip(traced, values, strict=True):
            own = replace(own, **{section: replace(getattr(own, section), **{setting: value})})
        times = times_for(name, FEDERATION.num_clients)
        round = method_round(own, name, 10, model=network, times=times)
        return round.init(key, with_people(FEDERATION))

    network = None
    if name in registry.GROUPS["adapters"]:
        plain = models.logistic(10)
        variables = plain.init(jax.random.key(0), FEDERATION.train.features[:1])
        network = models.lora(plain, variables, rank=2)
    values = [jnp.asarray(setting.type(0.5)) for setting in traced.values()]
    values[list(traced).index(("solver", "learning_rate"))] = jnp.float32(0.1)
    jax.eval_shape(init, values, jax.random.key(0))


def test_settings_of_a_preset_for_other_methods_are_dropped():
    preset = presets.resolve(presets.PRESETS["equitable"].config)
    few = replace(preset, methods=("fedavg",), aggregator=AggregatorConfig(num_clusters=2, q=3.0))
    assert drop_unused_settings(few).aggregator == AggregatorConfig()
    # Settings that differ from the preset are kept, so that they are checked.
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
        (SMALL, states, "training.seeds: 1 runs of a model of .* for fedavg"),
        (replace(SMALL, solver=big), minibatches, "solver.steps=1000: the minibatches of a client"),
    ):
        own = replace(config, methods=("fedavg",))
        build(own, memory=needed)
        with pytest.raises(ValueError, match=message):
            build(own, memory=needed - 1)


def test_a_device_needs_memory_for_its_share_of_the_runs():
    config = drop_unused_settings(replace(SMALL, methods=("fedavg",)))
    ready = build(config)

    def states(runs, mesh=None):
        needed, _ = min_memory(ready.rounds["fedavg"], config, runs, ready.data, mesh).values()
        return needed

    devices = np.array(8 * jax.devices()[:1])  # Nothing runs on them.
    groups = Mesh(devices.reshape(4, 2), ("runs", "clients"))
    assert states(6, groups) == states(2) < states(3) == states(9, groups)
    assert states(6, Mesh(devices, ("clients",))) == states(6)


def test_the_type_of_stored_states_reaches_the_round():
    training = replace(SMALL.training, client_state_dtype="bfloat16")
    assert round_of("ditto", replace(SMALL, training=training)).client_state_dtype == "bfloat16"
    assert round_of("ditto").client_state_dtype is None


def test_states_of_clients_are_refused_with_their_bytes():
    """Each device of a mesh needs memory for its share of the clients."""
    config = drop_unused_settings(replace(SMALL, methods=("fedavg",)))
    ready = build(config)
    sgd, num_clients = ready.rounds["fedavg"].solver, ready.data.num_clients
    local = ready.rounds["fedavg"].replace(solver=solvers.Local(sgd))
    without = min_memory(ready.rounds["fedavg"], config, 3, ready.data, None)
    model = tree_bytes(jax.eval_shape(local.init, jax.random.key(0), ready.data).variables)
    devices = np.array(8 * jax.devices()[:1])  # Nothing runs on them.
    groups = Mesh(devices.reshape(4, 2), ("runs", "clients"))
    for mesh, runs, shards in ((None, 3, 1), (groups, 1, 2)):
        states, *_ = needed = min_memory(local, config, 3, ready.data, mesh)
        assert needed[states] == runs * -(-num_clients * model // shards)
        assert len(needed) == len(without) + 1
        check_memory("local", needed, max(needed.values()))
        with pytest.raises(ValueError, match=r"data\.clients=.*: the states of clients in 3 runs"):
            check_memory("local", needed, needed[states] - 1)
