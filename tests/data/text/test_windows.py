"""Windows of speeches, their splits, and files of text by author."""

import gzip
import itertools
import json

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

import fedjax_fair as ff
from fedjax_fair.data.conversion import DamagedError
from fedjax_fair.data.sources.shakespeare import find_shakespeare, read_shakespeare

SPEECHES = {
    "Romeo": ["Ay me! sad hours seem long.", "Out--", "What, ho!"],
    "Juliet": "Give me my Romeo; and, when he shall die",
    "Nurse": ["Ay", "A", "Peace, I have done. God mark thee to his grace!"],
}
TEXTS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.lists(st.text("xyz \n", min_size=1, max_size=12), min_size=1, max_size=4).filter(
        lambda speeches: max(map(len, speeches)) > 1
    ),
    min_size=1,
    max_size=4,
)


def windows_of(texts, length):
    """Inputs and next characters of each client's windows, one character at a time."""
    clients = []
    for speeches in texts.values():
        windows = []
        for speech in [speeches] if isinstance(speeches, str) else speeches:
            pairs = list(itertools.pairwise(speech))
            windows += [pairs[start : start + length] for start in range(0, len(pairs), length)]
        clients.append(windows)
    return clients


def read_back(part, client, vocabulary):
    """The windows of a client in a federated dataset, checked for padding."""
    rows = part.order[part.offsets[client] : part.offsets[client] + part.sizes[client]]
    windows = []
    for tokens, labels in zip(part.features[rows], part.labels[rows], strict=True):
        count = int((labels >= 0).sum())
        assert (labels[count:] == -1).all()
        assert (tokens[count:] == len(vocabulary)).all()
        windows.append([(vocabulary[t], vocabulary[n]) for t, n in zip(tokens, labels, strict=True)
                        if n >= 0])  # fmt: skip
    return windows


@given(TEXTS, st.integers(1, 11), st.sampled_from([0.0, 0.2, 0.5, 0.99]))
@settings(max_examples=60, deadline=None)
def test_windows_and_their_split_equal_a_loop_over_characters(texts, length, fraction):
    longest = max(len(speech) for speeches in texts.values() for speech in speeches) - 1
    length = min(length, longest)
    vocabulary = ff.data.characters(texts)
    data = ff.data.from_text(texts, length, test_fraction=fraction)
    assert data.client_names == tuple(texts)
    assert data.num_classes == len(vocabulary)
    for client, windows in enumerate(windows_of(texts, length)):
        num_test = int(np.floor(len(windows) * fraction))
        kept = len(windows) - num_test
        assert read_back(data.train, client, vocabulary) == windows[:kept]
        assert read_back(data.test, client, vocabulary) == windows[kept:]


def test_every_character_but_the_first_of_a_speech_is_predicted_once():
    data = ff.data.from_text(SPEECHES, length=7, validation_fraction=0.3)
    labels = sum(int((part.labels >= 0).sum()) for part in (data.train, data.test))
    lists = [[text] if isinstance(text, str) else text for text in SPEECHES.values()]
    assert labels == sum(len(speech) - 1 for speeches in lists for speech in speeches)
    assert data.validation is not None
    assert (data.validation.sizes + data.train.sizes + data.test.sizes).tolist() == [7, 6, 8]


def test_unknown_characters_have_the_token_of_padding():
    tokens = ff.data.encode_text("bxa\U0001f600", "ba")
    assert tokens.tolist() == [0, 2, 1, 2]
    assert ff.data.decode_text(tokens, "ba", unknown="?") == "b?a?"
    vocabulary = "z\U0001f600a\n"
    assert (
        ff.data.decode_text(ff.data.encode_text(vocabulary[::-1], vocabulary), vocabulary)
        == (vocabulary[::-1])
    )


BAD = {
    "no mapping": (["To be"], {}, r"texts=\['To be'\]: expected the text of one or more clients"),
    "no clients": ({}, {}, "texts={}: expected the text of one or more clients"),
    "an unnamed client": ({"": "To be"}, {}, "texts: a client is named"),
    "a number as a name": ({1: "To be"}, {}, "texts: expected a tuple of 1 strings"),
    "bytes": ({"a": b"To be"}, {}, r"texts\['a'\]=b'To be': expected a string, or a list"),
    "a number": ({"a": 3}, {}, r"texts\['a'\]=3: expected a string, or a list"),
    "a number in a list": ({"a": ["To", 3]}, {}, r"texts\['a'\]=.*3.*: expected a string, or a"),
    "nothing": ({"a": None}, {}, r"texts\['a'\]=None: expected a string, or a list"),
    "no speeches": ({"a": "To be", "b": []}, {}, r"texts\['b'\]=\[\]: expected one or more"),
    "empty text": ({"a": ""}, {}, r"texts\['a'\]: speech 0 is empty"),
    "an empty speech": ({"a": ["To", ""]}, {}, r"texts\['a'\]: speech 1 is empty"),
    "single characters": ({"a": ["O", "I"]}, {}, "2 speeches of one character"),
    "a client of single characters": (
        {"a": "To be", "b": ["O", "I"]},
        {"length": 2},
        r"texts\['b'\]: expected a speech of two or more characters",
    ),
    "too long windows": ({"a": ["To be", "or"]}, {"length": 5}, "length=5: expected at most 4"),
    "empty windows": ({"a": "To be"}, {"length": 0}, "length=0: expected an integer >= 1"),
    "a length with decimals": ({"a": "To be"}, {"length": 2.0}, "length=2.0: expected an integer"),
    "a lacking character": (
        {"a": "To be", "b": "not"},
        {"length": 2, "vocabulary": "Tobe "},
        r"vocabulary='Tobe ' lacks 2 characters of the texts, such as 'n'.*texts\['b'\]",
    ),
    "a character twice": (
        {"a": "To be"},
        {"length": 2, "vocabulary": "Tobe o"},
        r"vocabulary='Tobe o': \['o'\] occurs twice",
    ),
    "an empty vocabulary": (
        {"a": "To"},
        {"length": 1, "vocabulary": ""},
        "vocabulary='': expected",
    ),
    "a list as vocabulary": (
        {"a": "To"},
        {"length": 1, "vocabulary": ["T", "o"]},
        r"vocabulary=\['T', 'o'\]: expected a string",
    ),
    "everything for testing": (
        {"a": "To be"},
        {"length": 2, "test_fraction": 1.0},
        r"test_fraction=1.0: expected a number in \[0, 1\)",
    ),
}


@pytest.mark.parametrize(("texts", "arguments", "message"), BAD.values(), ids=BAD)
def test_bad_texts_are_refused(texts, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        ff.data.from_text(texts, **arguments)
    assert "\n" not in str(error.value)


def test_images_and_other_networks_are_refused():
    image, tokens = jax.ShapeDtypeStruct((1, 8, 8, 1), np.uint8), np.zeros((1, 3), np.float32)
    for model in (ff.models.char_lstm(5), ff.models.char_transformer(5)):
        for x in (image, tokens, np.zeros(3, np.int32)):
            with pytest.raises(ValueError, match="tokens"):
                jax.eval_shape(model.init, jax.random.key(0), x)


# LEAF's files.

USERS = {
    "MACBETH": (["so fou", "o foul", " foul "], ["l", " ", "a"]),
    "LENNOX": (["What a"], [" "]),
}


def leaf(samples=None, /, **changes):
    samples = USERS if samples is None else samples
    content = {
        "users": list(samples),
        "num_samples": [len(x) for x, _ in samples.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in samples.items()},
    }
    return content | changes


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_leaf_samples_have_their_last_label_alone(tmp_path):
    for number, name in enumerate(USERS):
        write(tmp_path / f"all_data_{number}.json", leaf({name: USERS[name]}))
    data = ff.data.from_leaf(tmp_path, test_fraction=0.4)
    texts = [text for x, y in USERS.values() for text in (*x, *y)]
    vocabulary = ff.data.characters(texts)
    assert data.client_names == ("MACBETH", "LENNOX")
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([2, 1], [1, 0])
    assert (data.train.labels[:, :-1] == -1).all()
    parts = (data.train, data.test)
    samples = [ff.data.decode_text(row, vocabulary) for part in parts for row in part.features]
    following = [vocabulary[label] for part in parts for label in part.labels[:, -1]]
    assert samples == ["so fou", "o foul", "What a", " foul "]
    assert following == ["l", " ", " ", "a"]


def test_leaf_keeps_its_test_samples(tmp_path):
    train = write(tmp_path / "train.json", leaf())
    test = write(tmp_path / "test.json", leaf({"LENNOX": (["hat a ", "at a h"], ["h", "u"])}))
    data = ff.data.from_leaf(train, test)
    assert (data.train.sizes.tolist(), data.test.sizes.tolist()) == ([3, 1], [0, 2])
    assert data.num_classes == len(set("so foul aWhthu"))


DAMAGES = {
    "fewer samples": (leaf(num_samples=[4, 1]), "3 x, 3 y and num_samples 4"),
    "more samples": (leaf(num_samples=[2, 1]), "3 x, 3 y and num_samples 2"),
    "a missing count": (leaf(num_samples=[3]), "2 users and 1 num_samples"),
    "a missing label": (leaf({"A": (["ab", "bc"], ["c"])}), "2 x, 1 y and num_samples 2"),
    "a missing user": (leaf(users=["MACBETH", "BANQUO"]), "user_data of exactly the users"),
    "a user twice": (leaf(users=["MACBETH", "MACBETH"]), "user_data of exactly the users"),
    "no users": (leaf({}), "no users; expected one or more"),
    "no samples": (leaf({"A": ([], [])}), r"1 of 1 users have no samples, first \['A'\]"),
    "no lists": (leaf({"A": ("ab", "cd")}), "user 'A' has no lists x and y"),
    "longer labels": (leaf({"A": (["ab"], ["cd"])}), "has strings x, but y that are no characters"),
    "an empty text": (leaf({"A": (["", "b"], ["c", "d"])}), "or an empty x"),
    "two lengths": (leaf({"A": (["ab", "abc"], ["c", "d"])}), r"x of lengths \[2, 3\]"),
    "another format": ({"text": "To be"}, "expected LEAF's users, num_samples and user_data"),
    "a list": ([1], "expected LEAF's users, num_samples and user_data"),
    "no JSON": ("{", "expected JSON"),
    "deep": ("[" * 100_000, "expected JSON"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_leaf_files_are_refused(tmp_path, content, message):
    path = write(tmp_path / "all_data.json", content)
    with pytest.raises(ValueError, match=message) as error:
        ff.data.from_leaf(path)
    assert "all_data.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_other_bad_arguments_of_leaf_are_refused(tmp_path):
    train = write(tmp_path / "train.json", leaf())
    test = write(tmp_path / "test.json", leaf({"BANQUO": (["ab"], ["c"])}))
    with pytest.raises(ValueError, match=r"1 test examples are of 1 clients .* \['BANQUO'\]"):
        ff.data.from_leaf(train, test)
    with pytest.raises(ValueError, match="characters"):
        ff.data.from_leaf(train, vocabulary="abc")
    for missing in (tmp_path / "none.json", tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match="LEAF"):
            ff.data.from_leaf(missing)


# Shakespeare by role.

LINES = [
    {"play": "hamlet", "role": "Ophelia", "text": "My lord, I have remembrances of yours,"},
    {"play": "hamlet", "role": "Hamlet", "text": "No, not I;\nI never gave you aught."},
    {"play": "hamlet", "role": "Ophelia", "text": "O"},
    {"play": "hamlet", "role": "Ghost", "text": ""},
    {"play": "macbeth", "role": "Hamlet", "text": "Mark me."},
    {"play": "hamlet", "role": "Ophelia", "text": "There, my lord."},
]


def write_lines(folder, lines=LINES):
    path = folder / "shakespeare.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


def test_roles_are_the_speeches_of_the_file(tmp_path):
    roles = ff.data.read_roles(write_lines(tmp_path))
    assert roles == {
        "hamlet: Ophelia": [LINES[0]["text"], "O", "There, my lord."],
        "hamlet: Hamlet": [LINES[1]["text"]],
        "macbeth: Hamlet": ["Mark me."],
    }


@pytest.mark.parametrize("subfolder", ["", "text"])
def test_the_source_equals_from_text(tmp_path, subfolder):
    (tmp_path / subfolder).mkdir(exist_ok=True)
    path = write_lines(tmp_path / subfolder)
    roles = ff.data.read_roles(path)
    data = ff.data.load("shakespeare", data_dir=tmp_path, length=6, min_characters=20)
    kept = {role: roles[role] for role in sorted(roles) if role != "macbeth: Hamlet"}
    expected = ff.data.from_text(kept, 6, ff.data.characters(roles))
    assert data.client_names == tuple(kept)
    assert data.num_classes == expected.num_classes
    for part, other in ((data.train, expected.train), (data.test, expected.test)):
        np.testing.assert_array_equal(part.features[part.order], other.features[other.order])
        np.testing.assert_array_equal(part.labels[part.order], other.labels[other.order])
        np.testing.assert_array_equal(part.sizes, other.sizes)


def test_some_roles_keep_their_test_windows(tmp_path):
    write_lines(tmp_path)
    settings = {"data_dir": tmp_path, "length": 3, "min_characters": 1}
    every = ff.data.load("shakespeare", **settings)
    names = set()
    for seed in range(5):
        some = ff.data.load("shakespeare", ff.data.natural(2), seed, **settings)
        assert some.num_clients == 2
        for client, name in enumerate(some.client_names or ()):
            place = (every.client_names or ()).index(name)
            for part, other in ((some.train, every.train), (some.test, every.test)):
                first, last = other.offsets[place], other.offsets[place] + other.sizes[place]
                rows = part.order[part.offsets[client] :][: part.sizes[client]]
                np.testing.assert_array_equal(
                    part.features[rows], other.features[other.order[first:last]]
                )
        names.add(some.client_names)
    assert len(names) > 1
    with pytest.raises(ValueError, match="num_clients=4"):
        ff.data.load("shakespeare", ff.data.natural(4), **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 80}, "length=80"),
        ({"min_characters": 100}, "min_characters=100"),
        ({"min_characters": 0}, "min_characters=0"),
        ({"height": 3}, "height="),
    ],
)
def test_bad_settings_of_the_source_are_refused(tmp_path, arguments, message):
    write_lines(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        ff.data.load("shakespeare", data_dir=tmp_path, **({"min_characters": 1} | arguments))
    assert "\n" not in str(error.value)


def test_settings_and_natural_clients_need_a_source_that_has_them():
    with pytest.raises(ValueError, match="length=3"):
        ff.data.load("digits", length=3)
    with pytest.raises(ValueError, match="clients"):
        ff.data.load("digits", ff.data.natural())


SPOILED = {
    "truncated": (lambda content: content[:-20], "damaged or truncated"),
    "no header": (lambda content: b"text" + content, "damaged or truncated"),
    "other bits": (lambda content: content[:40] + bytes(8) + content[48:], "damaged or trunc|JSON"),
    "no lines": (lambda content: gzip.compress(b""), "no speeches"),
    "no JSON": (lambda content: gzip.compress(b"To be"), "line 1: expected JSON"),
    "Latin-1": (lambda content: gzip.compress(b'{"play": "\xe9"}'), "line 1: expected JSON"),
    "no role": (lambda content: gzip.compress(b'{"play": "a", "text": "b"}'), "line 1: expected"),
    "a list": (lambda content: gzip.compress(b"[]"), "line 1: expected strings play"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_damaged_files_of_roles_are_refused(tmp_path, spoil, message):
    path = write_lines(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DamagedError, match=message) as error:
        ff.data.load("shakespeare", data_dir=tmp_path)
    assert "shakespeare.jsonl.gz" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_of_roles_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"shakespeare\.jsonl"):
        ff.data.load("shakespeare", data_dir=tmp_path)
    described = ff.data.describe("shakespeare", tmp_path)
    assert not described.prepared
    assert "no shakespeare.jsonl.gz" in (described.missing or "")


def test_sources_describe_what_they_read(tmp_path):
    lines = [line | {"text": 50 * line["text"]} for line in LINES]
    write_lines(tmp_path, lines)
    described = ff.data.describe("shakespeare", tmp_path)
    splits = read_shakespeare(find_shakespeare(tmp_path))
    assert splits.test is not None
    assert described.num_train == len(splits.train.labels)
    assert described.num_test == len(splits.test.labels)
    assert described.shape == (80,)
    assert described.partition == "natural()"
