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
# # Submodular client selection in pictures
#
# A server cannot train all clients in every round. Uniform selection ignores information about
# clients. The selectors here choose a cohort whose gradients represent those of all clients. The
# idea is shown first on points in a plane, then on the gradients of fifty clients.

# %%
# %matplotlib inline
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fedjax_fair as ff
from fedjax_fair import submodular
from fedjax_fair.evaluation.client_gradients import client_gradients
from fedjax_fair.numerics.distances import pairwise_distances
from fedjax_fair.report import plots, selection
from fedjax_fair.submodular import estimators

# %% [markdown]
# ## Representatives
#
# *Facility location* measures for every point its nearest selected point. Greedy maximization first
# selects a point in the middle of the largest cluster, then in smaller ones. Gains decrease,
# because the function is submodular. Greedy reaches at least 63% of the optimum, in practice nearly
# all of it.

# %%
rng = np.random.default_rng(0)
centers = rng.normal(size=(6, 2)) * 3
sizes = (40, 30, 20, 15, 10, 5)
points = np.repeat(centers, sizes, axis=0) + rng.normal(size=(sum(sizes), 2)) / 2
model = estimators.FacilityLocation(6).fit(points)

assert (np.diff(model.gains_) <= 0).all(), "gains never grow"
plots.representatives(points, model.ranking_, model.gains_)

# %% [markdown]
# ## Clients as points
#
# Clients are compared by their gradients at the current model. Here are fifty clients with three
# classes each, after five rounds of federated averaging.

# %%
digits = ff.data.load("digits", partition=ff.data.classes_per_client(50, 3), seed=0)
network = ff.models.mlp(digits.num_classes, hidden=(64,))
solver = ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=2)


def method(selector):
    return ff.Round(network, selector, solver, ff.aggregators.Mean())


start = method(ff.selectors.Uniform(10))
state, _ = ff.run(start, start.init(jax.random.key(0), digits), digits, 5)
clients = client_gradients(network, state.variables, digits.train)
distances = pairwise_distances(clients.gradient)
owners = np.repeat(np.arange(50), digits.train.sizes)
class_counts = np.zeros((50, 10), int)
np.add.at(class_counts, (owners, digits.train.labels[digits.train.order]), 1)
most_frequent = class_counts.argmax(axis=1)

# %% [markdown]
# Dark squares are clients with similar gradients. Clients are sorted by their most frequent digit.
# DivFL maximizes the representation only. SubTrunc adds a bonus for high losses, which is truncated
# at a bound; with a large weight it selects the clients with the highest losses. Triangles mark the
# selected clients.

# %%
representation = submodular.Scaled(submodular.facility_location_from_distances(distances), 1 / 50)
print(representation)


def subtrunc(lam, b=20.0):
    bonus = submodular.truncated_modular(jnp.log1p(clients.loss), bound=b, scale=lam)
    return submodular.greedy(submodular.Sum((representation, bonus)), 10)


selection.selected_clients(distances, subtrunc(lam=0).items, group=most_frequent)

# %%
selection.selected_clients(distances, subtrunc(lam=30).items, group=most_frequent)

# %% [markdown]
# With a larger weight of the bonus, the mean loss of the cohort increases and its representation
# decreases. (The bound is not reached here. If a few clients reach it, the bonus has little
# effect.) Set functions are pytrees whose scalars and arrays may be traced, so one compiled call
# evaluates all weights.

# %%
weights = jnp.logspace(-2, 2, 60)
cohorts = jax.jit(jax.vmap(subtrunc))(weights).items
losses = clients.loss[cohorts].mean(axis=1)
masks = jax.vmap(lambda items: jnp.zeros(50, bool).at[items].set(True))(cohorts)
values = jax.vmap(representation.value)(masks)

figure, (left, right) = plt.subplots(2, 1, figsize=(7, 4.5), sharex=True, layout="constrained")
left.plot(weights, losses, color="#0072B2")
left.set(ylabel="mean loss of the cohort")
right.plot(weights, values, color="#009E73")
right.set(ylabel="representation", xlabel="weight of the bonus, λ", xscale="log")
plt.show()
assert losses[-1] > losses[0]
assert values[-1] < values[0]

# %% [markdown]
# ## Participation over rounds
#
# A representative client remains representative in the next round, so DivFL selects some clients
# repeatedly. UnionFL prevents this by a penalty for recently selected clients.

# %%
selectors = {
    "random": ff.selectors.Uniform(10),
    "power_of_choice": ff.selectors.PowerOfChoice(10, 20),
    "divfl": ff.selectors.DivFL(10),
    "subtrunc": ff.selectors.SubTrunc(10, lam=0.5),
    "unionfl": ff.selectors.UnionFL(10, mu=1.0, window=3),
}
results = ff.results.combine(
    {
        name: ff.fit(method(selector), digits, rounds=40, seeds=(0, 1), eval_every=10)
        for name, selector in selectors.items()
    }
)
selection.participation(results)

# %%
selection.participation_lorenz(results)

# %% [markdown]
# Diagnostics of a selector are part of the results. Here are the distance between the mean
# gradients of the cohort and of all clients, which the convergence theorem of SubTrunc bounds, and
# the fraction of greedy steps in which the bonus was not truncated.

# %%
bias = results.selection_approximation_error.mean(("seed", "training_round")).to_series().dropna()
unsaturated = results.selection_unsaturated.sel(algorithm="subtrunc").mean("seed")
assert 0 <= float(unsaturated.min()) <= float(unsaturated.max()) <= 1
bias.round(3)
