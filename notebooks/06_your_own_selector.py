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
# # A selector of your own in five lines
#
# Say we want cohorts that represent the gradients of all clients, as DivFL does, but that also
# cover every class: a model forgets the digits that no client of the cohort owns. Both are set
# functions, so their sum is one too, and `submodular` makes a selector of any set function.

# %%
# %matplotlib inline
import jax.numpy as jnp

import fedjax_fair as ff
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.report import plots, selection
from fedjax_fair.submodular import Coverage, Scaled, Sum, facility_location_from_distances

digits = ff.data.load("digits", partition=ff.data.classes_per_client(50, 3), seed=0)
owners = jnp.repeat(jnp.arange(50), digits.train.sizes)
labels = digits.train.labels[digits.train.order]
owned = jnp.zeros((50, 10), bool).at[owners, labels].set(True)


# %% [markdown]
# These are the five lines. The context offers losses, accuracies and gradients of all clients;
# what is not called is not computed.


# %%
def worth(context):
    gradients = context.gradients(context.variables).gradient
    represented = facility_location_from_distances(pairwise_distances(gradients))
    return Sum((Scaled(represented, 1 / 50), Coverage(owned)))


covering = ff.selectors.submodular(worth, cohort_size=10)

# %% [markdown]
# It runs inside the compiled rounds like any other. Here it is beside five others, two seeds each.

# %%
network = ff.models.mlp(digits.num_classes, hidden=(64,))
solver = ff.solvers.sgd(learning_rate=0.1, batch_size=10, epochs=2)
contenders = {
    "random": ff.selectors.uniform(10),
    "power_of_choice": ff.selectors.power_of_choice(10, 20),
    "divfl": ff.selectors.divfl(10),
    "subtrunc": ff.selectors.subtrunc(10, lam=0.5),
    "unionfl": ff.selectors.unionfl(10, mu=1.0, window=3),
    "covering": covering,
}
results = ff.results.combine(
    {
        name: ff.fit(
            ff.make_round(network, selector, solver, ff.aggregators.mean()),
            digits,
            rounds=40,
            seeds=(0, 1, 2),
            eval_every=5,
        )
        for name, selector in contenders.items()
    }
)
plots.learning_curves(results, "client_dissimilarity")

# %%
selection.tradeoff(results, last=3)

# %% [markdown]
# Three seeds do not decide which is best: compare the bars, which are 95 % intervals, with the
# distances between the points. That every cohort covered all classes, however, can be counted:


# %%
def classes_covered(name):
    cohorts = results.cohort_clients.sel(algorithm=name).values.astype(int)
    return owned[cohorts].any(axis=-2).sum(axis=-1)


covered = {name: float(classes_covered(name).mean()) for name in contenders}
assert classes_covered("covering").min() == 10
assert covered["random"] < 10
covered

# %% [markdown]
# `candidates=10` would draw ten candidates at every step, as the papers do; without it all clients
# are considered. [How to add an algorithm](../docs/how-to-add-an-algorithm.md) explains what else a
# selector may keep from round to round, and how to give it a name on the command line.
