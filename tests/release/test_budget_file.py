"""The file of a budget: what got out is always paid, by however many processes at once, whatever ends them."""

import contextlib
import json
import os
import pathlib
import random
import signal
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers import releasing
from helpers.mutants import mutant

import jaxacct as ja
from jaxacct import json_files, release

TERMS = {"epsilon": 1.0, "delta": 1e-6, "unit": "one person"}
ONE = ja.DiscreteLaplace(20.0)


@pytest.fixture
def path(tmp_path):
    release.Budget.begin(tmp_path / "year.jsonl", **TERMS)
    return tmp_path / "year.jsonl"


def filled(path, count=3, module=release):
    budget = module.Budget(path)
    for _ in range(count):
        budget.pay("count", ONE)
    return budget


# What is written.


def test_a_budget_says_what_was_paid(path):
    budget = filled(path)
    budget.pay("a histogram", ONE, 2)
    account = budget.read()
    assert (account.epsilon, account.delta, account.unit, account.relation) == (
        1.0,
        1e-6,
        "one person",
        "add_or_remove",
    )
    assert [paid.number for paid in account.releases] == [1, 2, 3, 4]
    assert [paid.runs for paid in account.releases] == [1, 1, 1, 2]
    assert {paid.mechanism for paid in account.releases} == {ONE}
    ledger = ja.filters.RenyiFilter(1.0, 1e-6)
    for _ in range(5):
        _, ledger = ledger.spend(ONE)
    assert account.spent == pytest.approx(float(ledger.epsilon()), rel=1e-12)
    assert account.releases[0].remaining == int(ledger.remaining(ONE)) == 14
    assert account.releases[3].remaining == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_left_is_what_is_granted(path):
    budget = release.Budget(path)
    budget.pay("count", ONE)
    left = budget.read().releases[0].remaining
    for _ in range(left):
        budget.pay("count", ONE)
    assert budget.read().releases[0].remaining == 0
    with pytest.raises(
        ValueError, match=r"19 releases have spent .* of 1 at delta = 1e-06.* 2 times as much"
    ) as caught:
        budget.pay("count", ONE)
    assert len(str(caught.value)) <= 600
    budget.pay("count", ja.DiscreteLaplace(40.0))


@pytest.mark.parametrize(
    "mechanism",
    [ja.DiscreteGaussian(1.0), ja.ZeroConcentratedDP(0.5), ja.ExponentialMechanism(3.0), ja.Gaussian(0.1)],
)
def test_a_refusal_says_how_much_noise_would_do(path, mechanism):
    before = path.read_bytes()
    said = "pays for no such" if isinstance(mechanism, ja.Gaussian) else "times as much noise would be granted"
    with pytest.raises(ValueError, match=said):
        release.Budget(path).pay("x", mechanism)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["count", "histogram", "sum", "mean", "quantile"])
def test_a_refusal_draws_nothing(path, kind, monkeypatch):
    monkeypatch.setattr(release.secrets, "randbelow", lambda n: pytest.fail("something was drawn"))
    bounds = {"lower": 0.0, "upper": 1.0}
    options = {
        "count": {"scale": 0.1},
        "histogram": {"scale": 0.1, "categories": [0.0, 1.0]},
        "sum": {"scale": 0.1, **bounds},
        "mean": {"scale": 0.01, "size": 10, "noise": ja.DiscreteGaussian, **bounds},
        "quantile": {"level": 0.5, "candidates": [0.0, 1.0], "epsilon": 9.0},
    }
    before = path.read_bytes()
    values = np.ones(9, bool) if kind == "count" else np.ones(9)
    with pytest.raises(ValueError, match="is refused, and nothing was drawn"):
        vars(release)[kind](values, release.Budget(path), **options[kind])
    assert path.read_bytes() == before


def check_order(module, path, monkeypatch):
    """Asserts that the release's line is in the file, and was sent to the disk, when its first integer is drawn."""
    module.Budget.begin(path, **TERMS)
    synchronized, drawn = [], []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synchronized.append(path.stat().st_size) or fsync(descriptor))
    below = module.secrets.randbelow

    def draw(n):
        records = module.Budget(path).read().releases
        drawn.append((len(records), bool(synchronized) and synchronized[-1] == path.stat().st_size))
        return below(n)

    monkeypatch.setattr(module, "secrets", type("Source", (), {"randbelow": staticmethod(draw)}))
    budget = module.Budget(path)
    module.count([True], budget, scale=20.0)
    module.quantile([1.0], budget, level=0.5, candidates=[1.0, 2.0], epsilon=0.1)
    assert {paid for paid, _ in drawn} == {1, 2}
    assert drawn[0][0] == 1
    assert all(safe for _, safe in drawn)


LATE = (
    "    number = budget.pay(name, mechanism, runs)\n    several = [totals] if isinstance(totals, int) else totals\n"
    "    noisy = [total + draw(Fraction(own), secrets.randbelow) for total in several]\n"
)
PAY, *REST = LATE.splitlines(keepends=True)


def test_noise_is_drawn_after_payment(tmp_path, monkeypatch):
    check_order(release, tmp_path / "new.jsonl", monkeypatch)


@pytest.mark.parametrize(("old", "new"), [(LATE, "".join([*REST, PAY])), ("    os.fsync(file.fileno())\n", "")])
def test_payment_after_drawing_is_noticed(tmp_path, monkeypatch, old, new):
    with pytest.raises((AssertionError, ValueError)):
        check_order(mutant("jaxacct.release", (old, new)), tmp_path / "new.jsonl", monkeypatch)


# What is damaged.


def check_cuts(module, path):
    """Asserts that a last line that was cut does not count, and that one that is whole does; and that both go on."""
    filled(path, 2).pay("count, of a long name" * 9, ONE)
    content = path.read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    for cut in [*range(start, len(content), 37), len(content) - 2, len(content) - 1, len(content)]:
        path.write_bytes(content[:cut])
        paid = 3 if cut >= len(content) - 1 else 2
        assert len(module.Budget(path).read().releases) == paid
        assert module.Budget(path).pay("more", ONE) == paid + 1
        lines = path.read_bytes().splitlines()
        assert len(lines) == paid + 2
        assert [json.loads(line)["number"] for line in lines[1:]] == [*range(1, paid + 2)]
        assert len(module.Budget(path).read().releases) == paid + 1


def test_a_last_line_that_was_cut(path):
    check_cuts(release, path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("                kept -= len(line)\n", "                pass\n"),  # what was cut stays in the line
        ("elif place == len(lines) - 1 and", "elif True or"),  # damage anywhere counts as a cut
        ("            file.truncate()\n", ""),
        ('b"" if content[kept - 1 : kept] == b"\\n" else b"\\n"', 'b""'),
        ("enumerate(lines):", "enumerate(lines[:-1]):"),  # a whole line without its end is left out
    ],
)
def test_a_cut_that_is_taken_wrongly_is_noticed(path, old, new):
    module = mutant("jaxacct.release", (old, new))

    def ask():
        check_cuts(module, path)
        check_damage(module, path)

    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        ask()


def check_damage(module, path):
    """Asserts that a file whose inner lines are not as they were pays for nothing."""
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    last = content.rindex(b"\n", 0, -1)
    damaged = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(3, last, 29)]
    damaged += [b"".join(lines[:1] + lines[2:]), b"".join([lines[0], lines[2], lines[1], *lines[3:]])]
    damaged += [b"".join([*lines, lines[-1]]), b"".join([*lines[:2], b"\n", *lines[2:]]), content + b"\n"]
    # A last line that is whole, but for its end and a byte, was not cut.
    damaged += [content[:-1] + b"\x0b", content[: last + 9] + bytes([content[last + 9] ^ 1]) + content[last + 10 : -1]]
    damaged += [content.replace(b'"epsilon": 1.0', b'"epsilon": 9.0'), content[:-9] + b"\n", b"\0" * 40 + b"\n"]
    for changed in damaged:
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"is damaged in line|is no budget"):
            module.Budget(path).pay("more", ONE)
        assert path.read_bytes() == changed
    path.write_bytes(content)


def test_a_damaged_file_pays_for_nothing(path):
    filled(path)
    check_damage(release, path)
    assert len(release.Budget(path).read().releases) == 3


def test_damage_that_is_overlooked_is_noticed(path):
    module = mutant("jaxacct.release", ("(before + json_files.dumps(record))", "json_files.dumps(record)"))
    filled(path, module=module)
    with pytest.raises(pytest.fail.Exception):
        check_damage(module, path)


@pytest.mark.parametrize("content", [b"", b"{}", b"{}\n", b"a,b\n1,2\n", b"[1]\n", b'{"digest": 3}\n'])
def test_other_files_are_no_budgets(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged in line 1|is no budget"):
        release.Budget(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        release.Budget(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("terms", "word"),
    [
        ({"epsilon": -1.0}, "epsilon"), ({"epsilon": float("nan")}, "epsilon"), ({"epsilon": float("inf")}, "epsilon"),
        ({"epsilon": 0.0}, "epsilon"), ({"delta": 1.0}, "delta"), ({"delta": -1e-6}, "delta"), ({"unit": " "}, "unit"),
        ({"relation": "zero_out"}, "relation"), ({"unit": 3}, "unit"), ({"unit": "\ud800"}, "unit"),
    ],
)  # fmt: skip
def test_a_wrong_budget_is_not_begun(tmp_path, terms, word):
    with pytest.raises(ValueError, match=word):
        release.Budget.begin(tmp_path / "year.jsonl", **TERMS | terms)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [None, 5, {1: 1, "1": 2}, "", " ", "\ud800"])
def test_a_name_is_words(path, name):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"name = .*say in words what is released"):
        release.Budget(path).pay(name, ONE)
    with pytest.raises(TypeError, match="mechanism"):
        release.Budget(path).pay("count", 20.0)
    assert path.read_bytes() == before


REPLACED = [
    ja.PoissonSubsampledGaussian(2.0, 0.01), ja.GaussianWithoutReplacement(4.0, 0.01), ja.Gaussian(20.0),
    ja.Laplace(20.0), ja.PureDP(0.05), ja.ExponentialMechanism(0.05), ja.ZeroConcentratedDP(1e-3),
    ja.RandomizedResponse(0.5),
]  # fmt: skip


def check_relation(module, folder):
    """Asserts that a budget of replacements charges what each mechanism costs under "replace"."""
    for place, mechanism in enumerate(REPLACED):
        terms = TERMS | {"epsilon": 8.0, "relation": "replace"}
        budget = module.Budget.begin(folder / f"{place}.jsonl", **terms)
        budget.pay("x", mechanism)
        account = budget.read()
        ledger = ja.filters.RenyiFilter(8.0, 1e-6)
        left = int(ledger.spend(mechanism, relation="replace")[1].remaining(mechanism, relation="replace"))
        assert account.releases[0].remaining == left
        assert account.spent >= float(ja.rdp.epsilon(mechanism, 1, 1e-6, relation="replace")) * (1 - 1e-12)


def test_a_budget_charges_for_its_relation(tmp_path):
    check_relation(release, tmp_path)


def test_another_relation_is_noticed(tmp_path):
    asked = "isinstance(mechanism, NoiseOnIntegers)"
    with pytest.raises((AssertionError, ValueError)):
        check_relation(mutant("jaxacct.release", (asked, "True")), tmp_path)


def test_a_mechanism_without_the_relation_is_refused(tmp_path):
    budget = release.Budget.begin(tmp_path / "year.jsonl", **TERMS | {"relation": "replace"})
    before = budget.path.read_bytes()
    for wrong in (ja.TruncatedPoissonGaussian(1.0, 0.01, overflow_probability=1e-9), ja.DiscretePair):
        with pytest.raises((ValueError, TypeError), match=r"relation = 'replace' is not supported|mechanism ="):
            budget.pay("x", wrong)
    assert budget.path.read_bytes() == before
    budget.pay("a sum", ja.DiscreteGaussian(200.0, 2))  # of a sensitivity to a replacement
    assert budget.read().spent == pytest.approx(
        float(ja.filters.RenyiFilter(1.0, 1e-6).spend(ja.Gaussian(100.0))[1].epsilon())
    )
    with pytest.raises(ValueError, match="8 times as much noise"):
        budget.pay("a sum", ja.DiscreteGaussian(2.0, 2))


@pytest.mark.parametrize("mechanism", [ja.ApproximateDP(0.1, 1e-8), ja.ApproximateDP(0.1, 1e-30)])
def test_a_delta_of_its_own_is_not_paid(path, mechanism):
    with pytest.raises(ValueError, match="begin a budget with a delta that is less by it") as caught:
        release.Budget(path).pay("a model", mechanism)
    assert "Give more noise" not in str(caught.value)
    assert len(str(caught.value)) <= 600


def test_no_budget_is_begun_twice(path):
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        release.Budget.begin(path, **TERMS)
    assert path.read_bytes() == before


def test_another_budget_in_its_place_is_refused(path):
    budget = release.Budget(path)
    path.unlink()
    release.Budget.begin(path, **TERMS | {"epsilon": 3.0})
    with pytest.raises(ValueError, match="another budget"):
        budget.pay("count", ONE)


def test_a_file_that_may_not_be_written_pays_for_nothing_and_can_be_read(path, monkeypatch):
    budget, opened = filled(path), os.open

    def refuse(name, flags, *mode):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied", str(name))
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(release.secrets, "randbelow", lambda n: pytest.fail("something was drawn"))
    with pytest.raises(PermissionError):
        release.count([True], budget, scale=20.0)
    assert len(budget.read().releases) == 3


def test_a_network_file_system_lets_read(path, monkeypatch):
    """There an exclusive lock needs a file that is open for writing."""
    fcntl = pytest.importorskip("fcntl")
    budget, lock, asked = filled(path), fcntl.flock, []

    def flock(file, kind):
        asked.append(kind)
        if kind & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        lock(file, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert len(budget.read().releases) == 3
    budget.pay("count", ONE)
    assert asked == [fcntl.LOCK_SH, fcntl.LOCK_EX]


def test_a_full_disk_draws_nothing(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(release.secrets, "randbelow", lambda n: pytest.fail("something was drawn"))
    with pytest.raises(OSError, match="No space"):
        release.count([True], release.Budget(path), scale=20.0)


def test_a_file_beyond_its_budget_pays_for_nothing(path):
    """As if a later version found a mechanism to cost more than it said: the filter would leave it out."""
    filled(path, 1)
    *lines, last = path.read_bytes().splitlines()
    record = json.loads(last)
    del record["digest"]
    record["mechanism"]["scale"] = 0.01
    path.write_bytes(b"\n".join(lines) + b"\n" + release._seal(json.loads(lines[-1])["digest"], record))
    with pytest.raises(ValueError, match="more than its budget"):
        release.Budget(path).pay("count", ONE)


def test_a_pure_budget_takes_pure_mechanisms(tmp_path):
    budget = release.Budget.begin(tmp_path / "pure.jsonl", **TERMS | {"delta": 0.0})
    for _ in range(19):
        budget.pay("count", ONE)
    assert budget.read().releases[0].remaining in (0, 1)
    assert 0.95 <= budget.read().spent <= 0.9501
    with pytest.raises(ValueError, match="is refused"):
        budget.pay("sum", ja.DiscreteGaussian(1000.0))


# Several at once.


def check_threads(module, path, monkeypatch):
    """Asserts that two that pay at once pay one after the other."""
    write = module._append
    monkeypatch.setattr(module, "_append", lambda file, line: time.sleep(0.05) or write(file, line))
    numbers, failed = [], []

    def pay():
        with contextlib.suppress(ValueError):
            numbers.extend(module.Budget(path).pay("count", ONE) for _ in range(3))
            return
        failed.append(1)

    threads = [threading.Thread(target=pay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
    assert len(module.Budget(path).read().releases) == 6


def test_two_at_once(path, monkeypatch):
    check_threads(release, path, monkeypatch)


def test_a_lock_left_out_is_noticed(path, monkeypatch):
    module = mutant(
        "jaxacct.release",
        ("json_files.lock(self.path, wait=True, flags=os.O_RDWR)", 'open(self.path, "r+b")'),
    )
    with pytest.raises((AssertionError, ValueError)):
        check_threads(module, path, monkeypatch)


def test_a_lock_is_refused_where_nobody_waits(path):
    with json_files.lock(path, wait=True), pytest.raises(OSError):
        json_files.lock(path)
    json_files.lock(path).close()


def start(path, published):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen(
        [sys.executable, releasing.__file__, path, published], stdout=subprocess.PIPE, env=environment
    )
    assert worker.stdout.readline() == b"ready\n"
    return worker


def check_published(path, published):
    """Asserts that whatever got out is paid, with its noise, once; and returns how many got out, and were paid."""
    released = [line.split() for line in published.read_text().splitlines()]  # first: the others go on
    paid = release.Budget(path).read()
    assert len({number for number, _, _ in released}) == len(released)
    for number, scale, _ in released:
        assert paid.releases[int(number) - 1].mechanism == ja.DiscreteLaplace(float(scale))
    ledger = ja.filters.RenyiFilter(paid.epsilon, paid.delta)
    for _, scale, _ in released:
        granted, ledger = ledger.spend(ja.DiscreteLaplace(float(scale)))
        assert granted
    assert float(ledger.epsilon()) <= paid.spent <= paid.epsilon
    return len(released), len(paid.releases)


def test_a_process_that_is_killed_beside_another(tmp_path):
    path, published = tmp_path / "year.jsonl", tmp_path / "published"
    budget = release.Budget.begin(path, **TERMS | {"epsilon": 3.0})
    published.touch()
    worker = start(path, published)
    try:
        for _ in range(8):
            releasing.publish(budget, published, 20.0)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    releasing.publish(budget, published, 20.0)
    out, paid = check_published(path, published)
    assert 9 <= out <= paid <= out + 1


@pytest.mark.exhaustive
def test_a_year_by_two_processes_that_are_killed_twenty_times(tmp_path):
    path, published = tmp_path / "year.jsonl", tmp_path / "published"
    release.Budget.begin(path, **TERMS | {"epsilon": 4.0})
    published.touch()
    rng = random.Random(7)
    workers, kills = [start(path, published) for _ in range(2)], 0
    try:
        while kills < 20:
            time.sleep(rng.uniform(0, 0.06))
            chosen = rng.randrange(2)
            workers[chosen].send_signal(signal.SIGKILL)
            workers[chosen].wait()
            kills += 1
            check_published(path, published)
            workers[chosen] = start(path, published)
        assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    out, paid = check_published(path, published)
    assert paid >= 60
    assert paid - 20 <= out <= paid
    print(f"{out} releases got out, {paid} were paid, after {kills} kills")


def test_a_path_may_be_text(path):
    assert release.Budget(str(path)).path == pathlib.Path(path)
