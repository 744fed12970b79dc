"""One battery that every role passes; a new class joins by getting a line here.

``test_nothing_is_left_out`` fails for a public class without one. Each combination of roles is
compiled once, and one of each class also mapped over keys; all tests read these programs. Local
training is half of a program, so that a solver which only scales the model stands in for SGD where
neither SGD nor its reports matter.
"""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from itertools import zip_longest
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import (
    linear_model,
    make_federation,
    normalized_model,
    with_people,
)

from fedjax_fair import (
    aggregators,
    faults,
    models,
    schedules,
    selectors,
    server_optimizers,
    solvers,
)
from fedjax_fair.numerics.sketch import CountSketch
from fedjax_fair.roles import Aggregator, LocalResult, Selector, Solver
from fedjax_fair.rounds.round import Round, run
from fedjax_fair.submodular import Modular
from fedjax_fair.timing import ClientTimes


class Scaling(Solver):
    """Shrinks the model, that of small clients the most."""

    def num_examples(self, sizes, max_steps=None):
        return sizes

    def solve(self, key, variables, client):
        step = 0.3 / client.size.astype(jnp.float32)
        update = jax.tree.map(lambda leaf: -step * (leaf + 1), variables)
        return LocalResult(update, step, jnp.int32(1))


SELECTORS = {
    "uniform": partial(selectors.Uniform, 3),
    "by_size": partial(selectors.BySize, 3),
    "full": selectors.Full,
    "round_robin": partial(selectors.RoundRobin, 3),
    "rotation": partial(selectors.Rotation, 3),
    "power_of_choice": partial(selectors.PowerOfChoice, 3, 5),
    "power_of_choice, minibatch": partial(
        selectors.PowerOfChoice, 3, 5, variant="cpow", loss_examples=2
    ),
    "power_of_choice, reported": partial(selectors.PowerOfChoice, 3, 5, variant="rpow"),
    "oort": partial(selectors.Oort, 3, max_selections=2),
    "fedcor": partial(selectors.FedCor, 3, warmup=1, interval=2),
    "fedcor, in one dimension": partial(
        selectors.FedCor, 3, warmup=1, interval=2, embedding_size=1
    ),
    "clustered_by_size": partial(selectors.ClusteredBySize, 3),
    "clustered_by_similarity": partial(selectors.ClusteredBySimilarity, 3),
    "divfl": partial(selectors.DivFL, 3, candidates=4),
    "divfl, greedy and stale": partial(selectors.DivFL, 3, candidates="all", gradients="stale"),
    "divfl, every other round": partial(
        selectors.DivFL, 3, candidates=4, gradients=selectors.gradients.RefreshEvery(2)
    ),
    "divfl, sketched": partial(
        selectors.DivFL, 3, candidates=4, gradients=selectors.gradients.Fresh(CountSketch(4))
    ),
    "divfl, of a pool": partial(
        selectors.DivFL,
        3,
        candidates="all",
        pool=4,
        gradients=selectors.gradients.Stale(CountSketch(4)),
    ),
    "divfl, of reference clients": partial(
        selectors.DivFL,
        3,
        pool=4,
        num_reference_clients=5,
        gradients=selectors.gradients.Stale(CountSketch(4)),
    ),
    "subtrunc": partial(selectors.SubTrunc, 3, 0.5, candidates=4),
    "subtrunc, of a pool": partial(selectors.SubTrunc, 3, 0.5, candidates=2, pool=4),
    "subtrunc, of reference clients": partial(
        selectors.SubTrunc, 3, 0.5, pool=4, num_reference_clients=5
    ),
    "unionfl": partial(selectors.UnionFL, 3, 0.5, 2, candidates=4),
    "unionfl, of a pool": partial(selectors.UnionFL, 3, 0.5, 2, candidates="all", pool=4),
    "unionfl, by updates": partial(
        selectors.UnionFL, 3, candidates=4, gradients=selectors.gradients.Updates(0.1)
    ),
    "submodular": partial(
        selectors.Submodular, lambda context: Modular(context.losses(context.variables)), 3
    ),
    "agnostic": partial(selectors.Agnostic, 0.1),
    "drfa": partial(selectors.DRFA, 0.1, cohort_size=3, local_steps=2),
}
SOLVERS = {
    "sgd": partial(solvers.SGD, 0.1, 2, epochs=1),
    "sgd, momentum, decay and prox": partial(
        solvers.SGD, 0.1, 2, steps=3, momentum=0.9, weight_decay=0.01, prox=0.1
    ),
    "sgd with replacement": partial(solvers.SGD, 0.1, 2, steps=3, replacement=True),
    "scaffold": lambda: solvers.Scaffold(solvers.SGD(0.1, 2, epochs=1)),
    "ditto": lambda: solvers.Ditto(solvers.SGD(0.1, 2, epochs=1), personal_prox=0.5),
    "propfair": lambda: solvers.PropFair(solvers.SGD(0.1, 2, epochs=1)),
    "local": lambda: solvers.Local(solvers.SGD(0.1, 2, epochs=1)),
    "fedper": lambda: solvers.FedPer(solvers.SGD(0.1, 2, epochs=1), ("bias",)),
    "fedrep": lambda: solvers.FedRep(solvers.SGD(0.1, 2, epochs=1), ("bias",)),
    "lg_fedavg": lambda: solvers.LGFedAvg(solvers.SGD(0.1, 2, epochs=1), ("bias",)),
    "fedbn": lambda: solvers.FedBN(solvers.SGD(0.1, 2, epochs=1)),
    "fedbabu": lambda: solvers.FedBABU(solvers.SGD(0.1, 2, epochs=1), ("bias",)),
    "fednova": lambda: solvers.FedNova(solvers.SGD(0.1, 2, epochs=1, momentum=0.5, prox=0.1)),
    "feddyn": lambda: solvers.FedDyn(solvers.SGD(0.1, 2, epochs=1), alpha=0.5),
    "mime_lite": lambda: solvers.MimeLite(solvers.SGD(0.1, 2, epochs=1)),
    "ifca": lambda: solvers.IFCA(solvers.SGD(0.1, 2, epochs=1)),
    "fine_tuned": lambda: solvers.FineTuned(solvers.SGD(0.1, 2, epochs=1), fine_tuning_steps=2),
    "per_fedavg": lambda: solvers.PerFedAvg(solvers.SGD(0.1, 2, epochs=1)),
    "pfedme": lambda: solvers.PFedMe(solvers.SGD(0.05, 2, epochs=1), inner_steps=2),
    "apfl": lambda: solvers.APFL(solvers.SGD(0.1, 2, epochs=1)),
    "group_penalty": lambda: solvers.GroupPenalty(solvers.SGD(0.1, 2, epochs=1)),
    "pfedfair": lambda: solvers.PFedFair(solvers.SGD(0.1, 2, epochs=1), inner_steps=2),
    "cell_weighted": lambda: solvers.CellWeighted(solvers.SGD(0.1, 2, epochs=1)),
    "cell_weighted, of clients": lambda: solvers.CellWeighted(solvers.SGD(0.1, 2, steps=2)),
    "cell_weighted, minmax": lambda: solvers.CellWeighted(solvers.SGD(0.1, 2, steps=2)),
    "cell_weighted, reweighing": lambda: solvers.CellWeighted(solvers.SGD(0.1, 2, steps=2)),
    "cell_weighted, global reweighing": lambda: solvers.CellWeighted(solvers.SGD(0.1, 2, steps=2)),
    "rolora": lambda: solvers.RoLoRA(solvers.SGD(0.1, 2, epochs=1)),
    "fedsa_lora": lambda: solvers.FedSALoRA(solvers.SGD(0.1, 2, epochs=1)),
    "rank_limited": lambda: solvers.RankLimited(solvers.SGD(0.1, 2, epochs=1), (1, 2)),
    "hetlora": lambda: solvers.HetLoRA(solvers.SGD(0.1, 2, epochs=1), (1, 2)),
}
ASYNCHRONOUS = {
    "fed_async": aggregators.FedAsync,
    "fed_buff": aggregators.FedBuff,
    "fed_buff by size": partial(aggregators.FedBuff, 0.5, weights="num_examples", normalize=True),
    "ca2fl": aggregators.CA2FL,
    "fed_stale_weight": aggregators.FedStaleWeight,
    "fed_stale_weight, exact": partial(aggregators.FedStaleWeight, exact=True),
    "area": aggregators.AREA,
}
"""Aggregators that need a schedule."""
AGGREGATORS = ASYNCHRONOUS | {
    "mean by size": partial(aggregators.Mean, "num_examples"),
    "mean by cohort": partial(aggregators.Mean, "selector"),
    "mean with a server optimizer": partial(
        aggregators.WithServerOptimizer,
        aggregators.Mean(),
        server_optimizers.Optax(jax.tree_util.Partial(optax.sgd, momentum=0.9), 0.5),
    ),
    "centered clipping with a server optimizer": partial(
        aggregators.WithServerOptimizer,
        aggregators.CenteredClipping(0.1),
        server_optimizers.FedYogi(bias_correction=True),
    ),
    "gifair with a server optimizer": partial(
        aggregators.WithServerOptimizer, aggregators.GIFAIR(0.5), server_optimizers.FedAdagrad()
    ),
    "with_server_optimizer": partial(
        aggregators.WithServerOptimizer, aggregators.Mean(), server_optimizers.FedAdam()
    ),
    "equitable": partial(aggregators.Equitable, 2),
    "equitable, of the last batch": partial(
        aggregators.Equitable, "eigengap", layer="logits", examples="last_batch"
    ),
    "fairfed": partial(aggregators.FairFed, 0.5),
    "gifair": partial(aggregators.GIFAIR, 0.5),
    "q_fedavg": partial(aggregators.QFedAvg, 1.0, learning_rate=0.1),
    "tilted": partial(aggregators.Tilted, 1.0),
    "adafed": aggregators.AdaFed,
    "fedmgda": aggregators.FedMGDA,
    "fedfv": partial(aggregators.FedFV, history=2),
    "fedfa": aggregators.FedFA,
    "aaggff": aggregators.AAggFF,
    "aaggff, in a silo": partial(aggregators.AAggFF, "silo"),
    "loss_gap": partial(aggregators.LossGap, iterations=20),
    "shapfed": aggregators.ShapFed,
    "fedpw": aggregators.FedPW,
    "fedlf": aggregators.FedLF,
    "fedmdfg": partial(aggregators.FedMDFG, halvings=2),
    "fedheal": partial(aggregators.FedHEAL, 0.6),
    "fair_fate": partial(
        aggregators.FairFATE, 10, criteria=("equal_opportunity", "demographic_parity")
    ),
    "fltrust": lambda: aggregators.FLTrust(
        (FEDERATION.train.features[:8], FEDERATION.train.labels[:8]), solvers.SGD(0.1, 4, epochs=1)
    ),
    "median": aggregators.Median,
    "trimmed_mean": partial(aggregators.TrimmedMean, 0.4),
    "krum": partial(aggregators.Krum, 0, selected=2),
    "geometric_median": aggregators.GeometricMedian,
    "norm_clipping": partial(aggregators.NormClipping, 0.1, "num_examples"),
    "centered_clipping": partial(aggregators.CenteredClipping, 0.1, iterations=2),
    "scaffold_mean": aggregators.ScaffoldMean,
    "fednova_mean": aggregators.FedNovaMean,
    "feddyn_mean": aggregators.FedDynMean,
    "mime_lite_mean": partial(aggregators.MimeLiteMean, beta=0.5),
    "ifca_mean": aggregators.IFCAMean,
    "fedfb_mean": aggregators.FedFBMean,
    "fedfb_mean, of clients": partial(aggregators.FedFBMean, 0.1, "client_parity"),
    "fedminmax_mean": aggregators.FedMinMaxMean,
    "reweighing_mean": aggregators.ReweighingMean,
    "reweighing_mean, global": partial(aggregators.ReweighingMean, "global"),
    "fairfed, of accuracies": partial(aggregators.FairFed, 0.5, "accuracy"),
    "fedit": aggregators.FedIT,
    "fedex": aggregators.FedEx,
    "flexlora": aggregators.FlexLoRA,
    "lora_fair": aggregators.LoRAFair,
    # The slope of a cosine is large at small products, where it amplifies rounding.
    "lora_fair, of the cosine": partial(
        aggregators.LoRAFair, objective="cosine", num_steps=2, step_size=0.001
    ),
    "hetlora_mean": aggregators.HetLoRAMean,
    "mean": aggregators.Mean,
}
NEED_SGD = {"equitable, of the last batch", "fltrust"}
"""Roles that read reports of SGD, or compare updates with its own."""
PAIRS = {
    "scaffold": "scaffold_mean",
    "fednova": "fednova_mean",
    "feddyn": "feddyn_mean",
    "mime_lite": "mime_lite_mean",
    "ifca": "ifca_mean",
    "cell_weighted": "fedfb_mean",
    "cell_weighted, of clients": "fedfb_mean, of clients",
    "cell_weighted, minmax": "fedminmax_mean",
    "cell_weighted, reweighing": "reweighing_mean",
    "cell_weighted, global reweighing": "reweighing_mean, global",
    "rolora": "fedit",
    "rank_limited": "flexlora",
    "hetlora": "hetlora_mean",
}
"""Aggregators by the solver that needs them."""
TOGETHER = (
    *(("uniform", *pair) for pair in PAIRS.items()),
    ("drfa", "sgd", "mean"),  # DRFA needs a snapshot, and equal weights.
    ("fedcor", "scaling", "mean"),  # Steps that depend less on the cohort amplify rounding less.
    ("full", "scaling", "aaggff, in a silo"),
    ("full", "sgd", "fedpw"),  # Equal directions differ in no element, up to rounding.
    ("uniform", "fedsa_lora", "mean"),
    ("uniform", "sgd", "fedex"),
    ("uniform", "sgd", "lora_fair"),
    ("uniform", "sgd", "lora_fair, of the cosine"),
    *(("uniform", "scaling", name) for name in ASYNCHRONOUS),
)
"""Roles that need each other."""
TOLERANCES = {"fedcor": 1e-3, "adafed": 1e-4, "fedlf": 1e-4}
"""Relative tolerances of roles that amplify rounding; 1e-5 by default.

FedCor fits by 1000 steps of Adam, whose length does not depend on that of the gradient. In more
than one dimension, a rotation of the embeddings does not change the likelihood, so that the
gradient along it is rounding. AdaFed inverts the matrix of cosines of updates, which
amplifies the rounding of nearly parallel ones: 1.7e-5 on some CPUs. FedLF iterates towards the
shortest vectors of small layers, and divides their sum by its norm.
"""


def combine(condition):
    """Combines the roles whose names fulfill a condition, so that each of them appears once."""
    needed = {name for names in TOGETHER for name in names} - {"uniform", "full", "mean"}
    chosen = [
        [name for name in roles if condition(name) and (name == "sgd" or name not in needed)]
        for roles in (SELECTORS, SOLVERS, AGGREGATORS)
    ]
    combined = [
        (
            selector or "uniform",
            solver or ("sgd" if {selector, aggregator} & NEED_SGD else "scaling"),
            aggregator or "mean",
        )
        for selector, solver, aggregator in zip_longest(*chosen)
    ]
    return combined + [names for names in TOGETHER if condition(names[2])]


CLASSES = combine(str.isidentifier)
FURTHER = combine(lambda name: not name.isidentifier())


FEDERATION = with_people(make_federation())._replace(groups=np.array([0, 1, 0, 2, 1, 0], np.int32))
"""Its groups of clients and of people are known, for the roles that need them."""

ROUNDS = 5


@cache
def keys():
    """Made when they are used: processes that import this have yet to find each other."""
    return jax.random.split(jax.random.key(1), 2)


class Programs(NamedTuple):
    """A combination of roles, compiled.

    Attributes:
        round: The round.
        traced: Grows by one with every trace.
        alone: First and last state and the info of some rounds, from a key and a federation.
        together: The same of several keys.
    """

    round: Round
    traced: list[int]
    alone: Callable
    together: Callable


@cache
def adapted_model():
    network = linear_model()
    with jax.ensure_compile_time_eval():  # The first call may be inside a compiled function.
        variables = network.init(jax.random.key(0), FEDERATION.train.features[:1])
    return models.lora(network, variables, rank=2, trainable=("bias",))


def model_of(names):
    if "fedex" in names:
        return models.with_residual(adapted_model())
    if any("lora" in name or name == "fedit" for name in names):
        return adapted_model()
    return normalized_model() if "fedbn" in names else linear_model()


def roles_of(names):
    selector, solver, aggregator = names
    solvers = SOLVERS | {"scaling": Scaling}
    return SELECTORS[selector](), solvers[solver](), AGGREGATORS[aggregator]()


def schedule_of(aggregator, num_clients=FEDERATION.num_clients):
    """Returns the schedule that an aggregator needs, if any; clients differ in speed."""
    if not aggregator.needs_schedule:
        return None
    times = ClientTimes(np.linspace(0.1, 1, num_clients, dtype=np.float32))
    buffer_size = 1 if isinstance(aggregator, aggregators.FedAsync) else 2
    return schedules.Asynchronous(times, buffer_size=buffer_size)


def round_of(names, **options):
    selector, solver, aggregator = roles_of(names)
    schedule = schedule_of(aggregator)
    return Round(model_of(names), selector, solver, aggregator, schedule=schedule, **options)


@lru_cache(maxsize=1)
def programs(names):
    round = round_of(names)
    traced = []

    def recorded(key, data):
        traced.append(1)
        start = round.init(key, data)
        state, info = run(round, start, data, ROUNDS)
        return plain(start), plain(state), info

    together = jax.jit(jax.vmap(recorded, (0, None)))
    return Programs(round, traced, jax.jit(recorded), together)


def plain(state):
    return state._replace(key=jax.random.key_data(state.key))


def assert_close(names, actual, expected):
    rtol = max(TOLERANCES.get(name, 1e-5) for name in names)
    close = partial(np.testing.assert_allclose, rtol=rtol, atol=rtol / 10)
    jax.tree.map(close, actual, expected)


def test_nothing_is_left_out():
    for package, cases in (
        (selectors, SELECTORS),
        (solvers, SOLVERS),
        (aggregators, AGGREGATORS),
    ):
        public = (getattr(package, name) for name in package.__all__)
        classes = {
            role
            for role in public
            if isinstance(role, type) and issubclass(role, Selector | Solver | Aggregator)
        }
        assert classes <= {type(make()) for make in cases.values()}


@pytest.fixture(params=CLASSES + FURTHER, ids=" | ".join, scope="module")
def names(request):
    """One combination after another: the scope keeps the tests of each together."""
    return request.param


def assert_eager_is_alike(names):
    """Op by op, and so compiled in a hundred pieces."""
    ready = programs(names)
    start = ready.round.init(keys()[0], FEDERATION)
    eager, eager_info = ready.round.step(start, FEDERATION)
    compiled, info = jax.jit(ready.round.step)(start, FEDERATION)
    assert_close(names, plain(compiled), plain(eager))
    assert_close(names, info, eager_info)


@pytest.mark.smoke
@pytest.mark.parametrize("names", [("uniform", "sgd", "mean")], ids=" | ".join)
def test_a_case_of_each_role_is_a_loop_over_keys(names):
    assert_vmap_is_a_loop(names)


@pytest.mark.parametrize("names", [("power_of_choice", "scaling", "tilted")], ids=" | ".join)
def test_compiled_equals_eager(names):
    assert_eager_is_alike(names)


@pytest.mark.slow
def test_every_combination_compiled_equals_eager(names):
    assert_eager_is_alike(names)


def assert_vmap_is_a_loop(names):
    ready = programs(names)
    together = ready.together(keys(), FEDERATION)
    for index, key in enumerate(keys()):
        alone = ready.alone(key, FEDERATION)
        assert_close(names, jax.tree.map(lambda leaf, index=index: leaf[index], together), alone)


@pytest.mark.parametrize(
    "names", CLASSES, ids=" | ".join, indirect=True, scope="module"
)  # Indices are those of the fixture, which keeps the tests of a combination together.
def test_vmap_over_keys_equals_a_loop(names):
    assert_vmap_is_a_loop(names)


@pytest.mark.slow
@pytest.mark.parametrize("names", FURTHER, ids=" | ".join)
def test_vmap_over_keys_equals_a_loop_for_other_settings(names):
    assert_vmap_is_a_loop(names)


@pytest.mark.slow
def test_a_run_that_goes_on_from_its_state_equals_one_without_a_break(names):
    """The state is all that a resumed run knows of the rounds before."""
    ready = programs(names)
    part = jax.jit(partial(run, ready.round), static_argnums=2)
    state, infos = ready.round.init(keys()[0], FEDERATION), []
    for num_rounds in (2, ROUNDS - 2):
        state, info = part(state, FEDERATION, num_rounds)
        infos.append(info)
    _, expected, expected_info = ready.alone(keys()[0], FEDERATION)
    assert_close(names, plain(state), expected)
    together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *infos)
    assert_close(names, together, expected_info)


def test_state_keeps_its_structure_and_types(names):
    ready = programs(names)
    start, after, _ = jax.eval_shape(ready.alone, keys()[0], FEDERATION)
    chex.assert_trees_all_equal_structs(after, start)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, start)
    # Checkpoints cannot hold them.
    assert all(leaf.size for leaf in jax.tree.leaves(after))


@pytest.mark.parametrize(
    "names",
    # FedEx and asynchronous rounds refuse stale clients.
    [names for names in CLASSES if names[2] not in {"fedex", *ASYNCHRONOUS}],
    ids=" | ".join,
    indirect=True,
    scope="module",
)
def test_faults_that_need_older_models_keep_the_structure_of_the_state(names):
    late = [faults.Staleness(0.5, max_staleness=2), faults.Dropout(0.5)]
    round = round_of(names, faults=late)

    def program(key, data):
        start = round.init(key, data)
        return start, round.step(start, data)[0]

    start, after = jax.eval_shape(program, keys()[0], FEDERATION)
    chex.assert_trees_all_equal_structs(after, start)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, start)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(start.model_history)} == {2}


def test_partitions_do_not_retrace(names):
    ready = programs(names)
    ready.alone(keys()[0], FEDERATION)
    traced = len(ready.traced)
    rolled = FEDERATION.train._replace(order=np.roll(FEDERATION.train.order, 1))
    ready.alone(keys()[1], FEDERATION._replace(train=rolled))
    assert len(ready.traced) == traced


def test_the_cohort_is_valid_and_its_weights_sum_to_one(names):
    _, _, info = programs(names).alone(keys()[0], FEDERATION)
    assert info.clients.dtype == jnp.int32
    assert (info.clients >= 0).all()
    assert (info.clients < FEDERATION.num_clients).all()
    assert (info.weights >= 0).all()
    np.testing.assert_allclose(info.weights.sum(axis=1), 1, rtol=1e-6)
    assert info.finite.all()


def test_the_model_moves(names):
    start, after, _ = programs(names).alone(keys()[0], FEDERATION)
    round = programs(names).round
    is_shared = round.has_global_model or round.solver.is_personal is None
    if is_shared:
        before, moved = start.variables, after.variables
    else:
        before, moved = start.clients, after.clients
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), moved, before)
    if is_shared and round.solver.is_personal is not None:
        x = FEDERATION.train.features[:1]
        fixed = round.solver.is_personal(start.variables, round.model, x)
        moved = jax.tree.map(lambda moved, fixed: moved != fixed, moved, fixed)
    assert all(jax.tree.leaves(moved))
