"""Federated datasets of text, for the prediction of the next character.

A speech is cut into windows of ``length`` characters. The features of a window are its characters,
its labels the characters that follow. Every character of a speech but the first is
predicted once, from at most ``length`` characters before it. The end of a speech is padded, and the
labels of padding are masked.

The token of a character is its position in the vocabulary, a string of different characters. The
token ``len(vocabulary)`` is padding, and stands for unknown characters in predictions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_fair.data.arrays import federate
from fedjax_fair.data.conversion import check_names, require
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.data.partitions.partitioner import Partition, make_partition
from fedjax_fair.numerics.labels import MASKED_LABEL
from fedjax_fair.utils import checks

__all__ = [
    "Windows",
    "characters",
    "check_vocabulary",
    "decode_text",
    "encode_text",
    "from_text",
    "make_windows",
    "with_names",
]

Texts = Mapping[str, str | Sequence[str]]


def from_text(
    texts: Texts,
    length: int = 80,
    vocabulary: str | None = None,
    *,
    name: str = "text",
    test_fraction: float = 0.2,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> FederatedData:
    """Makes a federated dataset of each client's text, to predict the next character.

    Windows never cross a speech or a client. The last windows of a client are its test examples, as
    in LEAF.

    Args:
        texts: Text of each client by name: one speech, or a list of speeches in the order of time.
            Speeches of a single character have nothing to predict and are left out.
        length: Characters of a window, at most the length of the longest speech minus one.
        vocabulary: Different characters; by default `characters` of all texts, which are sorted.
        name: Name in results.
        test_fraction: Fraction of each client's windows for testing, rounded down, in ``[0, 1)``.
        validation_fraction: As in `hold_out`, of the remaining windows, at random; 0 for none.
        seed: Seed of the choice of validation windows.

    Returns:
        A federated dataset with features and labels ``[windows, length]``, int32, and
        ``len(vocabulary)`` classes. Labels of padding are -1.

    Raises:
        ValueError: If a speech is empty or no string, a client has nothing to predict, the windows
            are longer than every speech, or the vocabulary repeats or lacks a character.

    References:
        Caldas et al., LEAF: A Benchmark for Federated Settings, 2018,
        https://arxiv.org/abs/1812.01097

    Examples:
        >>> data = from_text({"Romeo": ["Ay me!", "What, ho!"], "Juliet": "Ay me!"}, length=4)
        >>> data.client_names, data.train.sizes.tolist(), data.test.sizes.tolist()
        (('Romeo', 'Juliet'), [4, 2], [0, 0])
        >>> decode_text(data.train.features[1], characters({"Romeo": ["Ay me!", "What, ho!"]}))
        'e'
    """
    speeches = _speeches_of(texts)
    checks.positive_int("length", length)
    checks.unit_interval("test_fraction", test_fraction)
    vocabulary = characters(texts) if vocabulary is None else vocabulary
    windows = make_windows(speeches, length, check_vocabulary(vocabulary))
    require(
        windows.sizes.all(),
        f"texts[{list(speeches)[int(np.argmin(windows.sizes))]!r}]: expected a speech of two or "
        "more characters; leave this client out.",
    )
    train, test = windows.split(test_fraction)
    return federate(
        with_names(train, tuple(speeches)),
        with_names(test, None),
        num_classes=len(vocabulary),
        name=name,
        validation_fraction=validation_fraction,
        seed=seed,
    )


class Windows(NamedTuple):
    """Windows of all clients, client after client, in the order of time.

    Attributes:
        features: Tokens, ``[windows, length]``, int32.
        labels: The tokens that follow each, ``[windows, length]``, int32; -1 where masked.
        sizes: Number of windows of each client, ``[clients]``; a client may have none.
    """

    features: Int[np.ndarray, "windows length"]
    labels: Int[np.ndarray, "windows length"]
    sizes: Int[np.ndarray, " clients"]

    def split(self, fraction: float) -> tuple[Windows, Windows]:
        """Splits off the last ``floor(fraction * size)`` windows of every client."""
        num_last = np.floor(self.sizes * fraction).astype(np.int64)
        ends = np.cumsum(self.sizes)
        is_last = np.arange(len(self.labels)) >= np.repeat(ends - num_last, self.sizes)
        return (
            Windows(self.features[~is_last], self.labels[~is_last], self.sizes - num_last),
            Windows(self.features[is_last], self.labels[is_last], num_last),
        )


def with_names(
    windows: Windows, names: tuple[str, ...] | None
) -> tuple[np.ndarray, np.ndarray, Partition]:
    """Returns features, labels and the partition of windows."""
    total = len(windows.labels)
    partition = make_partition(np.arange(windows.sizes.sum()), windows.sizes, total)
    return windows.features, windows.labels, partition._replace(client_names=names)


def make_windows(speeches: Mapping[str, Sequence[str]], length: int, vocabulary: str) -> Windows:
    """Cuts the speeches of each client into windows.

    Arguments are those of `from_text`, after its checks.

    Raises:
        ValueError: If all windows are longer than every speech, or a character is not in the
            vocabulary.
    """
    every = [speech for of_client in speeches.values() for speech in of_client]
    num_characters = np.array([len(speech) for speech in every], np.int64)
    longest = int(num_characters.max()) - 1
    require(
        longest > 0,
        f"texts: {len(every)} speeches of one character; expected longer ones; "
        "join the speeches of a client.",
    )
    require(
        length <= longest,
        f"{length=}: expected at most {longest}, the length of the longest speech less one.",
    )
    tokens = encode_text("".join(every), vocabulary)
    if (unknown := tokens == len(vocabulary)).any():
        first = int(np.argmax(unknown))
        missing = sorted({"".join(every)[place] for place in np.flatnonzero(unknown)})
        owners = np.repeat(list(speeches), [sum(map(len, each)) for each in speeches.values()])
        raise ValueError(
            f"{vocabulary=} lacks {len(missing)} characters of the texts, such as {missing[0]!r}; "
            f"the first is in texts[{str(owners[first])!r}]. Expected all, as in characters(texts)."
        )
    ends = np.cumsum(num_characters)
    counts = -(-(num_characters - 1) // length)  # Rounded up.
    speech = np.repeat(np.arange(len(every)), counts)
    window = np.arange(len(speech)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = (ends - num_characters)[speech] + window * length
    places = starts[:, None] + np.arange(length)
    is_label = places + 1 < ends[speech, None]
    places = np.where(is_label, places, 0)
    owners = np.repeat(np.arange(len(speeches)), [len(each) for each in speeches.values()])
    return Windows(
        np.where(is_label, tokens[places], len(vocabulary)).astype(np.int32),
        np.where(is_label, tokens[places + 1], MASKED_LABEL).astype(np.int32),
        np.bincount(owners[speech], minlength=len(speeches)),
    )


def characters(texts: Texts | Iterable[str]) -> str:
    """Returns the different characters of texts, sorted: the vocabulary of `from_text`.

    Args:
        texts: As of `from_text`, or only the speeches.

    Examples:
        >>> characters(["To be, or", "not"]), characters({"Romeo": "Ay", "Juliet": ["me", "!"]})
        (' ,Tbenort', '!Aemy')
    """
    is_by_client = isinstance(texts, Mapping)
    speeches = chain.from_iterable(_speeches_of(texts).values()) if is_by_client else texts
    return "".join(sorted(set().union(*speeches)))


def encode_text(text: str, vocabulary: str) -> Int[np.ndarray, " length"]:
    """Returns the tokens of a text; unknown characters have the token ``len(vocabulary)``.

    Examples:
        >>> encode_text("abcxa", "abc").tolist()
        [0, 1, 2, 3, 0]
    """
    checks.instance("text", text, str, "'To be'")
    known = _code_points(check_vocabulary(vocabulary))
    order = np.argsort(known)
    codes = _code_points(text)
    nearest = order[np.minimum(np.searchsorted(known, codes, sorter=order), len(known) - 1)]
    return np.where(known[nearest] == codes, nearest, len(known)).astype(np.int32)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.uint32)


def decode_text(tokens: Any, vocabulary: str, unknown: str = "") -> str:
    """Returns the text of tokens, ``[length]``; padding and masked labels become ``unknown``.

    Examples:
        >>> decode_text([0, 1, 3, -1], "abc"), decode_text([0, 3, 1], "abc", unknown="?")
        ('ab', 'a?b')
    """
    check_vocabulary(vocabulary)
    places = np.asarray(tokens).tolist()
    return "".join(
        vocabulary[token] if 0 <= token < len(vocabulary) else unknown for token in places
    )


def check_vocabulary(vocabulary: Any) -> str:
    """Checks for a string of different characters, and returns it."""
    require(
        isinstance(vocabulary, str) and vocabulary,
        f"vocabulary={checks.show(vocabulary)}: expected a string of different characters, such as "
        "characters(texts).",
    )
    repeated = [each for each, count in Counter(vocabulary).items() if count > 1]
    require(
        not repeated,
        f"vocabulary={checks.show(vocabulary)}: {repeated[:1]} occurs twice; expected different "
        "characters.",
    )
    return vocabulary


def _speeches_of(texts: Any) -> dict[str, list[str]]:
    """Checks texts, and returns the speeches of each client."""
    require(
        isinstance(texts, Mapping) and texts,
        f"texts={checks.show(texts)}: expected the text of one or more clients by name, such as "
        "{'Romeo': ['Ay me!'], 'Juliet': ['Ay me!']}.",
    )
    check_names("texts", tuple(texts), len(texts))
    speeches = {}
    for name, of_client in texts.items():
        each = [of_client] if isinstance(of_client, str) else of_client
        require(
            isinstance(each, Sequence)
            and not isinstance(each, bytes | bytearray)
            and all(isinstance(speech, str) for speech in each),
            f"texts[{name!r}]={checks.show(of_client)}: expected a string, or a list of strings, "
            "such as ['Ay me!'].",
        )
        require(len(each), f"texts[{name!r}]=[]: expected one or more speeches; leave it out.")
        empty = [place for place, speech in enumerate(each) if not speech]
        require(
            not empty,
            f"texts[{name!r}]: speech {(empty or [0])[0]} is empty; expected one or more "
            "characters, so leave it out.",
        )
        speeches[name] = list(each)
    return speeches
