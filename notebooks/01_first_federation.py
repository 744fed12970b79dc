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
# # A first federation
#
# Fifty clients hold 1,797 handwritten digits between them, three kinds of digit each. In every
# round ten of them train the model they are given on their own digits, and the server averages what
# comes back. No digit leaves its client.
#
# Ten lines describe and run all of it.

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
run = ff.fit(fedavg, digits, rounds=60, seeds=(0, 1, 2), eval_every=5)

# %% [markdown]
# A method is a value: it prints as it was made.

# %%
print(fedavg)

# %% [markdown]
# `run` is an `xarray.Dataset`: every client's accuracy at every evaluation for every seed, and the
# summaries of it. The three seeds were three runs in one compiled program.

# %%
run

# %%
accuracy = run.accuracy_mean_clients.isel(round=-1)
assert float(accuracy.min()) > 0.85, "federated averaging learns the digits"
accuracy

# %% [markdown]
# ## Ownership of classes
#
# Each row is a class, each column a client; a dot is as large as the number of examples.

# %%
ff.report.plots.partition(run)

# %% [markdown]
# Three classes a client, as the partition says:

# %%
classes_held = (run.train_examples > 0).sum("class")
assert (classes_held == 3).all()

# %% [markdown]
# ## How it learned
#
# The line is the mean over seeds, the band its 95 % interval; the axis is stretched towards 100 %.

# %%
ff.report.plots.learning_curves(run, "accuracy_mean_clients")

# %% [markdown]
# ## Are all clients served alike?
#
# The mean hides it; the distribution over clients does not. The dot is where the worst tenth ends.

# %%
ff.report.plots.accuracy_distribution(run)

# %%
worst = run.accuracy_worst_10pct.isel(round=-1)
assert (worst < accuracy).all(), "some clients are served worse than the average"
worst

# %% [markdown]
# ## The same experiment again
#
# Everything random follows from the seed: run it again and the same clients are selected, the same
# minibatches drawn. Another seed changes both.

# %%
again = ff.fit(fedavg, digits, rounds=10, seeds=(2,), eval_every=10)
first_ten = run.cohort_clients.sel(seed=2).isel(training_round=slice(10))
assert (again.cohort_clients.isel(seed=0).values == first_ten.values).all()
assert (run.cohort_clients.sel(seed=0) != run.cohort_clients.sel(seed=1)).any()
