"""Certificates: what they say follows from their spec, and whatever is changed in one is noticed."""

import copy
import functools
import hashlib
import html
import io
import json
import math
import pathlib
import subprocess
import sys
import zipfile
from fractions import Fraction

import numpy as np
import pytest

import jaxacct as ja
from jaxacct import certificates, json_files, specs
from jaxacct.certificates import claims, folders
from jaxacct.certificates.folders import text_of
from jaxacct.cli import main
from jaxacct.display import round_up, rounded_up
from jaxacct.mechanisms.records import mechanism_of, record_of
from jaxacct.train import integer_noise
from jaxacct.verify.drawn_noise import GENERATORS

SPEC = json.loads((pathlib.Path(__file__).parents[1] / "data" / "spec.json").read_text())
SCHEMA = json.loads((pathlib.Path(certificates.__file__).parent / "certificate-1.schema.json").read_text())
GAUSSIAN = {"type": "gaussian", "noise_multiplier": 10.0, "count": 100}

SAYS_THE_MAKER = ("made", "versions", "sha256.code", "sha256.files", "seal")
"""Fields of which only who made a certificate knows: the seal alone holds them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A certificate as the command writes it."""
    place = tmp_path_factory.mktemp("made") / "certificate"
    spec = place.parent / "spec.json"
    spec.write_text(json.dumps(SPEC))
    assert main(["certify", str(spec), "--out", str(place), "--json"]) == 0
    return place


@pytest.fixture(scope="module")
def made(folder):
    return json.loads((folder / "certificate.json").read_text())


def leaves(value, path=()):
    """Yields the path of every leaf."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inside:
        yield path
    for key, entry in inside:
        yield from leaves(entry, (*path, key))


def changed(value, path):
    """Returns a copy with one leaf changed by as little as its kind allows, but for numbers: by a percent."""
    found = copy.deepcopy(value)
    place = functools.reduce(lambda inner, key: inner[key], path[:-1], found)
    leaf = place[path[-1]]
    if isinstance(leaf, str):
        place[path[-1]] = leaf[:-1] + chr(ord(leaf[-1]) ^ 1) if leaf else "x"
    elif isinstance(leaf, (int, float)):
        place[path[-1]] = leaf * 1.01 + (leaf == 0) if isinstance(leaf, float) else leaf + 1
    else:
        place[path[-1]] = [1]
    return found


def schema_of(value, schema, path):
    """Asserts that a value has the keys and the types that a schema says."""
    types = {"object": dict, "array": list, "string": str, "number": float, "integer": int}
    if "type" in schema:
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert isinstance(value, tuple(types[name] for name in wanted)), path
    assert value in schema.get("enum", [value]), path
    assert value == schema.get("const", value), path
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", ())) <= set(value) <= set(schema["properties"]), path
        for key, entry in value.items():
            schema_of(entry, schema["properties"][key], (*path, key))
    for i, entry in enumerate(value if isinstance(value, list) else ()):
        schema_of(entry, schema.get("items", {}), (*path, i))


def test_it_is_what_the_accountants_say_in_the_published_format(folder, made):
    bounds = ja.epsilon(ja.Gaussian(10.0), 100, 1e-5)
    assert made["claim"] == {"epsilon": bounds.upper, "delta": 1e-5}
    assert (made["bracket"]["lower"], made["bracket"]["upper"]) == (bounds.lower, bounds.upper)
    assert made["verdict"]["status"] == "PROVED"
    schema_of(made, SCHEMA, ())
    found = certificates.check(folder)
    assert (found.status, found.same_code) == ("PROVED", True)
    shown = (folder / "certificate.html").read_text()
    assert "4.37718" in shown
    assert "one person&#x27;s record" in shown
    assert folders.without_picture(shown) == folders.html(made, None)


@pytest.mark.exhaustive
def test_the_page_for_paper_is_one_page_in_words(made):
    from jaxacct import plot

    made = copy.deepcopy(made)
    said = made["assumptions"]
    for text in ("before training.", "before training", "The office fixed all of this. " * 40):
        said[1]["said_by"] = f"the spec: {text}"
        content = folders.for_print(made)
        sections = [plot.Section(**section) for section in content.pop("sections")]
        cells = [cell for section in sections for row in section.rows for cell in row]
        assert not any(".." in cell.replace("...", "") or "{" in cell for cell in cells)
        assert "Gaussian, noise multiplier 10" in cells
        assert content["headline"] == "epsilon = 4.37718 at delta = 1e-05"
        assert content["date"] == f"made {made['made'][:10]}"
        chart = plot.Chart("", "a", "", "", np.array([0.0, 1.0]), [plot.Series("b", "b", [0.0, 1.0])])
        assert plot.write(plot.Document(chart=chart, sections=sections, **content), io.BytesIO()) == 1
    many = copy.deepcopy(made)
    many["releases"] = [{"mechanism": {"type": "DiscretePair", "p": [0.001] * 1000}, "count": [1, 2]}] * 90
    rows = folders.for_print(many)["sections"][0]["rows"]
    assert rows[0] == ("3 times, in turn", "Discrete pair, p 0.001, 0.001, 0.001, 0.001 ... (1,000 in all)")
    assert (len(rows), rows[-1][1]) == (12, "and 79 more mechanisms, which certificate.json lists.")


def test_its_risks_are_above_those_of_the_best_attack(made):
    """The best test of N(0, 1) against N(mu, 1) has power Phi(Phi^-1(a) + mu)."""
    from scipy.stats import norm

    risks = made["risks"]
    for rate, bound in zip(risks["false_positive_rate"], risks["true_positive_rate"], strict=True):
        assert norm.cdf(norm.ppf(rate) + 1.0) <= bound < 1.2 * norm.cdf(norm.ppf(rate) + 1.0) + 0.25


def test_every_byte_of_every_field_is_sealed(folder, made, tmp_path):
    file = tmp_path / "certificate.json"
    paths = list(leaves(made))
    assert len(paths) > 60
    for path in paths:
        file.write_bytes(text_of(changed(made, path)))
        with pytest.raises(ValueError, match=r"not as it was sealed|no certificate"):
            certificates.check(file)
    whole = (folder / "certificate.json").read_bytes()
    for at in range(0, len(whole), 97):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="certificate"):
            certificates.check(file)


def test_a_new_seal_hides_no_change_of_what_is_certified(folder, made, monkeypatch, tmp_path):
    """Whoever computes hashes anew still has to have true brackets, and words and numbers that follow from the spec."""
    monkeypatch.setattr(claims, "derive", remembered(claims.derive))
    judged = claims.ask_referee
    monkeypatch.setattr(claims, "ask_referee", lambda spec, bracket: judge(json_files.dumps([spec.source, bracket])))
    judge = functools.cache(lambda text: judged(specs.parsed(json.loads(text)[0]), json.loads(text)[1]))
    file, refuted = tmp_path / "certificate.json", 0
    for path in leaves({key: value for key, value in made.items() if key != "seal"}):
        name = ".".join(map(str, path))
        if name.startswith(SAYS_THE_MAKER):
            continue
        forged = changed({key: value for key, value in made.items() if key != "seal"}, path)
        if path[0] == "spec":
            forged["sha256"]["spec"] = claims.digest(forged["spec"])
        file.write_bytes(text_of(forged | {"seal": claims.digest(forged)}))
        try:
            assert certificates.check(file).status == "REFUTED", name
            refuted += 1
        except ValueError:
            continue
    assert refuted >= 3  # the ends of the bracket, and a spec with more runs


def test_a_new_seal_adds_nothing_and_hides_no_claim_below_its_bracket(folder, made, monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "derive", remembered(claims.derive))
    below = made["claim"]["epsilon"] * (1 - 5e-7)
    forged = [
        ({"approved_by": "somebody"}, "the certificate is"),
        ({"versions": made["versions"] | {"note": "approved"}}, "versions is"),
        ({"sha256": made["sha256"] | {"note": "approved"}}, "sha256 is"),
        ({"claim": made["claim"] | {"epsilon": below}, "profile": made["profile"] | {
            "epsilon": [*made["profile"]["epsilon"][:-1], below]}}, "statement is|not implied by the bracket"),
    ]  # fmt: skip
    for change, why in forged:
        value = {key: entry for key, entry in (made | change).items() if key != "seal"}
        value = claims.add_words(value)
        (tmp_path / "certificate.json").write_bytes(text_of(value | {"seal": claims.digest(value)}))
        with pytest.raises(ValueError, match=why):
            certificates.check(tmp_path / "certificate.json")
    (tmp_path / "certificate.json").write_text('{"a":' * 900 + "1" + "}" * 900)
    with pytest.raises(ValueError, match="no certificate"):
        certificates.check(tmp_path / "certificate.json")
    # A page that says something else, by what claims to be other code.
    shown = (folder / "certificate.html").read_text().replace("4.37718", "0.10000").encode()
    value = {key: entry for key, entry in made.items() if key != "seal"}
    value["sha256"] = value["sha256"] | {"code": "0" * 64}
    certificates.write(tmp_path / "new", value, {"certificate.html": shown})
    with pytest.raises(ValueError, match="does not say what"):
        certificates.check(tmp_path / "new")


def texts(given):
    return " ".join(one["text"] for one in claims.assumptions(specs.parsed(given)))


def test_what_is_within_a_search_or_a_turn_is_assumed_too():
    run = {"type": "dp-sgd", "noise_multiplier": 5.0, "sampling_rate": 0.1}
    search = {
        "type": "RepeatAndSelect",
        "mechanism": [run],
        "steps": [10],
        "trials": {"type": "geometric", "mean": 9.0},
    }
    found = texts({"parts": [search]})
    assert "Poisson sample" in found
    assert "the best alone" in found
    made = {"mechanisms": [{"type": "Gaussian", "noise_multiplier": 10.0}], "steps": [1],
            "relation": "add_or_remove", "cut_probability": 0.0}  # fmt: skip
    config = {"sampler": "CyclicPoissonSampler", "composition": made, "noise": "correlated over steps by X",
              "seed": "given by the user"}  # fmt: skip
    found = texts({"parts": [{"report": {"config": config, "final": {"delta": 1e-5}}}]})
    assert "correlated over steps by X" in found
    assert "seed is secret" in found


def test_words_do_not_undo_settings_that_followed_from_results():
    with pytest.raises(ValueError, match="followed from results"):
        specs.parsed(specs.combined([{"parts": [GAUSSIAN], "fixed": False}], fixed="by me"))


def remembered(function):
    known = {}

    def call(given):
        key = json_files.dumps(given)
        if key not in known:
            known[key] = function(given)
        return copy.deepcopy(known[key])

    return call


def test_a_file_of_the_folder_is_refused_where_it_was_changed_or_is_gone(folder, tmp_path):
    names = sorted(path.name for path in folder.iterdir())
    assert names in (
        ["certificate.html", "certificate.json", "certificate.pdf"],
        ["certificate.html", "certificate.json"],
    )
    for name in names:
        for content_of in (lambda old: old[:-1] + bytes([old[-1] ^ 1]), lambda old: None):
            copied = tmp_path / "copy"
            copied.mkdir(exist_ok=True)
            for path in folder.iterdir():
                (copied / path.name).write_bytes(path.read_bytes())
            new = content_of((copied / name).read_bytes())
            (copied / name).unlink() if new is None else (copied / name).write_bytes(new)
            assert main(["certify", "--check", str(copied)]) == 2


def test_a_folder_is_not_overwritten_silently(folder, tmp_path, capsys):
    spec = folder.parent / "spec.json"
    before = (folder / "certificate.json").read_bytes()
    assert main(["certify", str(spec), "--out", str(folder)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (folder / "certificate.json").read_bytes() == before
    other = tmp_path / "mine"
    other.mkdir()
    (other / "diary.txt").write_text("mine")
    assert main(["certify", str(spec), "--out", str(other), "--overwrite"]) == 2
    assert (other / "diary.txt").read_text() == "mine"
    sealed = certificates.write(tmp_path / "new", {"sha256": {}}, {})
    assert certificates.write(tmp_path / "new", {"sha256": {}}, {"a": b"b"}, overwrite=True) != sealed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "new"]


def test_cut_batches_are_paid_for_in_delta():
    composition = {"mechanisms": [{"type": "Gaussian", "noise_multiplier": 10.0}], "steps": [100]}
    report = {
        "config": {"sampler": "PoissonSampler",
                   "composition": composition | {"relation": "add_or_remove", "cut_probability": 1e-9}},
        "final": {"delta": 1e-5, "guarantee": ""},
    }  # fmt: skip
    found = claims.derive({"parts": [{"report": report}]})
    epsilon, left = found["claim"]["epsilon"], found["bracket"]["given"]
    assert left + (1 + 2.718281828459046**epsilon) * 1e-9 <= 1e-5
    assert left > 1e-5 * (1 - 0.02)
    assert epsilon == ja.epsilon(ja.Gaussian(10.0), 100, left).upper > ja.epsilon(ja.Gaussian(10.0), 100, 1e-5).upper
    report["config"]["composition"]["cut_probability"] = 1e-3
    with pytest.raises(ValueError, match="cost more than delta"):
        claims.derive({"parts": [{"report": report}]})


def report_of_integers(distance=None, **change):
    """A report of 100 steps with integer noise, whose record is a trainer's but for what is changed."""
    samples = 10_000
    parts = integer_noise.bill(samples)
    record = {
        "arithmetic": "integer", "generator": GENERATORS[0], "draws": 2, "scale_squared": str(2**40),
        "table_sha256": hashlib.sha256(integer_noise.table().astype("<u4").tobytes()).hexdigest(),
        "entries": 98, "counts": 2, "samples_per_step": 100, "steps": 100, "steps_per_run": 1, "samples": samples,
        "total_variation": parts,
    }  # fmt: skip
    paid = round_up(sum(map(Fraction, parts.values()))) if distance is None else distance
    composition = {"mechanisms": [{"type": "Gaussian", "noise_multiplier": 10.0}], "steps": [100],
                   "relation": "add_or_remove", "cut_probability": 0.0, "noise_distance": paid}  # fmt: skip
    config = {"sampler": "PoissonSampler", "noise_drawn": record | change, "composition": composition}
    return {"config": config, "final": {"steps": 100, "delta": 1e-5, "guarantee": ""}}


def test_integer_noise_is_stated_proved_and_paid_for(tmp_path):
    found = certificates.certify({"parts": [{"report": report_of_integers(distance=1e-9)}]})
    schema_of(found | {"seal": ""}, SCHEMA, ())
    claim, left = found["claim"], found["bracket"]["given"]
    assert left + (1 + math.exp(claim["epsilon"])) * 1e-9 <= 1e-5
    assert left > 1e-5 * (1 - 0.02)
    assert claim["epsilon"] == ja.epsilon(ja.Gaussian(10.0), 100, left).upper
    assert found["noise_distance"] == 1e-9
    assert "the noise and its distance are proved" in found["verdict"]["reason"]
    said = {one["text"]: one["said_by"] for one in found["assumptions"]}
    words = " ".join(said)
    for what in (
        str(2**40),
        "7770e526",
        "bridge",
        "suffix",
        "10,000 values, for 98 parameters and 2 counts in each of 100 steps",
        "pseudorandom",
        "integers are right",
    ):
        assert what in words
    assert "real-valued" not in words
    assert next(by for text, by in said.items() if "table" in text) == "the trainer's report"
    certificates.write(tmp_path / "new", found, {})
    assert certificates.check(tmp_path / "new").status == "PROVED"


def test_other_noise_stays_assumed_beside_integers():
    report = report_of_integers()
    assert "real-valued" in texts({"parts": [{"report": report}, GAUSSIAN]})
    report["config"]["composition"]["mechanisms"].append({"type": "Laplace", "scale": 9.0})
    report["config"]["composition"]["steps"].append(3)
    assert "real-valued" in texts({"parts": [{"report": report}]})
    two = {"parts": [{"report": report_of_integers()}] * 2}
    assert "real-valued" not in texts(two)
    assert specs.parsed(two).distance == 2 * Fraction(specs.parsed(two).noises[0].distance)


REFUTED = {
    "another table": {"table_sha256": "0" * 64},
    "another variance": {"scale_squared": str(2**40 - 3)},
    "a bill of fewer values": {"total_variation": integer_noise.bill(9_999)},
    "fewer values than the steps draw": {"samples": 9_999},
    "fewer parameters": {"entries": 1, "counts": 1, "samples_per_step": 2},
    "another generator": {"generator": "Mersenne Twister seeded 42"},
    "no generator": {"generator": None},
    "less paid than the bill": {"distance": 1e-25},
    "what no trainer writes": {"total_variation": None},
}


@pytest.mark.parametrize("name", REFUTED)
def test_a_certificate_of_other_noise_is_refused(name, tmp_path):
    source = {"parts": [{"report": report_of_integers(**REFUTED[name])}]}
    with pytest.raises(ValueError, match="the referee refutes"):
        certificates.certify(source)
    # Whoever writes such a folder by other code gets no further.
    made = certificates.certify({"parts": [{"report": report_of_integers()}]})
    forged = made | claims.derive(source)
    forged["sha256"] = forged["sha256"] | {"spec": claims.digest(source)}
    certificates.write(tmp_path / "new", forged, {})
    assert certificates.check(tmp_path / "new").status == "REFUTED"


def verdict_on(report):
    bracket = {"quantity": "epsilon", "given": 1e-5, "lower": 0.0, "upper": 9.0}
    return claims.ask_referee(specs.parsed({"parts": [{"report": report}]}), bracket)


def test_steps_are_those_of_the_training_whatever_stands_first():
    """A query of one run before the mechanism of the steps does not make one step of them, nor does a cycle."""
    report = report_of_integers(steps=1, samples=100, total_variation=integer_noise.bill(100))
    made = report["config"]["composition"]
    for mechanisms, counts, made_steps in (
        ([{"type": "Laplace", "scale": 9.0}, *made["mechanisms"]], [1, 100], 1),
        (made["mechanisms"], [1], 100),
        (made["mechanisms"], [100], 1),
    ):
        made |= {"mechanisms": mechanisms, "steps": counts}
        report["final"]["steps"] = made_steps
        assert "drawn for 1 steps, and 100 are composed" in verdict_on(report)["reason"]


JUNK = (None, 0, -1, 2.5, math.inf, "", "1/0", "x" * 3000, [], [1], {}, {"a": 1}, True)


def test_a_report_of_anything_gets_a_message():
    """Each leaf and each object of a report is left out, and is replaced by what it is not: no error but ValueError."""
    whole, found = report_of_integers(), set()
    whole["config"] |= {"unit": "one user", "noise": "independent", "seed": "operating system"}
    places = {path[:length] for path in leaves(whole) for length in range(1, len(path) + 1)}
    assert {("config", "composition", "steps"), ("config", "noise_drawn", "generator")} <= places
    for path in sorted(places, key=str):
        for junk in ("left out", *JUNK):
            report = copy.deepcopy(whole)
            inner = functools.reduce(lambda value, key: value[key], path[:-1], report)
            if junk == "left out":
                del inner[path[-1]]
            else:
                inner[path[-1]] = junk
            try:
                made = verdict_on(report)
                if made["status"] != "REFUTED":
                    texts({"parts": [{"report": report}]})
                found.add(made["status"])
                words = made["reason"]
            except ValueError as error:
                words = str(error)
            assert 0 < len(words) <= 800, (path, junk, words)
    assert found == {"PROVED", "REFUTED"}
    empty = copy.deepcopy(whole)
    empty["config"]["composition"] |= {"mechanisms": [], "steps": []}
    with pytest.raises(ValueError, match=r"composition\.mechanisms is empty"):
        specs.parsed({"parts": [{"report": empty}]})


def test_a_distance_that_is_left_out_or_named_for_other_noise_is_refused():
    for distance, arithmetic in ((0.0, "integer"), (1e-9, "float64")):
        source = {"parts": [{"report": report_of_integers(distance, arithmetic=arithmetic)}]}
        with pytest.raises(ValueError, match=r"noise_distance = .* noise_drawn"):
            claims.derive(source)
    report = report_of_integers()
    del report["config"]["composition"]["noise_distance"]
    with pytest.raises(ValueError, match="noise_distance"):
        claims.derive({"parts": [{"report": report}]})
    with pytest.raises(ValueError, match="distance of integer noise cost more than delta"):
        claims.derive({"parts": [{"report": report_of_integers(distance=1e-4)}]})


def test_a_distance_is_added_after_the_conversion_to_epsilon():
    """Not as if it were a part of delta of the mechanism: what it costs grows with epsilon."""
    source = {"parts": [{"report": report_of_integers(distance=1e-8)}]}
    spec, made = specs.parsed(source), claims.derive(source)
    assert claims.follows(spec, made)
    for given in (1e-5, 1e-5 - 1e-8, 1e-5 - 2e-8):
        upper = ja.epsilon(ja.Gaussian(10.0), 100, given).upper
        epsilons = [*made["profile"]["epsilon"][:-1], upper]
        mutant = made | {
            "claim": made["claim"] | {"epsilon": upper},
            "profile": made["profile"] | {"epsilon": epsilons},
        }
        assert not claims.follows(spec, mutant | {"bracket": made["bracket"] | {"given": given, "upper": upper}})


COMPOSED = {
    "an Opacus history": ([[1.0, 0.01, 600], [1.5, 0.01, 400]], 1.5506),
    "a dp_event": (
        {"class_name": "SelfComposedDpEvent", "count": 100,
         "event": {"class_name": "GaussianDpEvent", "noise_multiplier": 10.0}}, 4.3772,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSED)
def test_what_others_write_is_a_spec(name, tmp_path):
    value, epsilon = COMPOSED[name]
    (tmp_path / "file.json").write_text(json.dumps(value))
    spec = specs.parsed(specs.combined([specs.read(str(tmp_path / "file.json"))], delta=1e-5))
    assert ja.epsilon(spec.mechanisms, spec.steps, spec.delta).upper == pytest.approx(epsilon, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.json", '{"delta": 1e-5, "parts": [], "delta": 1e-6}', "'delta' stands twice"),
        ("a.json", '{"delta": 1e-400, "parts": []}', "1e-400 is below"),
        ("a.toml", "delta = 1e-5\nparts = []\ndelta = 1e-6", "Cannot overwrite"),
        ("a.toml", "delta = 1e-4_00\nparts = []", "1e-4_00 is below"),
        ("a.yaml", "delta: 1.0e-5\nparts: [{steps: 1, steps: 2}]", "'steps' stands twice"),
        ("a.yml", "delta: 1.0e-400\nparts: []", "1.0e-400 is below"),
        ("a.json", '{"delta": "1e-400", "parts": [{"type": "gaussian", "noise_multiplier": 1}]}', "1e-400 is below"),
    ],
)
def test_a_key_that_stands_twice_and_a_number_that_is_read_as_zero_are_refused(name, text, what, tmp_path):
    if name.startswith("a.y"):
        pytest.importorskip("yaml")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=what):
        specs.parsed(specs.read(str(tmp_path / name)))


def test_toml_yaml_and_json_say_the_same(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"delta": 1e-5, "parts": [GAUSSIAN, {"opacus": "h.json"}]}))
    (tmp_path / "h.json").write_text("[[1.0, 0.01, 600]]")
    (tmp_path / "a.toml").write_text(
        'delta = 1e-5\n[[parts]]\ntype = "gaussian"\nnoise_multiplier = 10.0\ncount = 100\n'
        '[[parts]]\nopacus = "h.json"\n'
    )
    (tmp_path / "a.yaml").write_text(
        "delta: 1.0e-5\nparts:\n- {type: gaussian, noise_multiplier: 10.0, count: 100}\n- {opacus: h.json}\n"
    )
    read = [specs.read(str(tmp_path / name)) for name in ("a.json", "a.toml")]
    assert read[0]["parts"] == read[1]["parts"] == [GAUSSIAN, {"opacus": [[1.0, 0.01, 600]]}]
    pytest.importorskip("yaml")
    assert specs.read(str(tmp_path / "a.yaml")) == read[0]
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as file:
        file.writestr("archive/data.pkl", b"nonsense")
    with pytest.raises(ValueError, match="no checkpoint"):
        specs.read(str(tmp_path / "c.pt"))


def test_batches_and_epochs_are_a_rate_and_steps_rounded_to_the_safe_side():
    sampled = {"type": "gaussian", "noise_multiplier": 1.0, "sampling": "poisson", "epochs": 10}
    (release,) = specs.parsed({"parts": [sampled | {"batch_size": 64, "examples": 6000}]}).releases
    assert type(release.mechanism).__name__ == "PoissonSubsampledGaussian"
    assert 0 <= Fraction(release.mechanism.sampling_rate) - Fraction(64, 6000) < 1e-17
    assert release.count == 938
    again = specs.parsed({"parts": [sampled | {"sampling_rate": "64/6000"}, sampled | {"sampling_rate": "64/6000"}]})
    assert again.steps == (2 * 938,)
    assert again.releases[0].mechanism == release.mechanism


@pytest.mark.exhaustive
def test_groups_and_selections_compose():
    selected = {"type": "RepeatAndSelect", "mechanism": {"type": "gaussian", "noise_multiplier": 5.0}, "steps": 1,
                "trials": {"type": "geometric", "mean": 10.0}}  # fmt: skip
    spec = specs.parsed({"parts": [selected, GAUSSIAN], "relation": "zero_out"})
    assert [type(one).__name__ for one in spec.mechanisms] == ["RepeatAndSelect", "Gaussian"]
    assert mechanism_of(record_of(spec.mechanisms[0])) == spec.mechanisms[0]
    assert ja.epsilon(spec.mechanisms, spec.steps, 1e-5, relation="zero_out").upper < 20
    assert specs.parsed({"parts": [GAUSSIAN], "group": 2}).mechanisms[0].noise_multiplier == 5.0


REPORT = {
    "config": {"sampler": "PoissonSampler", "composition": {
        "mechanisms": [{"type": "Gaussian", "noise_multiplier": 10.0}], "steps": [100],
        "relation": "add_or_remove", "cut_probability": 0.0}},
    "final": {"delta": 1e-5, "guarantee": ""},
}  # fmt: skip

WRONG = {
    "shuffled": ({"parts": [{"type": "dp-sgd", "noise_multiplier": 1.0, "sampling_rate": 0.1, "sampling": "shuffled"}]},
                 "no certificate: shuffled batches are no Poisson samples.*zero_out"),
    "shuffled by Opacus": ({"parts": [{"opacus": [[1.0, 0.1, 5]], "sampling": "shuffled"}]}, "poisson_sampling=False"),
    "settings from results": ({"parts": [GAUSSIAN], "fixed": False}, "followed from results.*jaxacct.filters"),
    "adaptive run": (
        {"parts": [{"report": {"config": {"composition": None}, "final": {"guarantee": "G."}}}]}, "no certificate.*G."
    ),
    "older report": ({"parts": [{"report": {"config": {}, "final": {}}}]}, "older version"),
    "no sampling said": (
        {"parts": [{"type": "gaussian", "noise_multiplier": 1.0, "sampling_rate": 0.1}]}, "sampling = 'poisson'"
    ),
    "sampling that is not": (
        {"parts": [{"type": "dp-sgd", "noise_multiplier": 1.0, "sampling_rate": 0.1, "sampling": "none"}]},
        "is of poisson",
    ),
    "key": ({"parts": [GAUSSIAN], "relations": "add"}, "did you mean relation"),
    "type": ({"parts": [{"type": "laplac", "scale": 1}]}, r"parts\[0\].*did you mean Laplace"),
    "field": ({"parts": [{"type": "laplace", "sigma": 1}]}, "no field 'sigma': give scale"),
    "nothing": ({"parts": []}, "give a list of at least one"),
    "two quantities": ({"parts": [GAUSSIAN], "delta": 1e-5, "epsilon": 1.0}, "give the one"),
    "two relations": ({"parts": [{"type": "GaussianWithoutReplacement", "noise_multiplier": 1.0, "sampling_rate": 0.1}],
                       "relation": "add"}, "relation = 'add' is not supported by GaussianWithoutReplacement"),
    "batch alone": ({"parts": [{"type": "dp-sgd", "noise_multiplier": 1.0, "batch_size": 5}]}, "go together"),
    "count and epochs": (
        {"parts": [{"type": "dp-sgd", "noise_multiplier": 1.0, "sampling_rate": 0.1, "epochs": 1, "count": 3}]},
        "give one of the two",
    ),
    "half a step": ({"parts": [GAUSSIAN | {"count": 2.5}]}, "count = 2.5 .* whole number"),
    "event": ({"parts": [{"dp_event": {"class_name": "UnsupportedDpEvent"}}]}, "no mechanism here"),
    "group of a report": ({"parts": [{"report": REPORT}], "group": 2}, "cut batches is for neighbours"),
    "seed told": (
        {"parts": [{"report": REPORT | {"config": REPORT["config"] | {"seed": 3}}}]}, "tells the seed"
    ),
    "settings from results, in words": ({"parts": [GAUSSIAN], "fixed": "no"}, "followed from results"),
    "no text": ({"parts": [GAUSSIAN], "unit": "\x1b[2Jone"}, "no line of text"),
    "no unit": ({"parts": [GAUSSIAN], "unit": ""}, "no line of text"),
    "group in letters": ({"parts": [GAUSSIAN], "group": "2"}, "group = '2'"),
    "no values": ({"parts": [{"type": "gaussian", "noise_multiplier": []}]}, r"noise_multiplier = \[\]"),
    "event with more": (
        {"parts": [{"dp_event": {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0, "count": 9}}]},
        "no field 'count'",
    ),
    "no delta": ({"parts": [GAUSSIAN]}, "delta is missing"),
    "no noise": ({"parts": [{"type": "pure-dp", "epsilon": "inf"}], "delta": 1e-5}, "no finite epsilon"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_certified_is_refused_with_the_reason(name):
    given, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        claims.derive(given)


def test_the_order_of_a_spec_decides_the_bytes_and_the_key_that_is_refused():
    """A set has another order in each process: so would the certificate's bytes, and the key that an error names."""
    keys = ["unit", "group", "relation", "delta", "fixed"]
    spec = {"parts": [GAUSSIAN]} | dict(zip(keys, ("one", 2, "add", 1e-5, "yes"), strict=True))
    assert list(specs.combined([spec])) == ["parts", *keys]
    wrong = {f"word{number}": number for number in range(6)}
    with pytest.raises(ValueError, match="key 'word0'"):
        specs.parsed(wrong | {"parts": [GAUSSIAN]})


def test_the_hash_of_the_code_is_that_of_its_files(made):
    package = pathlib.Path(ja.__file__).parent
    assert len(list(package.rglob("*.py"))) > 100
    assert made["sha256"]["code"] == claims.code_digest() != hashlib.sha256().hexdigest()
    assert made["sha256"]["spec"] == claims.digest(made["spec"])


@pytest.mark.parametrize("relation", ["add_or_remove", "remove", "add"])
def test_the_picture_is_nowhere_below_what_is_proved(relation):
    profile = {"epsilon": [0.2, 0.5, 1.1, 1.9, 2.1], "delta": [0.3, 0.1, 0.01, 1e-3, 1e-5]}
    rates, success = claims.attack_curve({"profile": profile, "relation": relation})
    assert (rates[0], rates[-1]) == (0.0, 1.0)
    assert rates == sorted(rates)
    for x in np.random.default_rng(0).uniform(size=2000) ** 3:
        best = min(
            min([math.exp(e) * x + d] * (relation != "add") + [1 - math.exp(-e) * (1 - d - x)] * (relation != "remove"))
            for e, d in zip(*profile.values(), strict=True)
        )
        assert min(best, 1.0) <= np.interp(x, rates, success) <= min(best, 1.0) + 1e-11


def test_what_is_printed_is_what_the_page_says(made):
    """The page for the screen has every fact as it is; the one for paper rounds numbers outward, and says all else."""

    def texts(content):
        if isinstance(content, str):
            return [content]
        parts = content.values() if isinstance(content, dict) else content
        return [text for part in parts if not isinstance(part, float) for text in texts(part)]

    on_paper = "\n".join(texts(folders.for_print(made)))
    shown = html.unescape(folders.html(made, None))
    assert all(text in shown for pair in folders.facts(made) for text in pair)
    verdict = made["verdict"]
    for fact in (made["route"], verdict["status"], verdict["reason"], made["unit"], made["sha256"]["code"]):
        assert fact in on_paper
    assert f"epsilon = {rounded_up(made['claim']['epsilon'])}" in on_paper
    for one in made["assumptions"]:
        assert one["text"].removesuffix(".") in on_paper
        assert one["void_if"].removesuffix(".") in on_paper
    assert all(what in shown for _, what in folders.releases_of(made))


@pytest.mark.exhaustive
def test_nothing_is_imported_that_is_not_read():
    """torch takes seconds to import: a spec without a history of Opacus has no need of it, nor has one with it."""
    script = (
        "import sys; from jaxacct import specs; "
        "specs.parsed({'parts': [{'opacus': [[1.0, 0.01, 5]]}], 'delta': 1e-5}); "
        "assert not {'torch', 'opacus'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
