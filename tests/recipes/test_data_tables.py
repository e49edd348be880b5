"""Loaders of tables, texts and ratings on small made-up files, sound and damaged."""

import numpy as np
import pytest

from bench.papers.ratings import load as load_ratings
from bench.papers.recipes import load
from bench.papers.reviews import LENGTH, VOCABULARY, encode, hashing, listed, words
from bench.papers.reviews import load as load_reviews
from jaxacct_recipes.datasets import COLUMNS, read_uci


def test_adult_with_and_without_its_own_test_file(tmp_path):
    (tmp_path / "a9a").write_text("".join(f"{i % 2} 1:1 {i + 2}:0.5\n" for i in range(10)))
    dataset = load("adult", tmp_path)
    assert dataset.train_inputs.shape == (8, 123)
    assert dataset.test_inputs.shape == (2, 123)
    (tmp_path / "a9a.t").write_text("-1 3:1\n+1 4:1\n")
    dataset = load("adult", tmp_path)
    assert dataset.train_inputs.shape == (10, 123)
    assert dataset.test_labels.tolist() == [0, 1]
    dataset = load("adult", tmp_path, test_size=3)
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (7, 3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 1:nan", r"line 2.*NaN"),
        ("0 1:inf", r"line 2.*NaN"),
        ("0 124:1", r"line 2.*feature 124"),
        ("zero 1:1", r"line 2"),
        ("0 1", r"line 2"),
        ("7 1:1", r"labels"),
        ("0 1:1é", r"not ASCII text.*https"),
    ],
)
def test_adult_damaged_lines(tmp_path, line, words):
    (tmp_path / "a9a").write_text(f"0 1:1\n{line}\n1 2:1\n1 2:1\n1 2:1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=words) as raised:
        load("adult", tmp_path)
    assert "a9a" in str(raised.value)


ROW = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
RICH = "52, ?, 15000000, HS-grad, 9, Divorced, ?, Husband, Black, Female, 0, 4356, 45, ?, >50K"


def test_the_table_of_uci(tmp_path):
    (tmp_path / "adult.data").write_text(f"{ROW}United-States, <=50K\n{RICH}\n\n")
    (tmp_path / "adult.test").write_text(f"|1x3 Cross validator\n{RICH}.\n")
    dataset = load("adult-uci", tmp_path)
    assert dataset.train_inputs.shape == (2, 105)
    assert dataset.train_labels.tolist() == [0, 1]
    assert dataset.test_labels.tolist() == [1]
    assert 0 <= dataset.train_inputs.min() <= dataset.train_inputs.max() <= 1
    places, at = {}, 0
    for name, kind in COLUMNS.items():
        width = 1 if isinstance(kind, float) else len(kind.split())
        places[name] = slice(at, at + width)
        at += width
    first, second = dataset.train_inputs
    assert first[places["age"]] == np.float32(0.39)
    assert first[places["capital-gain"]] == pytest.approx(np.log(2175) / np.log(100_000))
    assert second[places["fnlwgt"]] == 1  # clipped to its bound
    for name, kind in COLUMNS.items():
        if isinstance(kind, str):
            assert first[places[name]].sum() == 1
    assert np.flatnonzero(first[places["workclass"]]).tolist() == [5]
    for name in ("workclass", "occupation", "native-country"):
        assert second[places[name]].sum() == 0  # missing
    assert len(load("adult-uci", tmp_path, test_size=1).train_labels) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (ROW + "United-States", r"14 fields, expected 15"),
        (ROW + "Atlantis, <=50K", r"native-country = 'Atlantis'"),
        (ROW + "Cuba, 50K", r"label '50K'"),
        (ROW.replace("39", "-1") + "Cuba, <=50K", r"age = -1"),
        (ROW.replace("39", "nan") + "Cuba, <=50K", r"age = nan"),
        (ROW.replace("39", "old") + "Cuba, <=50K", r"'old'"),
    ],
)
def test_damaged_lines_of_the_table(tmp_path, line, words):
    path = tmp_path / "adult.data"
    path.write_text(f"{RICH}\n{line}\n")
    with pytest.raises(ValueError, match=words) as raised:
        read_uci(path)
    assert "adult.data has a damaged line 2" in str(raised.value)
    assert "archive.ics.uci.edu" in str(raised.value)
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"no examples"):
        read_uci(path)


@pytest.fixture
def imdb(tmp_path):
    for part in ("train", "test"):
        for label, text in (("pos", "A GOOD film,<br /><br />it's très good"), ("neg", "bad " * 300)):
            folder = tmp_path / "aclImdb" / part / label
            folder.mkdir(parents=True)
            for number in range(2):
                (folder / f"{number}_7.txt").write_text(text, encoding="utf-8")
    return tmp_path


def test_reviews_become_hashed_words(imdb):
    dataset = load("imdb", imdb)
    assert dataset.train_inputs.shape == (4, LENGTH)
    assert dataset.train_inputs.dtype == np.int32
    assert dataset.train_labels.tolist() == [0, 0, 1, 1]
    assert (dataset.train_inputs[0] == hashing()("bad")).all()  # cut at the length
    expected = [hashing()(word) for word in ("a", "good", "film", "it's", "très", "good")]
    assert dataset.test_inputs[3].tolist() == expected + [0] * (LENGTH - 6)
    assert (len(load("imdb", imdb / "aclImdb", test_size=1).train_labels)) == 3


def test_a_review_is_encoded_whatever_the_others_say(imdb):
    """No vocabulary is built: one more review, full of new words, changes the numbers of no other."""
    before = load("imdb", imdb).train_inputs
    (imdb / "aclImdb" / "train" / "pos" / "9_9.txt").write_text("zyzzyva " * 50)
    np.testing.assert_array_equal(load("imdb", imdb).train_inputs[:4], before)


def test_word_numbers():
    numbers = {hashing()(f"word{i}") for i in range(5000)}
    assert min(numbers) >= 1
    assert max(numbers) < VOCABULARY
    # As many distinct ones as 5000 balls in 9999 urns leave, 3935, give or take five standard deviations.
    assert abs(len(numbers) - 9999 * (1 - np.exp(-5000 / 9999))) < 150
    number = listed(["good", "bad", "good", "fine"], size=4)
    assert [number(word) for word in ("good", "bad", "fine", "film")] == [2, 3, 1, 1]
    assert words("I'm 2B!") == ["i'm", "2b"]
    assert encode("", number, length=2).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"size = 1"):
        hashing(1)


def test_a_public_word_list(imdb):
    dataset = load_reviews(imdb, number=listed(["good", "film"]))
    assert dataset.train_inputs[2, :6].tolist() == [1, 2, 3, 1, 1, 2]


def test_damaged_reviews(imdb):
    path = imdb / "aclImdb" / "test" / "neg" / "1_7.txt"
    path.write_bytes(b"good \xff film")
    with pytest.raises(ValueError, match=r"1_7.txt is not UTF-8 text \(byte 5 is 0xff\).*ai.stanford.edu"):
        load("imdb", imdb)
    path.write_bytes(b" \n")
    with pytest.raises(ValueError, match=r"1_7.txt is empty.*ai.stanford.edu"):
        load("imdb", imdb)
    for old in path.parent.iterdir():
        old.unlink()
    with pytest.raises(FileNotFoundError, match=r"neg has no text files.*ai.stanford.edu"):
        load("imdb", imdb)


def rating_lines(count=10):
    return [f"{i + 1}::{3952 - i}::{i % 5 + 1}::97830{i}" for i in range(count)]


def test_ratings(tmp_path):
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    (folder / "ratings.dat").write_text("\n".join(rating_lines()) + "\n")
    dataset = load("movielens", tmp_path)
    assert dataset.train_inputs.shape == (8, 2)
    assert dataset.train_inputs.dtype == np.int32
    assert dataset.num_classes == 5
    everything = np.concatenate([dataset.train_inputs, dataset.test_inputs])
    assert sorted(map(tuple, everything.tolist())) == [(i, 3951 - i) for i in range(10)]
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    assert (labels == everything[:, 0] % 5).all()
    again = load("movielens", folder)
    np.testing.assert_array_equal(again.test_inputs, dataset.test_inputs)
    assert len(load_ratings(folder, test_size=7).train_labels) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1::2::3", r"3 fields, expected UserID::MovieID::Rating::Timestamp"),
        ("6041::2::3::1", r"UserID = 6041 is not in 1 to 6040"),
        ("1::0::3::1", r"MovieID = 0 is not in 1 to 3952"),
        ("1::2::6::1", r"Rating = 6 is not in 1 to 5"),
        ("1::2::3.5::1", r"3.5"),
        ("", r"1 fields"),
    ],
)
def test_damaged_ratings(tmp_path, line, words):
    path = tmp_path / "ratings.dat"
    path.write_text("\n".join([rating_lines()[0], line, *rating_lines()]) + "\n")
    with pytest.raises(ValueError, match=words) as raised:
        load("movielens", tmp_path)
    assert "ratings.dat has a damaged line 2" in str(raised.value)
    assert "grouplens.org" in str(raised.value)


def test_ratings_cut_short(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("\n".join(rating_lines()))
    with pytest.raises(ValueError, match=r"ratings.dat is cut short"):
        load("movielens", tmp_path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"ratings.dat is empty"):
        load("movielens", tmp_path)
    path.write_text("\n".join(rating_lines(3)) + "\n")
    with pytest.raises(ValueError, match=r"too few"):
        load("movielens", tmp_path)
    path.write_bytes(b"1::2::3::4\n\xe9\n")
    with pytest.raises(ValueError, match=r"not ASCII text"):
        load("movielens", tmp_path)
