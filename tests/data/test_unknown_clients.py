"""Test examples of clients and labels that training examples lack: one rule for all readers."""

import json

import numpy as np
import pandas as pd
import polars
import pytest

import fedjax_fair as ff
from fedjax_fair import data

OWNERS, TEST_OWNERS = ["a", "b", "c"] * 10, ["q", "a", "p"] * 5
LABELS, TEST_LABELS = np.arange(30) % 2, np.arange(15) // 3 % 2


def arrays(test_owners=TEST_OWNERS, test_labels=TEST_LABELS, labels=LABELS, **settings):
    return data.from_arrays(
        np.arange(30.0)[:, None],
        labels,
        clients=OWNERS,
        test_features=np.arange(15.0)[:, None],
        test_labels=test_labels,
        test_clients=test_owners,
        **settings,
    )


def npz(folder, test_owners=TEST_OWNERS, test_labels=TEST_LABELS, **settings):
    np.savez(
        folder / "a.npz",
        features=np.arange(30.0)[:, None],
        labels=LABELS,
        client=OWNERS,
        test_features=np.arange(15.0)[:, None],
        test_labels=test_labels,
        test_client=test_owners,
    )
    return data.from_npz(folder / "a.npz", **settings)


def frames(test_owners=TEST_OWNERS, test_labels=TEST_LABELS):
    train = pd.DataFrame({"x": np.arange(30.0), "label": LABELS, "client": OWNERS})
    return train, pd.DataFrame({"x": np.arange(15.0), "label": test_labels, "client": test_owners})


def table(folder, *changed, **settings):
    train, test = frames(*changed)
    return data.from_table(train, label="label", client="client", test=test, **settings)


def polars_table(folder, *changed, **settings):
    train, test = map(polars.from_pandas, frames(*changed))
    return data.from_table(train, label="label", client="client", test=test, **settings)


def csv(folder, *changed, **settings):
    for name, frame in zip(("train", "test"), frames(*changed), strict=True):
        frame.to_csv(folder / f"{name}.csv", index=False)
    paths = folder / "train.csv", folder / "test.csv"
    return data.from_table(paths[0], label="label", client="client", test=paths[1], **settings)


def leaf(folder, test_owners=TEST_OWNERS, test_labels=None, **settings):
    for name, owners in (("train", OWNERS), ("test", test_owners)):
        users = list(dict.fromkeys(owners))
        counts = [owners.count(user) for user in users]
        samples = {
            user: {"x": ["ab"] * count, "y": ["a"] * count}
            for user, count in zip(users, counts, strict=True)
        }
        content = {"users": users, "num_samples": counts, "user_data": samples}
        (folder / f"{name}.json").write_text(json.dumps(content))
    return data.from_leaf(folder / "train.json", folder / "test.json", **settings)


READERS = {
    "arrays": lambda folder, *changed, **settings: arrays(*changed, **settings),
    "npz": npz,
    "pandas": table,
    "polars": polars_table,
    "csv": csv,
    "leaf": leaf,
}


@pytest.mark.parametrize("reader", READERS)
def test_unknown_clients_are_an_error_or_unseen_clients(reader, tmp_path):
    read = READERS[reader]
    message = r"10 test examples are of 2 clients that lack .* \['p', 'q'\]; .*unknown_clients='un"
    with pytest.raises(ValueError, match=message):
        read(tmp_path)
    with pytest.raises(ValueError, match="unknown_clients='drop'"):
        read(tmp_path, unknown_clients="drop")
    made = read(tmp_path, unknown_clients="unseen")
    assert made.client_names == ("a", "b", "c")
    assert made.test.sizes.tolist() == [5, 0, 0]
    unseen = made.unseen
    assert unseen.client_names == ("p", "q")
    assert (unseen.train.sizes.tolist(), unseen.test.sizes.tolist()) == ([3, 3], [2, 2])
    assert "unseen clients     2; 10 examples" in str(made)
    data.validate(unseen)
    if reader != "leaf":
        for client, name in enumerate(unseen.client_names):
            rows = [
                part.order[part.offsets[client] :][: part.sizes[client]]
                for part in (unseen.train, unseen.test)
            ]
            expected = np.flatnonzero(np.array(TEST_OWNERS) == name)
            assert sorted(np.concatenate(rows)) == expected.tolist()
            np.testing.assert_array_equal(unseen.test.labels[rows[1]], TEST_LABELS[rows[1]])
    known = read(tmp_path, ["a", "b", "c"] * 5, unknown_clients="unseen")
    assert known.unseen is None


def test_integers_and_rows_of_one_are_unseen_clients_too():
    made = data.from_arrays(
        np.eye(4),
        [0, 1, 0, 1],
        clients=[1, 1, 2, 2],
        test_features=np.eye(4),
        test_labels=[0, 1, 0, 1],
        test_clients=[2, 7, 7, 9],
        unknown_clients="unseen",
    )
    assert made.unseen.client_names is None
    assert (made.unseen.train.sizes.tolist(), made.unseen.test.sizes.tolist()) == ([1, 1], [1, 0])


def test_unseen_clients_are_evaluated():
    made = table(None, unknown_clients="unseen")
    method = ff.Round(
        ff.models.logistic(2), ff.selectors.Full(), ff.solvers.SGD(0.1, 5, epochs=1),
        ff.aggregators.Mean(),
    )  # fmt: skip
    fitted = ff.fit(method, made, rounds=2)
    metrics = ff.analysis.evaluate_unseen(
        fitted.model, fitted.variables, [0.1], made.unseen, seeds=(0,), batch_size=5
    )
    assert metrics.client.values.tolist() == ["p", "q"]
    assert np.isfinite(metrics.unseen_accuracy).all()


@pytest.mark.parametrize("reader", ["arrays", "npz", "pandas", "polars", "csv"])
def test_unknown_labels_are_an_error(reader, tmp_path):
    owners = ["a", "b", "c"] * 5
    for labels, message in (
        (np.arange(15) % 4, r"7 test labels are of 2 classes .* \['?2'?, '?3'?\]"),
        (np.arange(15) % 2 * 5, r"7 test labels are of 1 classes .* \['?5'?\]"),
    ):
        with pytest.raises(ValueError, match=message):
            READERS[reader](tmp_path, owners, labels)
        with pytest.raises(ValueError, match=message):
            READERS[reader](tmp_path, owners, labels, unknown_clients="unseen")
    assert READERS[reader](tmp_path, owners, np.zeros(15, int)).num_classes == 2


def test_declared_classes_may_lack_training_examples():
    owners, labels = ["a", "b", "c"] * 5, np.arange(15) % 3
    assert arrays(owners, labels, num_classes=3).num_classes == 3
    assert arrays(owners, labels == 1, LABELS > 1).num_classes == 2
    with pytest.raises(ValueError, match=r"1 classes .* \[1\]; .* or num_classes= counts"):
        arrays(owners, np.ones(15, int), LABELS * 2)
    train, test = frames(owners, labels)
    levels = pd.CategoricalDtype([0, 1, 2], ordered=True)
    made = data.from_table(
        train.astype({"label": levels}), label="label", client="client", test=test
    )
    assert made.num_classes == 3


def test_words_for_numbers_are_other_labels():
    train, test = frames(["a", "b", "c"] * 5)
    train["label"] = np.array(["lo", "hi"])[train.label]
    with pytest.raises(ValueError, match=r"15 test labels are of 2 classes .* \['0', '1'\]"):
        data.from_table(train, label="label", client="client", test=test)
