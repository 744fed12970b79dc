"""Bytes that results report, by the clients that communicated."""

import numpy as np
from conftest import linear_model, make_federation

import fedjax_fair as ff
from fedjax_fair import aggregators, faults, selectors, solvers


def test_unavailable_clients_receive_no_model(tmp_path):
    """Others do, also if they drop out; as well after a run continues from a checkpoint."""
    table = np.array([[1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 0, 0]])
    round = ff.Round(
        linear_model(),
        selectors.Full(),
        solvers.SGD(0.1, 2, steps=1),
        aggregators.Mean(),
        faults=[faults.Trace(table), faults.Dropout(0.5)],
    )
    settings = {"eval_every": 1, "train_loss": False}
    ff.fit(round, make_federation(), rounds=2, checkpoints=tmp_path, **settings)
    dataset = ff.fit(round, make_federation(), rounds=4, checkpoints=tmp_path, **settings).dataset
    size = 4 * 15
    num_responses = dataset["cohort_responded"].values[0].sum(axis=1)
    assert 0 < num_responses.sum() < 12
    assert dataset["bytes_down"].values.tolist() == [[0, 2 * size, 6 * size, 8 * size, 12 * size]]
    np.testing.assert_array_equal(dataset["bytes_up"][0, 1:], num_responses.cumsum() * size)
