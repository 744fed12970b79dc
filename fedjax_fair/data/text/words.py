"""Texts as the occurrences of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float32

from fedjax_fair.data.conversion import require

__all__ = ["count_words", "frequent_words"]

_WORD = re.compile(r"[\w']+|[.,!?;]")


def _words_of(text: str) -> list[str]:
    """Splits a text as LEAF does, into words and punctuation marks, in lower case."""
    return _WORD.findall(text.lower())


def frequent_words(texts: Iterable[str], size: int = 1000) -> tuple[str, ...]:
    """Returns the most frequent words of texts; of equally frequent ones, the first ascending.

    Examples:
        >>> frequent_words(["So good!", "not so good"], size=2)
        ('good', 'so')
    """
    counts = Counter(word for text in texts for word in _words_of(text))
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:size])


def count_words(
    texts: Sequence[str], vocabulary: Sequence[str]
) -> Float32[np.ndarray, "texts words"]:
    """Counts the occurrences of words in texts, in lower case; other words do not count.

    Args:
        texts: The texts.
        vocabulary: Different words.

    Raises:
        ValueError: If the vocabulary is a string, empty or repeats a word.

    Examples:
        >>> count_words(["So good, so good!", "bad"], ["good", "!"]).tolist()
        [[2.0, 1.0], [0.0, 0.0]]
    """
    columns = {word: column for column, word in enumerate(vocabulary)}
    require(
        not isinstance(vocabulary, str) and len(columns) == len(vocabulary) > 0,
        f"vocabulary={vocabulary if isinstance(vocabulary, str) else [*vocabulary][:10]!r}: "
        "expected a list of different words, or None.",
    )
    counts = np.zeros((len(texts), len(columns)), np.float32)
    for row, text in enumerate(texts):
        for word in _words_of(text):
            if word in columns:
                counts[row, columns[word]] += 1
    return counts
