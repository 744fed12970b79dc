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
# # Fairness metrics and their limitations
#
# The result of federated training is one accuracy per client. A fairness metric summarizes them as
# one value, and every metric loses other information. Here are small examples on which they
# disagree.

# %%
# %matplotlib inline
import jax.numpy as jnp
import numpy as np

import fedjax_fair as ff
from fedjax_fair.metrics import fairness, performance

cases = {
    "even": jnp.full(20, 0.80),
    "one left out": jnp.array([0.84] * 19 + [0.04]),
    "two camps": jnp.array([0.90] * 10 + [0.70] * 10),
    "evenly bad": jnp.full(20, 0.40),
}
metrics = {
    "mean": performance.mean_over_clients,
    "minimum": performance.minimum,
    "worst 10%": performance.worst_10pct,
    "standard deviation": fairness.standard_deviation,
    "dissimilarity": fairness.client_dissimilarity,
    "Gini": fairness.gini,
    "Jain": fairness.jain_index,
    "entropy": fairness.entropy,
}
table = {
    name: {metric: float(function(values)) for metric, function in metrics.items()}
    for name, values in cases.items()
}
for metric in metrics:
    print(f"{metric:20s}", *(f"{name}: {table[name][metric]:.3f}" for name in table), sep="  ")

# %% [markdown]
# **The mean** does not distinguish the first three: it is 0.80 in each.

# %%
for name in ("even", "one left out", "two camps"):
    assert np.isclose(table[name]["mean"], 0.80)

# %% [markdown]
# **The standard deviation** ranks *one left out* (0.17) above *two camps* (0.10), because squares
# emphasize a single outlier. **The dissimilarity**, the mean difference over all pairs of clients,
# ranks them in the opposite order: two random clients differ more often if there are two camps.
# Which case is more unfair depends on the application.

# %%
left_out, camps = table["one left out"], table["two camps"]
assert left_out["standard deviation"] > camps["standard deviation"]
assert left_out["dissimilarity"] < camps["dissimilarity"]

# %% [markdown]
# **Gini, Jain and entropy** rate *evenly bad* as perfectly fair, because they measure evenness
# only. Report them together with an accuracy.

# %%
for metric in ("Gini", "Jain", "entropy"):
    assert np.isclose(table["evenly bad"][metric], table["even"][metric], atol=1e-6)

# %% [markdown]
# ## The noise of small test sets
#
# A client's accuracy is measured on a finite number of examples. Consider a hundred clients with
# exactly the same accuracy of 0.85, each tested on 30 examples.

# %%
rng = np.random.default_rng(0)
sizes = jnp.full(100, 30)
measured = jnp.asarray(rng.binomial(30, 0.85, size=100) / 30, jnp.float32)
dissimilarity = float(fairness.client_dissimilarity(measured))
noise = float(fairness.dissimilarity_noise(measured, sizes))
print(f"dissimilarity {dissimilarity:.3f}, of which noise would give {noise:.3f}")

# %% [markdown]
# Noise alone gives eight points of dissimilarity. So all results contain
# `client_dissimilarity_noise` next to `client_dissimilarity`. A difference between methods that is
# small compared with it needs many seeds to be significant.

# %%
assert abs(dissimilarity - noise) < 0.25 * noise

# %% [markdown]
# ## A federated dataset
#
# The digits with three classes per client: FedAvg and training on the pooled digits.

# %%
digits = ff.data.load("digits", partition=ff.data.classes_per_client(50, 3), seed=0)
model = ff.models.mlp(digits.num_classes, hidden=(64,))
solver = ff.solvers.SGD(learning_rate=0.1, batch_size=10, steps=20)
methods = {
    "fedavg": ff.Round(model, ff.selectors.Uniform(10), solver, ff.aggregators.Mean()),
    "centralized": ff.Centralized(model, solver),
}
runs = ff.results.combine(
    {
        name: ff.fit(method, digits, rounds=60, seeds=(0, 1, 2), eval_every=10).dataset
        for name, method in methods.items()
    }
)
ff.report.plots.learning_curves(runs, "client_dissimilarity")

# %%
final = runs.isel(round=-1).mean("seed")
columns = ["accuracy_mean_clients", "accuracy_worst_10pct", "client_dissimilarity"]
final[[*columns, "client_dissimilarity_noise"]].to_dataframe().round(3)

# %% [markdown]
# Every metric has its population and its weighting as attributes.

# %%
for name in ("accuracy_mean_clients", "accuracy_mean_examples", "client_disagreement"):
    attributes = runs[name].attrs
    print(f"{name}: {attributes['population']}, weighted by {attributes['weighting']}")
assert runs.accuracy_mean_examples.attrs["weighting"] == "examples"
