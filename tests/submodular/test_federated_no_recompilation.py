"""Tests that federated problems are pytrees and that equal shapes compile once."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations

from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import bounds
from fedjax_fair.submodular.federated import method_comparison as cmp
from fedjax_fair.training.stacked import stack_trees

CLIENTS, N = 5, 6
KEY = jax.random.key(0)
PARTITION = matroids.Partition([0, 1, 0, 1, 0, 1], [1, 2])


def counted(call):
    """The number of compilations of a call."""
    with compilations() as compiled:
        jax.block_until_ready(call())
    return len(compiled)


def square_root(mask, row):
    return jnp.sqrt(jnp.sum(row, where=mask))


def scores(seed, *shape):
    return np.random.default_rng(seed).gamma(1.0, size=shape or (CLIENTS, N)).astype(np.float32)


def listed(seed, steps=None):
    """Two ratings of each client."""
    shift = np.random.default_rng(seed).permutation(CLIENTS)
    clients = np.repeat(np.arange(CLIENTS), 2)
    items = np.stack([shift, shift + 1], axis=1).ravel()
    rated = scores(seed, items.size) if steps is None else 1 + np.arange(items.size) % steps
    return fed.sparse_scores(clients, items, rated, num_clients=CLIENTS, size=N)


def features(seed, width):
    rng = np.random.default_rng(seed)
    examples = [rng.integers(0, 2, (9, width)) for _ in range(CLIENTS)]
    labels = [np.arange(9) % 2 for _ in examples]
    return fed.feature_selection(examples, labels, num_examples=10, samples=2)


# name: function from a seed to a problem with the same shapes for all seeds
PROBLEMS = {
    "facility_location": lambda seed: fed.facility_location(scores(seed)),
    "facility_location levels": lambda seed: fed.facility_location(listed(seed, 2)),
    "facility_location ranks": lambda seed: fed.facility_location(
        fed.sparse_scores(
            *np.nonzero(scores(seed, 5, 6)), scores(seed).ravel(), num_clients=5, size=6
        )
    ),
    "max_coverage": lambda seed: fed.max_coverage(scores(seed) > 0.5),
    "max_coverage sparse": lambda seed: fed.max_coverage(listed(seed, 1)),
    "combinatorial_public_projects": lambda seed: fed.combinatorial_public_projects(
        scores(seed, CLIENTS, 2, N)
    ),
    "welfare": lambda seed: fed.Welfare(fed.facility_location(scores(seed, 2, N // 2))),
    "custom": lambda seed: fed.custom(square_root, scores(seed), N),
    "custom sampled": lambda seed: fed.custom(square_root, scores(seed), N, samples=3),
    "feature_selection": lambda seed: features(seed, N),
    "feature_selection sampled": lambda seed: features(seed, 13),
}


ALGORITHMS = {
    "fedcg": lambda p, m: fed.fedcg(KEY, p, m, 2),
    "fedcg cohort": lambda p, m: fed.fedcg(KEY, p, m, 2, cohort_size=2, send="gradient", step=0.3),
    "fedcg secure": lambda p, m: fed.fedcg(KEY, p, m, 2, aggregation="secure"),
    "fedcg_plus": lambda p, m: fed.fedcg_plus(KEY, p, m, 2, 2),
    "discrete_greedy": lambda p, m: fed.discrete_greedy(KEY, p, m, kappa=2.0),
    "centralized_greedy": fed.centralized_greedy,
    "centralized_continuous_greedy": lambda p, m: fed.centralized_continuous_greedy(KEY, p, m, 2),
    "importance_factors": lambda p, m: fed.importance_factors(p),
    "top_singletons": fed.top_singletons,
    "random_base": lambda p, m: fed.random_base(KEY, m),
    "value": lambda p, m: p.value(np.arange(N) < 2),
    "largest_single": lambda p, m: bounds.largest_single(p),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_new_problem_of_equal_shapes_compiles_nothing(name):
    run = ALGORITHMS[name]
    jax.block_until_ready(run(fed.facility_location(scores(0)), PARTITION))
    # Neither construction nor another matroid of equal structure compiles.
    other = matroids.Partition([1, 0, 1, 0, 1, 0], [2, 1])
    assert counted(lambda: run(fed.facility_location(scores(1)), other)) == 0


def test_other_numbers_compile_nothing():
    problem, weights = fed.facility_location(scores(0)), np.full(CLIENTS, 0.2)

    def run(step, kappa, weights):
        settings = {"client_weights": weights}
        return (
            fed.fedcg(KEY, problem, PARTITION, 2, step=step, **settings),
            fed.discrete_greedy(KEY, problem, PARTITION, kappa=kappa, **settings),
        )

    first = jax.block_until_ready(run(0.5, 2, weights))
    uneven = np.arange(CLIENTS) / 10
    assert counted(lambda: run(0.25, 10**10, uneven)) == 0
    assert counted(lambda: run(0.1, 1.5, uneven.tolist())) == 0
    assert (run(0.25, 2.0, weights)[0].x != first[0].x).any()


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_are_trees(name):
    make = PROBLEMS[name]
    problem, other = make(0), make(1)
    leaves, structure = jax.tree.flatten(problem)
    again = jax.tree.unflatten(structure, leaves)
    crossed = jax.jit(lambda problem: problem)(problem)
    for same in (make(0), again, crossed, pickle.loads(pickle.dumps(problem))):
        assert same == problem
        assert hash(same) == hash(problem)
    assert other != problem
    assert jax.tree.structure(other) == structure
    assert jax.tree.structure(jax.eval_shape(lambda: problem)) == structure
    assert (problem.size, problem.num_clients) == (other.size, other.num_clients)
    assert problem.name == name.split()[0]
    assert problem.exact == (not name.endswith("sampled"))
    assert len(repr(problem)) < 600
    jax.block_until_ready(fed.importance_factors(problem))
    assert counted(lambda: fed.importance_factors(make(2))) == 0


def test_a_partial_with_other_arrays_compiles_nothing():
    """Arrays of a ``Partial`` are children; those of a closure would be constants."""

    def run(seed):
        capped = jax.tree_util.Partial(capped_sum, scores(seed, N))
        problem = fed.custom(capped, scores(seed), N, samples=2)
        return fed.importance_factors(problem)

    first = jax.block_until_ready(run(0))
    assert counted(lambda: run(1)) == 0
    assert (run(1).singles != first.singles).any()


def capped_sum(cap, mask, row):
    return jnp.sum(jnp.minimum(row, cap), where=mask)


def test_stacked_problems_are_mapped():
    problems = [fed.facility_location(scores(seed)) for seed in range(3)]
    matroid = matroids.Uniform(2, N)

    def run(problem):
        return fed.fedcg(KEY, problem, matroid, 3), fed.discrete_greedy(
            KEY, problem, matroid, kappa=2.0
        )

    together = jax.jit(jax.vmap(run))(stack_trees(problems).stacked)
    for i, problem in enumerate(problems):
        mapped, alone = jax.tree.map(lambda leaf, i=i: leaf[i], together), run(problem)
        np.testing.assert_array_equal(mapped[1].items, alone[1].items)
        for one, other in zip(*map(jax.tree.leaves, (mapped, alone)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_a_comparison_runs_again_without_compiling():
    all_methods = cmp.baselines() | cmp.methods(rounds=2, local_steps=1, cohort_size=2, kappa=None)
    chosen = {name: all_methods[name] for name in ("random", "fedcg")}

    def run(seed):
        problem = fed.facility_location(scores(seed))
        return cmp.compare(problem, PARTITION, chosen, seeds=(seed,))["final_value"].values

    first = run(0)
    assert counted(lambda: run(1)) == 0
    assert (run(1) != first).any()


def test_a_problem_must_be_complete():
    class Partial(fed.DenseProblem):
        """Problem without data."""

        num_clients, size, function = CLIENTS, N, None

    with pytest.raises(ValueError, match="Partial:"):
        Partial()
