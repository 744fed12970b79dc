# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A custom selector
#
# A selector is a class of twelve to fifteen lines. Its fields are its settings, and `select`
# returns the cohort of a round. If the utility of a cohort is a set function, five lines suffice.

# %%
# %matplotlib inline
import time

import jax
import jax.numpy as jnp

import fedjax_fair as ff
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.report import plots, selection
from fedjax_fair.submodular import Coverage, Scaled, Sum, facility_location_from_distances

digits = ff.data.load("digits", partition=ff.data.classes_per_client(50, 3), seed=0)


# %% [markdown]
# ## A class
#
# This selector chooses the clients with the highest loss minus a penalty for clients of recent
# cohorts. Its state has one scalar per client, which halves in every round. The context provides
# losses, accuracies and gradients of all clients, computed only if called.


# %%
class Rested(ff.Selector):
    cohort_size: int
    penalty: ff.Number = 0.5

    def init(self, context):
        return jnp.zeros(context.num_clients)  # How recently each client was selected.

    def select(self, key, recent, context):
        losses = context.losses(context.variables) - self.penalty * recent
        clients = jax.lax.top_k(losses, self.cohort_size)[1].astype(jnp.int32)
        weights = jnp.full(self.cohort_size, 1 / self.cohort_size)
        info = {"recent": jnp.mean(recent[clients])}
        return ff.Cohort(clients, weights), (recent / 2).at[clients].add(1.0), info


# %% [markdown]
# A method prints as it was constructed:

# %%
network = ff.models.mlp(digits.num_classes, hidden=(64,))
solver = ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=2)


def method(selector):
    return ff.Round(network, selector, solver, ff.aggregators.Mean())


print(method(Rested(10)))

# %% [markdown]
# ## What compiles again
#
# `cohort_size` is an `int`, hence structure: it determines shapes, and another size compiles again.
# `penalty` is a `Number`: a second fit with another penalty compiles nothing. Classes of a notebook
# are traced again, because a function that they call may have changed; this takes the remaining
# time.


# %%
def seconds(penalty):
    start = time.perf_counter()
    ff.fit(method(Rested(10, penalty)), digits, rounds=20, seeds=(0,), eval_every=10)
    return round(time.perf_counter() - start, 1)


{"first": seconds(0.5), "second": seconds(0.25)}

# %% [markdown]
# `fit` takes a list of one `Round` per run. The numbers that differ become a batch axis of one
# compiled function. With a higher penalty, clients of a cohort were selected less recently:

# %%
penalties = (0.0, 0.1, 0.5, 2.0)
batch = ff.fit(
    [method(Rested(10, penalty)) for penalty in penalties], digits, rounds=40, seeds=[0] * 4
).dataset
recent = batch.selection_recent.mean("training_round")
assert (recent.diff("seed") <= 0).all()
{penalty: round(float(mean), 2) for penalty, mean in zip(penalties, recent, strict=True)}

# %% [markdown]
# ## A set function
#
# Suppose that cohorts should represent the gradients of all clients, as in DivFL, and also cover
# every class. Both are set functions, and so is their sum. `Submodular` makes a selector from any
# set function. These are the five lines.

# %%
owners = jnp.repeat(jnp.arange(50), digits.train.sizes)
labels = digits.train.labels[digits.train.order]
has_class = jnp.zeros((50, 10), bool).at[owners, labels].set(True)


def value(context):
    gradients = context.gradients(context.variables).gradient
    representation = facility_location_from_distances(pairwise_distances(gradients))
    return Sum((Scaled(representation, 1 / 50), Coverage(has_class)))


covering = ff.selectors.Submodular(value, cohort_size=10)

# %% [markdown]
# ## Comparison
#
# Both selectors run inside of compiled rounds. Here they are compared with five others over three
# seeds.

# %%
selectors = {
    "random": ff.selectors.Uniform(10),
    "power_of_choice": ff.selectors.PowerOfChoice(10, 20),
    "divfl": ff.selectors.DivFL(10),
    "subtrunc": ff.selectors.SubTrunc(10, lam=0.5),
    "unionfl": ff.selectors.UnionFL(10, mu=1.0, window=3),
    "rested": Rested(10),
    "covering": covering,
}
results = ff.results.combine(
    {
        name: ff.fit(method(selector), digits, rounds=40, seeds=(0, 1, 2), eval_every=5).dataset
        for name, selector in selectors.items()
    }
)
plots.learning_curves(results, "client_dissimilarity")

# %%
selection.tradeoff(results, average_last=3)

# %% [markdown]
# Three seeds are too few to decide which is best: compare the error bars (95% CI) with the
# distances between the points. The classes covered by every cohort can be counted:


# %%
def classes_covered(name):
    cohorts = results.cohort_clients.sel(algorithm=name).values.astype(int)
    return has_class[cohorts].any(axis=-2).sum(axis=-1)


covered = {name: float(classes_covered(name).mean()) for name in selectors}
assert classes_covered("covering").min() == 10
assert covered["random"] < 10
covered

# %% [markdown]
# `Submodular(value, cohort_size=10, candidates=10)` samples ten candidates per step, as in the
# papers; by default all clients are candidates.
# [How to add an algorithm](../docs/how-to-add-an-algorithm.md) covers the other roles, errors, and
# names of methods on the command line.
