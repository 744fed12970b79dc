"""LEAF's JSON of FEMNIST, the synthetic data set and Sent140."""

import json

import numpy as np
import pytest

from fedjax_fair import data
from fedjax_fair.app.cli import main

RNG = np.random.default_rng(0)
TWEETS = ["I love it!", "so sad...", "so so good", "I hate mondays , really"]


def femnist(user, count):
    return RNG.random((count, 16)).round(4).tolist(), [i % 3 for i in range(count)]


def synthetic(user, count):
    """As FedProx writes it, with classes that are floats."""
    return RNG.normal(size=(count, 5)).tolist(), [float(i % 3) for i in range(count)]


def sent140(user, count):
    rows = [[str(i), "Mon Apr 06", "NO_QUERY", user, TWEETS[i % len(TWEETS)]] for i in range(count)]
    return rows, [i % 2 for i in range(count)]


def tokens(user, count):
    return RNG.integers(0, 90, (count, 4)).tolist(), [i % 2 for i in range(count)]


MAKERS = [femnist, synthetic, sent140, tokens]


def content(samples):
    return {
        "users": list(samples),
        "num_samples": [len(y) for _, y in samples.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in samples.items()},
    }


def write(path, samples):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content(samples)))
    return path


def users_of(make, sizes=(("f2", 6), ("f0", 9), ("f10", 7))):
    return {user: make(user, count) for user, count in sizes}


def features_of(x, make):
    """The right features, without the reader."""
    if make is not sent140:
        return np.array(x, np.float32)
    words = [" , ! ? . ;".join(row[-1:]).lower() for row in x]
    return np.array([[text.count(word) for word in ("so", "good")] for text in words], np.float32)


@pytest.mark.parametrize("make", MAKERS)
def test_samples_that_are_features_become_arrays(make, tmp_path):
    users = users_of(make)
    for number, (user, samples) in enumerate(users.items()):
        write(tmp_path / f"all_data_{number}.json", {user: samples})
    words = {"vocabulary": ["so", "good"]} if make is sent140 else {}
    made = data.from_leaf(tmp_path, test_fraction=0.0, **words)
    assert made.client_names == ("f0", "f10", "f2")
    expected = np.int32 if make is tokens else np.float32
    assert made.train.features.dtype == expected
    for client, name in enumerate(made.client_names):
        rows = made.train.order[made.train.offsets[client] :][: made.train.sizes[client]]
        x, y = features_of(users[name][0], make), np.array(users[name][1])
        found = [*zip(made.train.features[rows].tolist(), made.train.labels[rows], strict=True)]
        assert sorted(found) == sorted(zip(x.tolist(), y, strict=True))
    assert made.num_classes == (2 if make in (sent140, tokens) else 3)


@pytest.mark.parametrize("make", MAKERS)
def test_folders_of_train_and_test_samples(make, tmp_path):
    write(tmp_path / "train" / "a.json", users_of(make))
    write(tmp_path / "test" / "a.json", users_of(make, (("f0", 4), ("f2", 3), ("f10", 0))))
    made = data.from_leaf(tmp_path)
    assert made.test.sizes.tolist() == [4, 0, 3]
    explicit = data.from_leaf(tmp_path / "train", tmp_path / "test")
    np.testing.assert_array_equal(made.train.features, explicit.train.features)
    write(tmp_path / "test" / "b.json", users_of(make, (("f7", 2),)))
    with pytest.raises(ValueError, match=r"2 test examples are of 1 clients .* \['f7'\]"):
        data.from_leaf(tmp_path)
    assert data.from_leaf(tmp_path, unknown_clients="unseen").unseen.client_names == ("f7",)


@pytest.mark.parametrize("make", MAKERS)
def test_users_without_samples_are_named(make, tmp_path):
    path = write(tmp_path / "a.json", users_of(make, (("f0", 6), ("empty", 0), ("none", 0))))
    with pytest.warns(
        UserWarning, match=r"a.json: 2 of 3 users have no samples, first \['empty', 'none'\]"
    ):
        made = data.from_leaf(path)
    assert made.client_names == ("f0",)
    path = write(tmp_path / "b.json", users_of(make, (("empty", 0),)))
    with pytest.raises(ValueError, match=r"1 of 1 users have no samples, first \['empty'\]"):
        data.from_leaf(path)


def test_words_are_those_of_training_tweets(tmp_path):
    write(tmp_path / "train" / "a.json", {"u": sent140("u", 4)})
    write(tmp_path / "test" / "a.json", {"u": ([["1", "sad unheard-of sad"]], [1])})
    made = data.from_leaf(tmp_path)
    # Most frequent first: "." and "so" occur three times, "i" twice, others once.
    words = [".", "so", "i", "!", ",", "good", "hate", "it", "love", "mondays", "really", "sad"]
    np.testing.assert_array_equal(made.test.features, data.count_words(["sad sad"], words))
    np.testing.assert_array_equal(made.train.features.sum(0)[:3], [3, 3, 2])


MISTAKES = {
    "two lengths": ({"u": ([[1.0, 2.0], [1.0]], [0, 1])}, "user 'u' has x of other types, or of"),
    "two lengths of users": (
        {"u": ([[1.0, 2.0]], [0]), "v": ([[1.0]], [1])},
        r"x have the shapes \(2,\) \('u'\), \(1,\) \('v'\)",
    ),
    "numbers as text": ({"u": ([["1.5", 2.0]], [0])}, "user 'u' has x of other types"),
    "missing numbers": ({"u": ([[1.0, None]], [0])}, "user 'u' has x of other types"),
    "no numbers": ({"u": ([[], []], [0, 1])}, "user 'u' has x of other types"),
    "fractions as classes": ({"u": ([[1.0]], [0.5])}, r"user 'u' has y such as 0.5; expected int"),
    "texts as classes": ({"u": ([[1.0]], ["0"])}, "user 'u' has y such as '0'"),
    "files of images": ({"u": (["a.jpg"], [1])}, "user 'u' has strings x, but y that are no"),
    "two kinds": (
        {"u": ([[1.0]], [0]), "v": (["ab"], ["c"])},
        "x of users are lists of numbers and strings; expected one",
    ),
    "infinite": ({"u": ([[float("inf")]] * 5, [0, 1] * 2 + [0])}, "not finite"),
    "classes from 1": ({"u": ([[1.0]] * 5, [1, 2] * 2 + [1])}, "expected classes from 0"),
}


@pytest.mark.parametrize(("samples", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_name_file_and_user(samples, message, tmp_path):
    path = write(tmp_path / "all_data.json", samples)
    with pytest.raises(ValueError, match=message) as error:
        data.from_leaf(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert "Download" not in str(error.value)


def test_arguments_fit_the_samples(tmp_path):
    numbers = write(tmp_path / "a.json", users_of(femnist))
    texts = write(tmp_path / "b.json", {"u": (["ab", "bc"], ["c", "d"])})
    tweets = write(tmp_path / "c.json", users_of(sent140))
    assert data.from_leaf(numbers, num_classes=62).num_classes == 62
    cases = [
        ((numbers, None, "abc"), {}, "vocabulary='abc': expected None, because .* has numbers"),
        ((texts,), {"num_classes": 3}, "num_classes=3: expected None with texts"),
        ((tweets, None, "so good"), {}, "vocabulary='so good': expected a list of different words"),
        ((tweets, None, ["so", "so"]), {}, r"vocabulary=\['so', 'so'\]: expected a list"),
    ]
    for arguments, settings, message in cases:
        with pytest.raises(ValueError, match=message):
            data.from_leaf(*arguments, **settings)


@pytest.mark.parametrize("make", [femnist, synthetic, sent140])
def test_leaf_on_the_command_line(make, tmp_path, capsys):
    write(tmp_path / "data" / "train" / "a.json", users_of(make))
    write(tmp_path / "data" / "test" / "a.json", users_of(make))
    for path in (tmp_path / "data", tmp_path / "data" / "train" / "a.json"):
        assert main(["data", "show", f"--data.file={path}"]) == 0
        assert "clients            3: f0, f10, f2" in capsys.readouterr().out
    assert main(["data", "show", f"--data.file={tmp_path}/data", "--data.partition=iid"]) == 2
    assert "has no effect" in capsys.readouterr().err
