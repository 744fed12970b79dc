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
# # Group fairness
#
# The other notebooks ask whether a model serves all *clients* equally well. This one asks whether
# it treats *sensitive groups* equally, wherever their examples are. Adult is a table of the US
# census of 1994: who earns more than 50,000 dollars a year? Clients are occupations, and the
# sensitive features are sex and race.
#
# The environment variable `TFDS_DATA_DIR` names the folder that has the table.
# [Data sources](../docs/data.md#data-sources) lists its files, which are not downloaded.

# %%
# %matplotlib inline
from dataclasses import replace

import matplotlib.pyplot as plt

import fedjax_fair as ff
from fedjax_fair import results, sweep
from fedjax_fair.app.settings import presets
from fedjax_fair.app.settings.config import AggregatorConfig, SolverConfig

base = presets.PRESETS["adult"].config
base = replace(base, training=replace(base.training, rounds=30, eval_every=30))
# Settings that a method does not use, such as `sensitive_feature`, raise an error.
plain = replace(base, solver=SolverConfig(), aggregator=AggregatorConfig())
of_solver = replace(base, aggregator=AggregatorConfig())
of_aggregator = replace(base, solver=SolverConfig())
print(ff.data.load("adult"))

# %% [markdown]
# ## FedAvg is accurate and unfair
#
# A model is fair in the sense of *demographic parity* if it predicts high incomes equally often for
# women and men, and in the sense of *equal opportunity* if it does so among people who have them.

# %%
fedavg = sweep(replace(plain, methods=("fedavg",)), seeds=range(5), learning_rate=[0.1])
last = fedavg.isel(algorithm=0, learning_rate=0, round=-1)
by_sex = results.sensitive_groups.gaps(last, ["sex"])
for name in ("demographic_parity_difference", "equal_opportunity_difference"):
    print(f"{name}: {100 * float(by_sex[name].mean()):.1f} points")
accuracy = 100 * float(last["accuracy_mean_examples"].mean())
print(f"accuracy: {accuracy:.1f} %")
assert accuracy > 80
assert float(by_sex["demographic_parity_difference"].min()) > 0.05

# %% [markdown]
# ## What each method buys
#
# Every method except reweighing has a parameter that trades accuracy for fairness; reweighing is
# one dot. A dot is the mean over five seeds of one value; the cross is FedAvg.

# %%
grids = {
    "fairfed": (of_aggregator, {"beta": [0.1, 1.0, 10.0]}),
    "fedfb": (of_aggregator, {"aggregator.alpha": [0.01, 0.03, 0.1, 0.3]}),
    "group_penalty": (of_solver, {"solver.strength": [0.003, 0.01, 0.03, 0.1]}),
    "reweighing": (of_aggregator, {"learning_rate": [0.1]}),
}
swept = {
    method: sweep(replace(config, methods=(method,)), seeds=range(5), **grid)
    for method, (config, grid) in grids.items()
}


def means(dataset, name):
    """Accuracy and a difference between women and men, in %, of every setting."""
    final = dataset.isel(algorithm=0, round=-1)
    difference = results.sensitive_groups.gaps(final, ["sex"])[name].mean("seed")
    return [
        100 * values.values.ravel()
        for values in (final["accuracy_mean_examples"].mean("seed"), difference)
    ]


names = {
    "demographic_parity_difference": "demographic parity difference, pooled",
    "equal_opportunity_difference": "equal opportunity difference, pooled",
}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for axis, (name, label) in zip(axes, names.items(), strict=True):
    for method, dataset in swept.items():
        accuracies, differences = means(dataset, name)
        axis.plot(differences, accuracies, "o-", label=method)
    accuracies, differences = means(fedavg, name)
    axis.plot(differences, accuracies, "kx", markersize=9, label="fedavg")
    axis.set_xlabel(f"{label} (points)")
axes[0].set_ylabel("accuracy (%)")
axes[0].legend()
# %% [markdown]
# The two definitions disagree: a method that equalizes the rates of predictions changes those among
# people with high incomes, because these are not equally frequent among women and men.
#
# ## Pooled and per client
#
# Within an occupation, women and men earn more equally than in the whole population, because women
# and men have different occupations. The pooled difference has both parts; the mean of the clients'
# differences has only the first, and adds chance, since the groups of a client are small.

# %%
for method, dataset in {"fedavg": fedavg, "reweighing": swept["reweighing"]}.items():
    final = results.sensitive_groups.gaps(dataset.isel(algorithm=0, round=-1), ["sex"]).mean("seed")
    pooled = 100 * float(final["demographic_parity_difference"].squeeze())
    clients = 100 * final["client_demographic_parity_difference"].squeeze()
    print(f"{method}: pooled {pooled:.1f} points, mean of clients {float(clients.mean()):.1f}")
    for client, difference in clients.to_series().sort_values().items():
        print(f"    {client:<18}{difference:5.1f}")
