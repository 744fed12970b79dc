# pyright: strict
"""What a user writes passes a strict type checker; ``make lint`` checks it."""

import fedjax_fair as ff

data = ff.data.load("digits", ff.data.classes_per_client(num_clients=20, classes=3))
fedavg = ff.Round(
    model=ff.models.logistic(data.num_classes),
    selector=ff.selectors.Uniform(cohort_size=5),
    solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=2),
    aggregator=ff.aggregators.Mean(weights="num_examples"),
)
run = ff.fit(fedavg, data, rounds=20, seeds=(0, 1)).dataset
accuracy = run["test_accuracy"].isel(round=-1)
print(float(accuracy.mean()), float(accuracy.std("client").max()))
