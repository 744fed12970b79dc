"""Submodular maximization whose results are kept.

A case is a function without arguments that returns arrays by name. Names of arrays from calls
inside ``jax.jit`` start with ``jit``, those from eager calls with ``eager``.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import coo_array, csr_array

from fedjax_fair import submodular as sm
from fedjax_fair.numerics.spectral_clustering import (
    cluster_weights,
    eigengap,
    kmeans,
    spectral_embedding,
)
from fedjax_fair.submodular import estimators as representatives
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids, rounding

KEY = np.array([0, 7], np.uint32)
N, POINTS, K = 8, 10, 3
RNG = np.random.default_rng(0)
SIMILARITY = RNG.uniform(0, 2, (POINTS, N)).astype(np.float32)
SQUARE = RNG.uniform(0, 2, (N, N)).astype(np.float32)
SQUARE = (SQUARE + SQUARE.T) / 2
FEW = np.where(SIMILARITY > 1, SIMILARITY, 0)
FEW_SQUARE = np.where(SQUARE > 1, SQUARE, 0)
FEATURES = RNG.gamma(1.0, size=(N, 4)).astype(np.float32)
VECTORS = RNG.normal(size=(POINTS, 3)).astype(np.float32)
DISTANCES = np.linalg.norm(VECTORS[:N, None] - VECTORS[None, :N], axis=-1).astype(np.float32)
KERNEL = (VECTORS[:N] @ VECTORS[:N].T + 0.1 * np.eye(N)).astype(np.float32)
MEMBERSHIP = RNG.random((N, 6)) < 0.4
PROBABILITIES = np.where(MEMBERSHIP, RNG.random((N, 6)), 0).astype(np.float32)
WEIGHTS = RNG.gamma(1.0, size=6).astype(np.float32)
POINT_WEIGHTS = RNG.gamma(1.0, size=POINTS).astype(np.float32)
MIXED = RNG.normal(size=N).astype(np.float32)
HISTORY = RNG.random((3, N)) < 0.3
INCLUDED = np.array([True, False, True, True, False, True, True, True])
COUNTED = RNG.random(POINTS) < 0.8
SOME = np.array([7, 2, 0, 5, 9, 3, 1, 8])
COSTS = RNG.integers(1, 6, N).astype(np.float32)
MASKS = RNG.random((6, N)) < np.array([[0], [0.2], [0.4], [0.6], [0.8], [1]])


def key(seed=0):
    return jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(KEY)), seed)


FUNCTIONS = {
    "facility_location": lambda: sm.facility_location(SIMILARITY),
    "facility_location-weighted": lambda: sm.facility_location(SIMILARITY, POINT_WEIGHTS),
    "facility_location-sparse": lambda: sm.facility_location(csr_array(FEW), POINT_WEIGHTS),
    "facility_location_from_distances": lambda: sm.facility_location_from_distances(
        DISTANCES, POINT_WEIGHTS[:N]
    ),
    "facility_location_from_features": lambda: sm.facility_location_from_features(VECTORS[:N]),
    "facility_location_from_features-some": lambda: sm.facility_location_from_features(
        VECTORS, SOME, COUNTED, POINT_WEIGHTS
    ),
    "coverage": lambda: sm.Coverage(MEMBERSHIP, WEIGHTS),
    "probabilistic_coverage": lambda: sm.ProbabilisticCoverage(PROBABILITIES, WEIGHTS),
    "saturated_coverage": lambda: sm.saturated_coverage(SIMILARITY, 0.3),
    "saturated_coverage-sparse": lambda: sm.saturated_coverage(csr_array(FEW), 0.3),
    "feature_based-sqrt": lambda: sm.FeatureBased(FEATURES),
    "feature_based-log1p": lambda: sm.FeatureBased(FEATURES, "log1p", WEIGHTS[:4]),
    "feature_based-own": lambda: sm.FeatureBased(FEATURES, lambda x: 1 - jnp.exp(-x - 1)),
    "graph_cut": lambda: sm.graph_cut(SQUARE, 1.5),
    "graph_cut-sparse": lambda: sm.graph_cut(coo_array(FEW_SQUARE), 1.5),
    "log_det": lambda: sm.LogDet(KERNEL),
    "modular": lambda: sm.Modular(MIXED),
    "truncated_modular": lambda: sm.truncated_modular(FEATURES[:, 0], 1.5, 0.7),
    "union_penalty": lambda: sm.union_penalty(HISTORY, 0.3),
    "disparity_sum": lambda: sm.DisparitySum(SQUARE),
    "disparity_min": lambda: sm.DisparityMin(SQUARE),
    "sum_of": lambda: sm.Sum(
        (sm.Coverage(MEMBERSHIP), sm.Modular(MIXED), sm.facility_location(SIMILARITY))
    ),
    "scaled": lambda: sm.Scaled(sm.LogDet(KERNEL), 2.5),
    "truncated": lambda: sm.Truncated(sm.facility_location(SIMILARITY), 14.0),
    "restricted": lambda: sm.Restricted(sm.facility_location(SIMILARITY), INCLUDED),
    "conditional_gain": lambda: sm.ConditionalGain(sm.facility_location(SIMILARITY), [2, 4]),
    "conditional_gain-log_det": lambda: sm.ConditionalGain(sm.LogDet(KERNEL), [2, 4]),
    "mutual_information": lambda: sm.MutualInformation(sm.graph_cut(SQUARE), [4, 1]),
    "conditional_mutual_information": lambda: sm.ConditionalMutualInformation(
        sm.facility_location(SIMILARITY), [4, 1], [2, 5]
    ),
}


def values_of(make):
    """Values and marginal gains of a set function, and two maximizers of it."""

    def oracle(masks):
        function = make()
        memo = function.add(function.add(function.init(), jnp.int32(1)), jnp.int32(4))
        members = np.isin(np.arange(N), [1, 4])  # Their gains have no meaning.
        return {
            "values": jax.vmap(function.value)(masks),
            "gains": jnp.where(members, 0.0, function.gains(memo)),
            "gain": function.gain(memo, jnp.int32(2)),
        } | named("greedy", found(sm.greedy(function, K)))

    function = make()
    return (
        named("jit", jax.jit(oracle)(MASKS))
        | {"eager.value": function.value(jnp.asarray(MASKS[2]))}
        | named("eager.greedy", found(sm.greedy(function, K)))
    )


def found(chosen):
    """The arrays of what a maximizer returns."""
    return {
        "items": chosen.items,
        "gains": chosen.gains,
        "value": chosen.value,
        "num_evaluations": chosen.num_evaluations,
    }


def named(prefix, arrays):
    return {f"{prefix}.{name}": values for name, values in arrays.items()}


def both(solve):
    """The arrays of ``solve()``, called eagerly and inside ``jax.jit``."""
    return named("eager", solve()) | named("jit", jax.jit(solve)())


LIMITS = {
    "uniform": matroids.Uniform(3, N),
    "partition": matroids.Partition([1, 0, 1, 0, 1, 0, 2, 2], [1, 2, 1]),
    "laminar": matroids.Laminar([[1, 0, 1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1, 1, 0]], [1, 2]),
    "graphic": matroids.Graphic([[0, 1], [1, 2], [2, 0], [2, 3], [3, 0], [1, 3], [3, 3], [3, 4]]),
    "allocation": matroids.allocation(4, 2),
    "from_oracle": matroids.Oracle(lambda mask: jnp.sum(mask) <= 2, N),
}

VARIED = {
    "facility_location": FUNCTIONS["facility_location"],
    "graph_cut": FUNCTIONS["graph_cut"],
    "feature_based": FUNCTIONS["feature_based-sqrt"],
}


def of_functions(maximize):
    """A maximizer of several functions, eagerly of the first and compiled of all."""

    def all_of_them():
        arrays = {}
        for name, make in VARIED.items():
            arrays |= named(name, found(maximize(make())))
        return arrays

    first = found(maximize(FUNCTIONS["facility_location"]()))
    return named("eager", first) | named("jit", jax.jit(all_of_them)())


def stochastic(function, k=None, **settings):
    return sm.stochastic_greedy(key(1), function, k, 4, **settings)


PLAIN = {"greedy": sm.greedy, "lazy_greedy": sm.lazy_greedy, "stochastic_greedy": stochastic}


def limited(maximize):
    """Greedy maximizers under every matroid, compiled together."""
    function = FUNCTIONS["facility_location"]()

    def solve():
        arrays = {}
        for name, matroid in LIMITS.items():
            arrays |= named(name, found(maximize(function, matroid=matroid)))
        return arrays

    eager = found(maximize(function, matroid=LIMITS["partition"]))
    return named("jit", jax.jit(solve)()) | named("eager", eager)


def settings_of(maximize):
    """Greedy maximizers with each of their other settings."""

    def solve():
        function = FUNCTIONS["facility_location"]()
        arrays = named("candidate_mask", found(maximize(function, K, candidate_mask=INCLUDED)))
        arrays |= named("initial_items", found(maximize(function, K, initial_items=[5, 1])))
        arrays |= named("budget", found(maximize(function, costs=COSTS, budget=7.0)))
        arrays |= named("budget-k", found(maximize(function, 2, costs=COSTS, budget=8.0)))
        arrays |= named("min_gain", found(maximize(function, 6, min_gain=0.8)))
        return arrays

    return both(solve)


def swaps():
    function = FUNCTIONS["facility_location"]()

    def solve():
        arrays = named("all", found(sm.best_swap(function, [0, 1, 2])))
        arrays |= named("one", found(sm.best_swap(function, [0, 1, 2], max_swaps=1)))
        partition = LIMITS["partition"]
        return arrays | named(
            "matroid", found(sm.best_swap(function, [0, 1, 6], matroid=partition))
        )

    return both(solve)


def sieves():
    """A stream in batches, which is called from the host alone."""
    batches = np.split(SIMILARITY.T, [3, 6])
    chosen = sm.sieve_batches(lambda rows: sm.facility_location(rows.T), batches, K, 0.2)
    return named("eager", found(chosen))


def estimators():
    rows = np.abs(VECTORS)
    arrays = {}
    for name, estimator in {
        "FacilityLocation": representatives.FacilityLocation(4),
        "FacilityLocation-neighbors": representatives.FacilityLocation(4, n_neighbors=3),
        "FeatureBased": representatives.FeatureBased(4, "log1p"),
        "GraphCut": representatives.GraphCut(4, 2.0, "cosine"),
        "LogDet": representatives.LogDet(4),
        "MaxCoverage": representatives.MaxCoverage(3),
        "SaturatedCoverage": representatives.SaturatedCoverage(4, 0.3),
    }.items():
        estimator.fit(MEMBERSHIP if name == "MaxCoverage" else rows)
        arrays[f"eager.{name}.ranking"] = estimator.ranking_
        arrays[f"eager.{name}.gains"] = estimator.gains_
    return arrays


MAXIMIZERS = (
    {f"function-{name}": (lambda make=make: values_of(make)) for name, make in FUNCTIONS.items()}
    | {f"{name}-matroids": (lambda own=own: limited(own)) for name, own in PLAIN.items()}
    | {f"{name}-settings": (lambda own=own: settings_of(own)) for name, own in PLAIN.items()}
    | {
        "lazy_greedy": lambda: of_functions(lambda f: sm.lazy_greedy(f, K)),
        "stochastic_greedy": lambda: of_functions(
            lambda f: sm.stochastic_greedy(key(), f, K, epsilon=0.3)
        ),
        "threshold_greedy": lambda: of_functions(lambda f: sm.threshold_greedy(f, K, 0.2)),
        "sieve_streaming": lambda: of_functions(
            lambda f: sm.sieve_streaming(f, K, 0.2, order=[3, 1, 7, 0, 5, 2, 6, 4])
        ),
        "sieve_batches": sieves,
        "partial_enumeration": lambda: of_functions(
            lambda f: sm.partial_enumeration(f, COSTS, 8.0, seed_size=2)
        ),
        "double_greedy": lambda: of_functions(lambda f: sm.double_greedy(key(2), f)),
        "random_greedy": lambda: of_functions(lambda f: sm.random_greedy(key(3), f, K)),
        "best_swap": swaps,
        "distorted_greedy": lambda: of_functions(lambda f: sm.distorted_greedy(f, COSTS / 4, 4)),
        "greedi": lambda: of_functions(lambda f: sm.greedi(f, K, 2)),
        "greedi-key": lambda: of_functions(lambda f: sm.greedi(f, K, 3, key=key(4))),
        "estimators": estimators,
    }
)


def of_matroid(matroid):
    """What a matroid answers, eagerly for one set and compiled for all of them."""
    masks = np.array(list(itertools.product([False, True], repeat=N)))[::5]
    weights = np.random.default_rng(1).integers(-2, 4, (20, N)).astype(np.float32)

    def solve(masks, weights):
        return {
            "independent": jax.vmap(matroid.independent)(masks),
            "feasible_items": jax.vmap(matroid.feasible_items)(masks),
            "base": jax.vmap(matroid.max_weight_base)(weights),
        }

    eager = {
        "independent": matroid.independent(jnp.asarray(masks[9])),
        "feasible_items": matroid.feasible_items(jnp.asarray(masks[9])),
        "base": matroid.max_weight_base(jnp.asarray(weights[0])),
    }
    return named("jit", jax.jit(solve)(masks, weights)) | named("eager", eager)


def inside(matroid):
    """A point of the matroid polytope: a mean of four bases."""
    weights = np.random.default_rng(2).normal(size=(4, N)).astype(np.float32)
    bases = np.asarray(jax.jit(jax.vmap(matroid.max_weight_base))(weights))
    return np.array([0.4, 0.3, 0.2, 0.1], np.float32) @ bases.astype(np.float32)


def rounded(matroid):
    """Decomposition and rounding of a point, by pipage where the matroid is made of blocks."""
    x = inside(matroid)
    decomposition = rounding.decompose(matroid, x)

    def swap(keys):
        return jax.vmap(lambda one: rounding.swap(one, matroid, decomposition))(keys)

    def pipage(keys, x):
        return jax.vmap(lambda one: rounding.pipage(one, matroid, x))(keys)

    keys = jax.random.split(key(5), 12)
    arrays = {
        "eager.bases": decomposition.bases,
        "eager.weights": decomposition.weights,
        "eager.swap": rounding.swap(key(6), matroid, x),
        "jit.swap": jax.jit(swap)(keys),
    }
    if matroid.item_blocks is not None:
        arrays["eager.pipage"] = rounding.pipage(key(6), matroid, x)
        arrays["jit.pipage"] = jax.jit(pipage)(keys, x)
        arrays["eager.deterministic_pipage"] = rounding.deterministic_pipage(
            matroid, x, lambda y: jnp.asarray(np.arange(N), jnp.float32) @ y
        )
    return arrays


CLIENTS = 6
RATINGS = RNG.integers(0, 4, (CLIENTS, N)) * (RNG.random((CLIENTS, N)) < 0.7)
SCORES = np.where(RATINGS > 0, RNG.random((CLIENTS, N)), 0).astype(np.float32)
NEEDS = RNG.gamma(1.0, size=(CLIENTS, 2, N)).astype(np.float32)
VALUES = RNG.gamma(1.0, size=(2, 1, N // 2)).astype(np.float32)
CLIENT_WEIGHTS = RNG.dirichlet(np.ones(CLIENTS)).astype(np.float32)
EXAMPLES = [RNG.integers(0, 2, (count, N)) for count in (30, 12, 40, 7, 20, 9)]
LABELS = [(own[:, 0] + own[:, 3] * own[:, 1]) % 3 for own in EXAMPLES]


def listed(matrix):
    clients, items = np.nonzero(matrix)
    return fed.sparse_scores(clients, items, matrix[clients, items], num_clients=CLIENTS, size=N)


def square_root(mask, own):
    return jnp.sqrt(jnp.sum(own, where=mask))


PROBLEMS = {
    "facility_location": lambda: fed.facility_location(SCORES),
    "facility_location-levels": lambda: fed.facility_location(listed(RATINGS)),
    "facility_location-sparse": lambda: fed.facility_location(listed(SCORES)),
    "max_coverage": lambda: fed.max_coverage(RATINGS > 1),
    "max_coverage-sparse": lambda: fed.max_coverage(listed((RATINGS > 1).astype(int))),
    "combinatorial_public_projects": lambda: fed.combinatorial_public_projects(NEEDS),
    "welfare": lambda: fed.Welfare(fed.combinatorial_public_projects(VALUES)),
    "feature_selection": lambda: fed.feature_selection(
        EXAMPLES, LABELS, samples=20, num_examples=50
    ),
    "custom": lambda: fed.custom(square_root, SCORES, size=N),
    "custom-sampled": lambda: fed.custom(square_root, SCORES, size=N, samples=15),
}


def communicated(run):
    """Clients contacted and responding, and bits down and up, of every round."""
    sent = run.communication
    return {"communication": jnp.stack([sent.contacted, sent.responded, sent.down, sent.up])}


def continuous(run):
    return communicated(run) | {
        "x": run.x,
        "directions": run.directions,
        "extension": run.extension,
        "rounded": run.rounded,
        "spread": run.spread,
        "client_base_gain": run.client_base_gain,
        "progress": run.progress,
        "max_base_gain": run.max_base_gain,
        "lipschitz": run.lipschitz,
    }


def discrete(run):
    return communicated(run) | {"chosen": run.chosen, "items": run.items, "values": run.values}


def importance(found):
    return communicated(found) | {"factors": found.factors, "singles": found.singles}


def limit_of(problem):
    """An allocation for the welfare problem, a partition otherwise."""
    return LIMITS["allocation" if problem == "welfare" else "partition"]


def federated(problem):
    """The federated algorithms, all compiled together and the first of each kind eagerly too."""
    make, matroid = PROBLEMS[problem], limit_of(problem)
    exact = problem not in ("custom-sampled", "feature_selection")

    def solve(one):
        own = make()
        local = {} if exact else {"gradient": "sampled", "sigma": 0.5}
        return (
            named("fedcg", continuous(fed.fedcg(one, own, matroid, 4)))
            | named("fedcg_plus", continuous(fed.fedcg_plus(one, own, matroid, 2, 2, **local)))
            | named("discrete_greedy", discrete(fed.discrete_greedy(one, own, matroid, kappa=9.0)))
            | named("centralized_greedy", discrete(fed.centralized_greedy(own, matroid)))
            | named(
                "centralized_continuous_greedy",
                continuous(fed.centralized_continuous_greedy(one, own, matroid, 4)),
            )
            | named("importance_factors", importance(fed.importance_factors(own)))
            | {
                "top_singletons": fed.top_singletons(own, matroid),
                "random_base": fed.random_base(one, matroid),
                "values": own.values(jnp.asarray(MASKS[3])),
                "value": own.value(jnp.asarray(MASKS[3])),
            }
        )

    own = make()
    eager = named("fedcg", continuous(fed.fedcg(key(), own, matroid, 2)))
    eager |= named("centralized_greedy", discrete(fed.centralized_greedy(own, matroid)))
    eager["value"] = own.value(jnp.asarray(MASKS[3]))
    return named("jit", jax.jit(solve)(key())) | named("eager", eager)


def federated_settings():
    """The settings of the federated algorithms, on one problem."""
    uniform, own = LIMITS["uniform"], PROBLEMS["facility_location"]()
    weighted = {"client_weights": CLIENT_WEIGHTS}

    def solve():
        one = key(1)
        runs = {
            "fedcg-cohort": fed.fedcg(one, own, uniform, 4, cohort_size=3, **weighted),
            "fedcg-gradient": fed.fedcg(one, own, uniform, 4, send="gradient", step=0.2),
            "fedcg-secure": fed.fedcg(one, own, uniform, 4, aggregation="secure"),
            "fedcg_plus-cohort": fed.fedcg_plus(one, own, uniform, 2, 3, cohort_size=3, **weighted),
            "fedcg_plus-scaled": fed.fedcg_plus(one, own, uniform, 2, 3, local="scaled"),
            "fedcg_plus-sampled": fed.fedcg_plus(
                one, own, uniform, 2, 2, gradient="sampled", sigma=0.5
            ),
            "centralized_continuous_greedy": fed.centralized_continuous_greedy(
                one, own, uniform, 4, **weighted
            ),
        }
        sets = {
            "discrete_greedy-epsilon": fed.discrete_greedy(one, own, uniform, epsilon=0.5),
            "discrete_greedy-fixed": fed.discrete_greedy(
                one, own, uniform, kappa=3.0, resample=False, **weighted
            ),
            "discrete_greedy-secure": fed.discrete_greedy(
                one, own, uniform, kappa=5.0, aggregation=fed.SecureAggregation(8.0)
            ),
            "centralized_greedy": fed.centralized_greedy(own, uniform, **weighted),
        }
        arrays = named(
            "importance_factors-secure",
            importance(fed.importance_factors(own, CLIENT_WEIGHTS, aggregation="secure", key=one)),
        )
        arrays["top_singletons"] = fed.top_singletons(own, uniform, **weighted)
        for name, run in runs.items():
            arrays |= named(name, continuous(run))
        for name, run in sets.items():
            arrays |= named(name, discrete(run))
        return arrays

    return both(solve)


FEDERATED = (
    {f"matroid-{name}": (lambda own=own: of_matroid(own)) for name, own in LIMITS.items()}
    | {f"rounding-{name}": (lambda own=own: rounded(own)) for name, own in LIMITS.items()}
    | {f"federated-{name}": (lambda name=name: federated(name)) for name in PROBLEMS}
    | {"federated-settings": federated_settings}
)


def clustered():
    """k-means with its settings, on points in three groups."""
    centers = np.random.default_rng(3).normal(size=(3, 4)) * 4
    noise = np.random.default_rng(4).normal(size=(24, 4))
    points = jnp.asarray(np.repeat(centers, 8, axis=0) + noise, jnp.float32)
    mask = jnp.asarray(np.arange(24) % 5 != 0)

    def solve():
        arrays = {}
        for name, settings in {"all": {}, "active": {"active": 2}, "mask": {"mask": mask}}.items():
            own = kmeans(key(7), points, 3, restarts=4, **settings)
            arrays[f"{name}.labels"], arrays[f"{name}.centers"] = own.labels, own.centers
            arrays[f"{name}.inertia"], arrays[f"{name}.steps"] = own.inertia, own.steps
            arrays[f"{name}.weights"] = cluster_weights(own.labels, 3)
        return arrays

    return both(solve)


def spectral():
    similarity = jnp.asarray(VECTORS @ VECTORS.T)

    def solve():
        return {
            "embedding": spectral_embedding(similarity, 3),
            "eigengap": eigengap(similarity, 4),
        }

    return both(solve)


GROUPS = {
    "maximizers": MAXIMIZERS | {"kmeans": clustered, "spectral_embedding": spectral},
    "federated_maximization": FEDERATED,
}
