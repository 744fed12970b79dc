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
# # A first federated experiment
#
# Fifty clients hold 1,797 handwritten digits, three classes per client. In every round ten clients
# train the global model on their digits, and the server averages their updates. Digits never leave
# their client.
#
# Ten lines define and run the experiment.

# %%
# %matplotlib inline
import fedjax_fair as ff

digits = ff.data.load("digits", partition=ff.data.classes_per_client(50, 3), seed=0)
fedavg = ff.Round(
    model=ff.models.mlp(digits.num_classes, hidden=(64,)),
    selector=ff.selectors.Uniform(cohort_size=10),
    solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=5),
    aggregator=ff.aggregators.Mean(),
)
run = ff.fit(fedavg, digits, rounds=60, seeds=(0, 1, 2), eval_every=5).dataset

# %% [markdown]
# A method prints as it was constructed.

# %%
print(fedavg)

# %% [markdown]
# `run` is an `xarray.Dataset` with every client's accuracy at every evaluation for every seed, and
# summaries. The three seeds were three runs of one compiled function.

# %%
run

# %%
accuracy = run.accuracy_mean_clients.isel(round=-1)
assert float(accuracy.min()) > 0.85, "federated averaging learns the digits"
accuracy

# %% [markdown]
# ## The partition
#
# Rows are classes and columns are clients. The size of a dot is the number of examples.

# %%
ff.report.plots.partition(run)

# %% [markdown]
# Every client has three classes:

# %%
classes_held = (run.train_examples > 0).sum("class")
assert (classes_held == 3).all()

# %% [markdown]
# ## Learning curve
#
# The line is the mean over seeds, the band its 95% confidence interval. The axis is stretched
# towards 100%.

# %%
ff.report.plots.learning_curves(run, "accuracy_mean_clients")

# %% [markdown]
# ## Distribution over clients
#
# The mean hides differences between clients. The dot marks the end of the worst 10%.

# %%
ff.report.plots.distribution(run)

# %%
worst = run.accuracy_worst_10pct.isel(round=-1)
assert (worst < accuracy).all(), "some clients are served worse than the average"
worst

# %% [markdown]
# ## The same experiment again
#
# All randomness follows from the seed. Another run with the same seed selects the same clients and
# draws the same minibatches. Another seed changes both.

# %%
again = ff.fit(fedavg, digits, rounds=10, seeds=(2,), eval_every=10).dataset
first_ten = run.cohort_clients.sel(seed=2).isel(training_round=slice(10))
assert (again.cohort_clients.isel(seed=0).values == first_ten.values).all()
assert (run.cohort_clients.sel(seed=0) != run.cohort_clients.sel(seed=1)).any()
