"""Training on MNIST from files to results; skipped without the files."""

import fedjax_fair as ff


def test_fedavg_learns_mnist(tfds_folder):
    data = ff.data.load("mnist", ff.data.iid(500), data_dir=tfds_folder)
    fedavg = ff.Round(
        model=ff.models.lenet(data.num_classes),
        selector=ff.selectors.Uniform(cohort_size=10),
        solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=1),
        aggregator=ff.aggregators.Mean(weights="num_examples"),
    )
    run = ff.fit(fedavg, data, rounds=10, eval_every=10, train_loss=False).dataset
    assert run.accuracy_mean_examples.isel(seed=0, round=-1) >= 0.8
