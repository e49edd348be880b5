"""Movie reviews from IMDb (Maas et al., 2011): text files, as numbers of words.

Where the numbers come from matters. The usual vocabulary, the most frequent words of the training reviews, is computed
from the private texts: whether a rare word or name is in it tells of single reviews, and no noise hides it. By default
words are numbered by a hash into a fixed range, which looks at no text. Two words may then share a number. A list of
words from elsewhere, one that is public, gives each word its own.
"""

from __future__ import annotations

import pathlib
import re
import zlib
from collections.abc import Callable, Iterable

import numpy as np

from jaxacct import validation
from jaxacct_recipes.datasets import Dataset, damaged, hold_out, read_text

SOURCE = (
    "the folder aclImdb with train/pos, train/neg, test/pos and test/neg, from "
    "https://ai.stanford.edu/~amaas/data/sentiment/"
)
FOLDER = "aclImdb"
VOCABULARY = 10_000
"""Numbers of words, 0 included, which fills up: as many as Bu et al. (2020) use."""

LENGTH = 256
"""Words kept of a review, the first ones: as many as Bu et al. (2020) use."""

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
LINE_BREAK = re.compile(r"<br\s*/?>")
CLASSES = {"neg": 0, "pos": 1}


def load(folder: pathlib.Path, test_size: int | None = None, *, number: Callable[[str], int] | None = None) -> Dataset:
    """Returns the reviews as int32 numbers of words (reviews, 256), and the labels: 1 for a positive one.

    Args:
        folder: the one that the archive makes, ``aclImdb``, or the one above it.
        test_size: reviews to hold out of ``train``. None: those of ``test``.
        number: numbers a word, from 0, which fills up, to 9,999. None: :func:`hashing`.

    Raises FileNotFoundError or ValueError for a missing, empty or damaged file, with its path.
    """
    folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    number = hashing() if number is None else number
    inputs, labels = _read_part(folder / "train", number)
    if test_size is not None:
        return hold_out("imdb", inputs, labels, test_size, num_classes=2)
    return Dataset("imdb", inputs, labels, *_read_part(folder / "test", number), num_classes=2)


def _read_part(folder: pathlib.Path, number: Callable[[str], int]) -> tuple[np.ndarray, np.ndarray]:
    rows: list[np.ndarray] = []
    labels: list[int] = []
    for name, label in CLASSES.items():
        paths = sorted((folder / name).glob("*.txt"))
        if not paths:
            raise FileNotFoundError(f"{folder / name} has no text files (*.txt): --data-dir needs {SOURCE}.")
        for path in paths:
            text = read_text(path, "utf-8", SOURCE)
            if not text.strip():
                raise damaged(path, "is empty", SOURCE)
            rows.append(encode(text, number))
            labels.append(label)
    return np.stack(rows), np.array(labels, np.int32)


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case: runs of letters and digits, with an apostrophe inside kept.

    >>> words("It's <br />NOT bad, 8/10")
    ["it's", 'not', 'bad', '8', '10']
    """
    return WORD.findall(LINE_BREAK.sub(" ", text.lower()))


def encode(text: str, number: Callable[[str], int], length: int = LENGTH) -> np.ndarray:
    """Returns the numbers of the first ``length`` words, int32, filled up with zeros.

    >>> encode("good good film", {"good": 1, "film": 2}.__getitem__, length=5).tolist()
    [1, 1, 2, 0, 0]
    """
    row = np.zeros(length, np.int32)
    kept = words(text)[:length]
    row[: len(kept)] = [number(word) for word in kept]
    return row


def hashing(size: int = VOCABULARY) -> Callable[[str], int]:
    """Returns a function that numbers any word from 1 to ``size - 1`` by its CRC-32: needs no data, leaks nothing.

    >>> hashing()("film") == hashing()("film"), 1 <= hashing(100)("film") < 100
    (True, True)
    """
    validation.check_whole(size, "size", 2, 2**31 - 1, "a number of words, 0 included, which fills up")
    return lambda word: zlib.crc32(word.encode()) % (size - 1) + 1


def listed(public_words: Iterable[str], size: int = VOCABULARY) -> Callable[[str], int]:
    """Returns a function that numbers the first ``size - 2`` of the words given from 2 on, and all others 1.

    The list must not come from the private reviews, nor from ``imdb.vocab``, which comes with them.

    >>> number = listed(["good", "film"])
    >>> number("good"), number("film"), number("rare")
    (2, 3, 1)
    """
    validation.check_whole(size, "size", 3, 2**31 - 1, "a number of words, 0 and 1 included")
    table = {word: at for at, word in enumerate(dict.fromkeys(public_words), start=2) if at < size}
    return lambda word: table.get(word, 1)
