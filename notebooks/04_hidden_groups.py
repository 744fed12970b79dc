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
# # Hidden groups of clients
#
# Clients often belong to unknown groups, such as countries or sensor models. A mean over clients
# favors large groups. Equitable-FL estimates the groups from the activations of the clients'
# examples, and gives each group the same weight.
#
# Here, four clients hold the digits 0 to 3 and six clients hold 4 to 9.

# %%
# %matplotlib inline
import numpy as np

import fedjax_fair as ff
from fedjax_fair.numerics.spectral_clustering import spectral_embedding
from fedjax_fair.report import groups, plots

digits = ff.data.load("digits", partition=ff.data.planted_clusters("digits"), seed=0)
planted = np.asarray(digits.groups)
network = ff.models.mlp(digits.num_classes, hidden=(64,))
solver = ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=5, prox=0.1)
planted

# %% [markdown]
# ## Activations
#
# An aggregator receives the trained models. This subclass of the mean also embeds the clients by
# the similarity of their mean activations, and returns the coordinates as diagnostics.


# %%
class MeanWithEmbedding(ff.aggregators.Mean):
    def aggregate(self, state, cohort, results, context):
        update, state, info = super().aggregate(state, cohort, results, context)
        vectors = ff.aggregators.Equitable().activation_vectors(cohort, results, context)
        points = spectral_embedding(vectors @ vectors.T, 3)
        return update, state, info._replace(info={"second": points[:, 1], "third": points[:, 2]})


all_clients = ff.Round(network, ff.selectors.Full(), solver, MeanWithEmbedding())
run = ff.fit(all_clients, digits, rounds=5, seeds=(0,), eval_every=5).dataset
points = np.stack([run.aggregation_second, run.aggregation_third], axis=-1)[0, -1]
groups.embedding(points, clusters=(points[:, 0] > 0).astype(int), groups=planted)

# %% [markdown]
# The first eigenvector is nearly constant, since all activations have the same sign. The second
# separates the groups. Its sign (color) agrees with the ground-truth groups (shape).

# %%
signs = [set((points[planted == group, 0] > 0).tolist()) for group in (0, 1)]
assert signs[0] != signs[1]
assert all(len(sign) == 1 for sign in signs)

# %% [markdown]
# ## Equal weights for groups
#
# Four of the ten clients train in a round. `equitable` clusters these four. `oracle` uses the
# ground-truth groups, an upper bound for clustering.

# %%
aggregators = {
    "mean": ff.aggregators.Mean("num_examples"),
    "equitable": ff.aggregators.Equitable(num_clusters=2),
    "oracle": ff.aggregators.Equitable(num_clusters=2, groups="oracle"),
}
results = ff.results.combine(
    {
        name: ff.fit(
            ff.Round(network, ff.selectors.Uniform(4), solver, aggregator),
            digits,
            rounds=60,
            seeds=(0, 1, 2),
            eval_every=5,
        ).dataset
        for name, aggregator in aggregators.items()
    }
)
groups.group_curves(results)

# %% [markdown]
# Diagnostics contain the normalized mutual information of clusters and groups. It is zero for a
# cohort from one group.

# %%
groups.cluster_agreement(results)

# %%
plots.learning_curves(results, "sigma_acc")

# %% [markdown]
# Accuracy gap between the groups in the second half of training, in percentage points:

# %%
late = results.group_accuracy_gap.sel(round=slice(30, None)).mean(["round", "seed"])
gap = {str(name): round(100 * late.sel(algorithm=name).item(), 1) for name in aggregators}
gap

# %% [markdown]
# Weights cannot help a group without clients in the cohort; a selector of diverse clients might.
# The preset `cross` combines every selector with equitable weights:
#
#     fedjax-fair run cross

# %%
cohorts = planted[results.cohort_clients.sel(algorithm="mean").values.astype(int)]
one_sided = float((cohorts == cohorts[..., :1]).all(axis=-1).mean())
assert 0 < one_sided < 0.2  # Of all draws of 4 from 4 and 6, (1 + 15) / 210 = 7.6 %.
f"{one_sided:.1%} of the cohorts are from one group"
