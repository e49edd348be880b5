"""Tables of the user's own: encoded row by row, by rules that are given and none that the data make."""

import json
import sys

import numpy as np
import pytest

import jaxacct as ja
from jaxacct.cli import build_parser, main, training
from jaxacct.json_files import lock
from jaxacct_recipes import tables

HEADER = "age,sex,id,y"
ROWS = ["20, F, a, no", "", "60,M,b,yes", "200,,c,no", ",M,d,yes", '40,"F",e,no', "-5,F,f,yes"]
RULES = {"age": (0.0, 80.0), "sex": ("F", "M")}
INPUTS = [[-0.5, 1, 0], [0.5, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0], [-1, 1, 0]]
LABELS = [0, 1, 0, 1, 0, 1]


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("\n".join(["\ufeff" + HEADER, *ROWS]) + "\n", encoding="utf-8")
    return path


def test_a_table_is_encoded_by_its_rules(csv):
    dataset, columns = tables.load(csv, "y", dict(reversed(RULES.items())), ("no", "yes"), drop=("id",))
    assert list(columns.items()) == list(RULES.items())  # in the order of the file
    np.testing.assert_array_equal(dataset.train_inputs, np.array(INPUTS, np.float32))
    assert dataset.train_labels.tolist() == LABELS
    assert (dataset.name, dataset.num_classes, len(dataset.test_labels)) == ("people", 2, 0)
    assert dataset.train_inputs.dtype == np.float32


def test_a_row_is_encoded_alike_whatever_the_others_are(csv):
    """Neighbouring tables give neighbouring data sets: that is what the guarantee of the training is about."""
    whole, _ = tables.load(csv, "y", RULES, ("no", "yes"), drop=("id",))
    lines = csv.read_text(encoding="utf-8").splitlines()
    csv.write_text("\n".join(lines[:4] + lines[5:]) + "\n", encoding="utf-8")
    without, _ = tables.load(csv, "y", RULES, ("no", "yes"), drop=("id",))
    np.testing.assert_array_equal(without.train_inputs, np.delete(whole.train_inputs, 2, axis=0))
    np.testing.assert_array_equal(without.train_labels, np.delete(whole.train_labels, 2))


def test_a_test_file_may_have_its_columns_in_another_order(csv):
    (csv.parent / "other.csv").write_text("sex,more,y,age\nM,?,yes,60\n")
    dataset, _ = tables.load(csv, "y", RULES, ("no", "yes"), drop=("id",), test=csv.parent / "other.csv")
    assert dataset.test_inputs.tolist() == [INPUTS[1]]
    assert dataset.test_labels.tolist() == [1]


def test_arrays_keep_their_shape_or_become_features(tmp_path):
    images = np.arange(24.0).reshape(6, 2, 2)
    np.savez(tmp_path / "a.npz", x=images, y=np.array(LABELS))
    alone, _ = tables.load(tmp_path / "a.npz", "y", {}, 2, bounds=(0.0, 24.0), test_size=2)
    assert alone.train_inputs.shape == (4, 2, 2)
    assert len(alone.test_labels) == 2
    np.savez(tmp_path / "b.npz", x=images, z=np.array([1.0, np.nan, 3, 1, 2, 3]), y=np.array(LABELS, float))
    both, _ = tables.load(
        tmp_path / "b.npz", "y", {"z": ("1", "2", "3")}, 2, bounds=(0.0, 24.0), test=tmp_path / "b.npz"
    )
    assert both.train_inputs[:2].tolist() == [[-1, *(np.arange(1, 4) / 12 - 1).astype(np.float32), 1, 0, 0],
                                              [*(np.arange(4, 8) / 12 - 1).astype(np.float32), 0, 0, 0]]  # fmt: skip
    np.testing.assert_array_equal(both.test_inputs, both.train_inputs)


def test_parquet_reads_as_csv_does(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"age": [20, 60, 200, None, 40, -5], "sex": ["F", "M", None, "M", "F", "F"], "y": LABELS}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    dataset, _ = tables.load(tmp_path / "t.parquet", "y", RULES, 2)
    np.testing.assert_array_equal(dataset.train_inputs, np.array(INPUTS, np.float32))


def test_a_missing_number_of_parquet_changes_no_other(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    large = 2**53 + 1
    for last in (large, None):
        parquet.write_table(pyarrow.table({"x": [large, 5, last], "y": [0, 1, 0]}), tmp_path / "t.parquet")
        dataset, _ = tables.load(tmp_path / "t.parquet", "y", {"x": [str(large), "5"]}, 2)
        assert dataset.train_inputs[:2].tolist() == [[1, 0], [0, 1]]


def test_a_row_of_csv_takes_no_rows_of_others(tmp_path):
    path = tmp_path / "t.csv"
    rules = {"x": (0.0, 9.0), "a": ["p", "q"]}
    for wrong in ('p,"1,0\np,2,1\np,"3,0\n', 'p,1,"0\n1"\n', "p,1\r,0\n", 'p,1,0\n"p,1,0'):
        path.write_bytes(f"a,x,y\n{wrong}".encode())
        with pytest.raises(ValueError, match="is damaged"):
            tables.load(path, "y", rules, 2)
    path.write_bytes(b'a,x,y\r\n"p",1,0\r\n\r\nq, "2",1\r\n')
    assert tables.load(path, "y", rules, 2)[0].train_labels.tolist() == [0, 1]
    path.write_bytes(b"a,x,y,z\n" + b"p,1,0,\n" * 200_000 + b"q,2,1," + b"z" * 130_000)  # no text is as long as that
    assert tables.load(path, "y", rules, 2, drop=["z"])[0].train_labels.sum() == 1


def test_parquet_without_pyarrow_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(ModuleNotFoundError, match="pip install pyarrow"):
        tables.load(tmp_path / "t.parquet", "y", RULES, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rules": {}}, "columns without a rule: age, sex.*--bounds.*--categories.*--drop.*private"),
        ({"rules": RULES | {"agee": (0, 1)}}, "no column 'agee': it has age, sex, id, y"),
        ({"rules": RULES | {"y": ("no", "yes")}}, "'y' has a rule, and is the label"),
        ({"rules": RULES | {"id": (0, 1)}}, "'id' has a rule, and is left out"),
        ({"rules": RULES | {"age": (80, 0)}}, "bounds of 'age' are 80:0"),
        ({"rules": RULES | {"age": (0, float("inf"))}}, "bounds of 'age' are 0:inf"),
        ({"rules": RULES | {"sex": (0, 1)}}, "'sex' has bounds, and is not of numbers.*--categories"),
        ({"rules": RULES | {"sex": ("M", "X")}}, "'sex' has 'F' in row 1, which is not one of M, X.*--categories"),
        ({"rules": RULES | {"sex": ("M", "M")}}, "--categories of 'sex' are M, M.*each once"),
        ({"classes": ("no", "maybe")}, "'y' has 'yes' in row 2.*--classes"),
        ({"classes": 1}, "--classes of 'y' are 0: give at least two"),
        ({"label": "sex", "rules": {"age": (0, 80)}, "classes": ("F", "M"), "drop": ("id", "y")}, "missing in row 3"),
        ({"drop": ("age", "sex", "id"), "rules": {}}, "no column besides the label"),
        ({"test_size": 6}, "test_size = 6 of the 6 examples of people"),
    ],
)
def test_what_is_not_public_and_complete_is_refused(change, words, csv):
    settings = {"label": "y", "rules": RULES, "classes": ("no", "yes"), "drop": ("id",)} | change
    with pytest.raises(ValueError, match=words):
        tables.load(csv, **settings)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "is of no known kind: give one of .csv"),
        ("a.csv", b"", "give at least one"),
        ("a.csv", b"x,y\n\n", "a.csv has no rows, only the columns x, y"),
        ("a.csv", b"x,x,y\n1,2,3\n", "give each column one of its own"),
        ("a.csv", b"x,y\n1,2\n1\n", "line 3: 1 fields, expected 2"),
        ("a.csv", b"x,y\n\xff,2\n", "a.csv is damaged"),
        ("a.npz", b"PK\x03\x04", "a.npz is damaged"),
    ],
)
def test_damaged_files_are_named(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        tables.read(tmp_path / name)


OWN_MODEL = """
from flax import nnx
def make(shape, num_classes, rngs):
    return nnx.Linear(shape[0], num_classes, rngs=rngs)
"""

GIVEN = ["--label", "y", "--classes", "no,yes", "--drop", "id"]


def command(csv, *more):
    return ["train", "--data", str(csv), *GIVEN, "--out", str(csv.parent / "run"), *more]


@pytest.mark.exhaustive
def test_the_command_trains_on_a_table_and_keeps_what_is_there(csv, monkeypatch, capsys):
    from flax import nnx

    from jaxacct import plot, train
    from jaxacct.train import Checkpoints, load_model

    monkeypatch.chdir(csv.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plot, "training", lambda *_: None)
    monkeypatch.setattr(train, "export_inference", lambda *_: b"")
    (csv.parent / "own_model.py").write_text(OWN_MODEL)
    (csv.parent / "rules.json").write_text('{"sex": ["F", "M"], "age": null}')
    csv.with_name("public.csv").write_text(f"{HEADER}\n{ROWS[0]}\n")
    run = command(csv, "--columns", "rules.json", "--model", "own_model:make", "--epsilon", "9", "--delta", "1e-3",
                  "--noise-multiplier", "2", "--epochs", "1")  # fmt: skip
    assert main([*run, "--test", "public.csv"]) == 0
    assert "public test set" in capsys.readouterr().out
    folder = csv.parent / "run"
    report = json.loads((folder / "report.json").read_text())
    told = report["config"]["table"]
    assert told["columns"] == {"sex": ["F", "M"]}
    assert (told["classes"], told["dropped"], told["test"]) == (["no", "yes"], ["age", "id"], "public.csv")
    assert report["config"]["num_examples"] == 6
    assert report["history"][-1]["accuracy"] in (0.0, 1.0)
    assert load_model(nnx.Linear(2, 2, rngs=nnx.Rngs(5)), folder / "model")(np.ones(2, np.float32)).shape == (2,)

    (folder / "checkpoints").mkdir()
    for name in ("run.json", "lock"):  # of a run that kept checkpoints
        (folder / "checkpoints" / name).touch()

    def files():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before = files()
    for refused in ([], ["--checkpoint-every", "1"], ["--overwrite", "--resume"], ["--overwrite", "--clip-norm", "-1"]):
        assert main([*run, *refused]) == 2
        assert "--" in capsys.readouterr().err or "--clip-norm" in refused
        assert files() == before
    with lock(folder / "checkpoints" / "lock"), pytest.raises(ValueError, match="in use by another process"):
        Checkpoints(folder / "checkpoints", every=1).delete()
    assert files() == before
    assert main([*run, "--overwrite"]) == 0
    assert "no test set" in capsys.readouterr().out
    assert json.loads((folder / "report.json").read_text())["final"]["test_accuracy"] is None
    assert not (folder / "checkpoints").exists()


@pytest.mark.exhaustive
def test_the_noise_of_a_table_keeps_to_the_budget(csv):
    run = command(csv, "--bounds", "0:80", "--categories", "sex=F,M", "--epochs", "50", "--batch-size", "3")
    arguments = build_parser().parse_args(run)
    trainer, steps, _ = training._trainer(arguments, training.load_data(arguments)[0])
    assert (steps, trainer.sampler.expected_batch_size) == (100, 3)
    spent = ja.epsilon(ja.PoissonSubsampledGaussian(trainer.noise_multiplier, 0.5), steps=steps, delta=1e-5)
    assert 2.97 < spent.upper <= 3.0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--bounds", "age=0-80"], "NAME=LOW:HIGH"),
        (["--bounds", "age=0:x"], "'x' is not a number"),
        (["--bounds", "age=0:1", "--bounds", "age=0:2"], "'age' has two rules"),
        (["--bounds", "0:1", "--bounds", "0:2"], "have bounds already"),
        (["--categories", "sex"], "NAME=A,B,C"),
        (["--test", "x.csv", "--test-size", "1"], "one of --test and --test-size"),
        (["--dataset", "mnist"], "leave out --dataset"),
        (["--columns", "people.csv"], "give a JSON object"),
        (["--bounds", "0:80", "--categories", "sex=F,M", "--model", "own"], "MODULE:FACTORY"),
        (["--bounds", "0:80", "--categories", "sex=F,M", "--model", "math:pi"], "no function or class pi"),
        (["--bounds", "0:80", "--categories", "sex=F,M", "--model", "nope:f"], "--model nope:f: importing nope fails"),
        (["--bounds", "0:80", "--categories", "sex=F,M", "--batch-size", "9"], "the first at most 6"),
    ],
)
def test_wrong_arguments_are_named(more, words, csv, monkeypatch, capsys):
    monkeypatch.chdir(csv.parent)
    assert main(command(csv, *more)) == 2
    assert words in capsys.readouterr().err
    assert not (csv.parent / "run").exists()


def test_rules_need_a_table(tmp_path, capsys):
    assert main(["train", "--bounds", "0:1", "--out", str(tmp_path / "run")]) == 2
    assert "--bounds is of a table of your own: give --data" in capsys.readouterr().err
    assert main(["train", "--data", "x.csv", "--out", str(tmp_path / "run")]) == 2
    assert "--label" in capsys.readouterr().err
