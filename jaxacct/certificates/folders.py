"""Folders: a certificate as a page for readers, as a sealed folder, and the check of one elsewhere.

In reading order:

- :func:`html` to :func:`without_picture`: the page, of the template ``certificate.html``, and that for paper.
- :func:`write` to :func:`text_of`: the sealed folder.
- :func:`check`: the check of a folder.
"""

from __future__ import annotations

import base64
import hashlib
import html as escaping
import importlib.resources
import math
import os
import pathlib
import re
import secrets
import shutil
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxacct import json_files
from jaxacct.certificates import claims
from jaxacct.certificates.claims import PACKAGES, SCHEMA, add_words, code_digest, digest, follows
from jaxacct.certificates.specs import parsed
from jaxacct.display import rounded_down, rounded_up, spell_count
from jaxacct.json_files import synchronize, write_whole

# ----------------------------------------------------------------------------------------------------
# The page of a certificate: one HTML file for a browser, which loads nothing from elsewhere.
# ----------------------------------------------------------------------------------------------------

HTML = "certificate.html"
"""The page's name in a folder."""


def html(made: dict[str, Any], picture: bytes | None) -> str:
    """Returns the page; ``picture`` is a PNG, or None for a page without one."""
    template = (importlib.resources.files("jaxacct.certificates") / HTML).read_text(encoding="utf-8")
    image = ""
    if picture is not None:
        data = base64.b64encode(picture).decode()
        image = f'<img alt="The most successful attack" src="data:image/png;base64,{data}">'
    assumed = [(one["text"], one["said_by"], one["void_if"]) for one in made["assumptions"]]
    return string.Template(template).substitute(
        statement=escaping.escape(made["statement"]),
        picture=image,
        releases=_rows(releases_of(made)),
        assumptions=_rows(assumed),
        facts=_rows(facts(made), first="th"),
        hashes=escaping.escape(hashes(made)),
    )


def _rows(table: Iterable[Sequence[str]], first: str = "td") -> str:
    """Returns the rows of a table of texts, whose first cell in each may be a head."""
    lines = []
    for row in table:
        kinds = [first, *["td"] * (len(row) - 1)]
        cells = (f"<{kind}>{escaping.escape(cell)}</{kind}>" for kind, cell in zip(kinds, row, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    return "".join(lines)


def facts(made: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the proved facts and their grounds, as names and texts."""
    claim, bracket, verdict = made["claim"], made["bracket"], made["verdict"]
    return [
        ("epsilon, delta", f"{claim['epsilon']!r}, {claim['delta']!r}"),
        (f"bracket of {bracket['quantity']} at {bracket['given']!r}", f"{bracket['lower']!r} to {bracket['upper']!r}"),
        ("by", made["route"]),
        ("referee", f"{verdict['status']}: {verdict['reason']}"),
        ("relation, unit, group", f"{made['relation']}, {made['unit']}, {made['group']}"),
        ("made", ", ".join([made["made"], *(f"{name} {version}" for name, version in made["versions"].items())])),
    ]


def releases_of(made: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the releases: how often each was made, and the mechanism."""
    return [(str(one["count"]), json_files.dumps(one["mechanism"])) for one in made["releases"]]


def hashes(made: dict[str, Any]) -> str:
    """Returns the sentence that names the hashes, and the command that checks a folder."""
    known = made["sha256"]
    return f"spec {known['spec']}, code {known['code']}. Check this folder: jaxacct certify --check FOLDER."


def for_print(made: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a page for paper, but for its picture: its texts, and its tables as their fields.

    Mechanisms stand there in words; of more than 12 the first ones, and a word on the others.
    """
    claim, verdict, bracket = made["claim"], made["verdict"], made["bracket"]
    releases = [
        (_times(one["count"]), (said := in_words(one["mechanism"]))[0].upper() + said[1:]) for one in made["releases"]
    ]
    if (more := len(releases) - 11) > 1:
        releases = [*releases[:11], ("", f"and {more} more mechanisms, which {CERTIFICATE} lists.")]
    group = f", up to {made['group']} records" if made["group"] > 1 else ""
    proof = "proved by an independent program" if verdict["status"] == "PROVED" else "not proved independently"
    assumed: list[tuple[str, ...]] = []
    notes: list[tuple[str, str]] = []
    # A sentence of the table ends with one full stop, whoever wrote it; long words of the spec become notes below.
    for one in made["assumptions"]:
        cells = [f"{one[name].rstrip().removesuffix('.')}." for name in ("text", "said_by", "void_if")]
        for i, cell in enumerate(cells):
            if len(cell) > 240:
                notes.append((f"note {len(notes) + 1}", cell))
                cells[i] = (
                    f"{cell.partition(':')[0][:40]}: note {len(notes)}, below." if i == 1 else f"Note {len(notes)}."
                )
        assumed.append(tuple(cells))
    noted = [{"heading": "Notes", "shares": (0.16, 0.84), "rows": notes}] if notes else []
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return {
        "title": "Certificate of differential privacy",
        "date": f"made {made['made'][:10]}",
        "headline": f"epsilon = {rounded_up(claim['epsilon'])} at delta = {rounded_up(claim['delta'])}",
        "subtitle": f"for {made['unit']}{group}; neighbours: {made['relation'].replace('_', ' ')}; {proof}",
        "text": made["statement"],
        "sections": [
            {"heading": "What was released", "shares": (0.16, 0.84), "rows": releases},
            {
                "heading": "What this assumes, who says so, and what would void it", "shares": (0.42, 0.22, 0.36),
                "rows": assumed, "names": ("assumed", "said by", "void if"),
            },
            *noted,
            {
                "heading": "What is proved, and how", "shares": (0.16, 0.84),
                "rows": [
                    (bracket["quantity"], f"between {rounded_down(bracket['lower'], '.12g')} and "
                     f"{rounded_up(bracket['upper'], '.12g')}, at {bracket['given']!r}"),
                    ("by", made["route"]),
                    ("referee", f"{verdict['status']}: {verdict['reason']}"),
                    ("programs", versions),
                ],
            },
        ],
        "footer": hashes(made),
    }  # fmt: skip


def _times(count: Any) -> str:
    """Returns a number of runs in words; of a sequence, that of all."""
    return spell_count(sum(count), "time") + ", in turn" if isinstance(count, list) else spell_count(count, "time")


def in_words(record: Any) -> str:
    """Returns a mechanism, or a value of one, in words: the kind, and its fields; of long lists the first few.

    >>> in_words({"type": "PoissonSubsampledGaussian", "noise_multiplier": 1.0, "sampling_rate": 64 / 6000})
    'Poisson subsampled Gaussian, noise multiplier 1, sampling rate 0.0106666666667'
    >>> in_words({"type": "RepeatAndSelect", "mechanism": [{"type": "PureDP", "epsilon": 0.5}], "steps": [3]})
    'repeat and select, mechanism (pure DP, epsilon 0.5), steps 3'
    """
    if isinstance(record, dict):
        names = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", record["type"]).split()
        kind = " ".join(name if name in ("Gaussian", "Laplace", "Poisson", "DP") else name.lower() for name in names)
        return ", ".join([kind, *(f"{name.replace('_', ' ')} {_inner(value)}"
                                  for name, value in record.items() if name != "type")])  # fmt: skip
    if isinstance(record, list):
        shown = ", ".join(map(_inner, record[:4]))
        return shown if len(record) <= 4 else f"{shown} ... ({len(record):,} in all)"
    return f"{record:.12g}" if isinstance(record, (int, float)) and not isinstance(record, bool) else str(record)


def _inner(value: Any) -> str:
    """Returns what stands within another: mechanisms and laws in brackets."""
    return f"({in_words(value)})" if isinstance(value, dict) else in_words(value)


def without_picture(text: str) -> str:
    """Returns a page without its picture, which no check compares, since drawing programs differ."""
    return re.sub(r'<img [^>]*src="data:image/png;base64,[^"]*">', "", text, count=1)


# ----------------------------------------------------------------------------------------------------
# The folder of a certificate: sealed, and written whole or not at all.
# ----------------------------------------------------------------------------------------------------

CERTIFICATE = "certificate.json"
"""The name of the sealed file, by which all others in a folder are checked."""


def write(
    folder: str | os.PathLike[str], made: dict[str, Any], files: dict[str, bytes], *, overwrite: bool = False
) -> str:
    """Writes a certificate with its other files, all of it or nothing, and returns its seal.

    Args:
        folder: the folder to write; it is created, with the folders above it.
        made: what :func:`.certify` returned.
        files: further files by their names; the certificate holds their hashes.
        overwrite: whether to replace a certificate that is there.

    Raises ValueError where the folder exists and is not to be replaced, or holds no certificate.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     seal = write(f"{place}/new", {"sha256": {"files": {}}}, {"note.txt": b"note"})
    ...     len(seal), sorted(os.listdir(f"{place}/new"))
    (64, ['certificate.json', 'note.txt'])
    """
    path = pathlib.Path(folder)
    check_free(path, overwrite=overwrite)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    unsealed = made | {"sha256": made["sha256"] | {"files": hashes}}
    sealed = unsealed | {"seal": digest(unsealed)}
    new, old = (path.with_name(f".{path.name}.{secrets.token_hex(8)}") for _ in range(2))
    # All files are written to a new folder beside the target, which takes its place by renaming. An old certificate is
    # renamed first, and comes back if the second renaming fails.
    try:
        for name, content in ({CERTIFICATE: text_of(sealed)} | files).items():
            write_whole(new / name, content)
        if path.exists():
            os.replace(path, old)
        os.replace(new, path)
        synchronize(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        for remnant in (new, old):
            shutil.rmtree(remnant, ignore_errors=True)
    return str(sealed["seal"])


def check_free(path: pathlib.Path, *, overwrite: bool) -> None:
    """Raises ValueError where a certificate cannot be written to a folder."""
    if (path / CERTIFICATE).exists():
        if not overwrite:
            raise ValueError(f"--out {path} holds a certificate: give --overwrite, or name another folder.")
    elif path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ValueError(f"--out {path} is there, and no certificate: name another folder.")


def text_of(sealed: dict[str, Any]) -> bytes:
    """Returns the text of a certificate, the only one whose bytes a check accepts."""
    return (json_files.dumps(sealed, indent=1) + "\n").encode()


# ----------------------------------------------------------------------------------------------------
# The check of a folder, on another machine and later.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        status: "PROVED" or "UNDECIDED", the referee's verdict on a certificate that holds in all else; or "REFUTED".
        reason: the referee's reason.
        certificate: the content that was checked.
        same_code: whether the package that made the certificate and the one that checked it are the same.

    >>> Checked("REFUTED", "upper = 1.0 is below the truth.", {}, True).status
    'REFUTED'
    """

    status: str
    reason: str
    certificate: dict[str, Any]
    same_code: bool


def check(folder: str | os.PathLike[str]) -> Checked:
    """Checks a certificate's folder: every byte by the seal, the bracket by the referee, and all else computed anew.

    Args:
        folder: what ``jaxacct certify`` wrote, or its ``certificate.json`` alone, which leaves other files unchecked.

    Raises ValueError where anything is not as it was sealed, or does not follow from the spec inside; OSError where
    there is nothing to read.

    >>> import tempfile
    >>> from jaxacct.certificates import certify, write
    >>> spec = {"parts": [{"type": "Gaussian", "noise_multiplier": 10.0, "count": 100}], "delta": 1e-5}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = write(f"{place}/new", certify(spec), {})
    ...     check(f"{place}/new").status
    'PROVED'
    """
    path = pathlib.Path(folder)
    file = path / CERTIFICATE if path.is_dir() else path
    sealed = _unseal(file)
    content = {key: value for key, value in sealed.items() if key != "seal"}
    files = content["sha256"]["files"]
    if path.is_dir():
        _check_files(path, files)
    same = content["sha256"]["code"] == code_digest()
    try:
        verdict = claims.ask_referee(parsed(content["spec"]), content["bracket"])
        if verdict["status"] == "REFUTED":
            return Checked("REFUTED", verdict["reason"], sealed, same)
        _check_content(content, verdict)
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{file} has not what a certificate has ({error!r}): ask for the folder again.") from None
    except ValueError as error:
        raise ValueError(f"{file} does not follow from its spec: {error}") from None
    if path.is_dir() and HTML in files and without_picture((path / HTML).read_text("utf-8")) != html(content, None):
        raise ValueError(f"{path / HTML} does not say what {CERTIFICATE} says: ask for the folder again.")
    return Checked(verdict["status"], verdict["reason"], sealed, same)


def _unseal(file: pathlib.Path) -> dict[str, Any]:
    """Returns a certificate's content with its seal, which holds; raises ValueError where it does not."""
    text = file.read_bytes()
    try:
        sealed: dict[str, Any] = json_files.loads(text)
        content = {key: value for key, value in sealed.items() if key != "seal"}
        intact = text_of(sealed) == text and sealed["seal"] == digest(content)
        content["sha256"]["files"] | {}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{file} is no certificate, or a damaged one: ask for the folder again.") from None
    if not intact:
        raise ValueError(f"{file} is not as it was sealed: somebody changed it. Ask for the folder again.")
    if content["schema"] != SCHEMA:
        raise ValueError(f"{file} is of the format {content['schema']!r}, and {SCHEMA} is known here: update jaxacct.")
    return sealed


def _check_files(folder: pathlib.Path, files: dict[str, str]) -> None:
    """Raises ValueError where a folder's other files are not those of the hashes."""
    for name in sorted({CERTIFICATE, *files}.symmetric_difference(entry.name for entry in folder.iterdir())):
        raise ValueError(f"{folder / name} is {'missing' if name in files else 'no part of it'}: ask for it again.")
    for name, expected in files.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected:
            raise ValueError(f"{folder / name} is not as it was sealed: ask for the folder again.")


def _check_content(content: dict[str, Any], verdict: dict[str, Any]) -> None:
    """Raises an error where a certificate's content does not follow from the spec inside, computed anew."""
    about = {"schema": SCHEMA, "made": content["made"], "verdict": verdict}
    about["versions"] = {name: str(content["versions"][name]) for name in ("jaxacct", "python", *PACKAGES)}
    hashes = {"spec": digest(content["spec"]), "code": content["sha256"]["code"], "files": content["sha256"]["files"]}
    about["sha256"] = hashes
    anew = add_words(about | claims.derive(content["spec"]))
    # The statement's words are made from the numbers that stand in the file, which may differ in their last digits.
    _compare(content, anew | {"statement": add_words(content)["statement"]}, "")
    if not follows(parsed(content["spec"]), content):
        raise ValueError(f"claim = {content['claim']} is not implied by the bracket")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", content["made"]):
        raise ValueError(f"made = {content['made']!r} is no time")


def _compare(there: Any, here: Any, where: str) -> None:
    """Raises ValueError where two values differ: texts at all, computed numbers by a millionth."""
    if isinstance(there, dict) and isinstance(here, dict) and list(there) == list(here):
        for key in here:
            _compare(there[key], here[key], f"{where}.{key}".lstrip("."))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for i, (one, other) in enumerate(zip(there, here, strict=True)):
            _compare(one, other, f"{where}[{i}]")
    elif not _agree(there, here, where):
        raise ValueError(f"{where or 'the certificate'} is {there!r:.120} there, and {here!r:.120} here")


def _agree(there: Any, here: Any, where: str) -> bool:
    """Returns whether two leaves are equal, or computed numbers that two machines may give.

    The bracket, which the referee judges, and the step from it to the claim are exact, whatever the tolerance here is.
    """
    if isinstance(there, float) and isinstance(here, float) and not where.startswith("spec"):
        return math.isclose(there, here, rel_tol=1e-6, abs_tol=0.0)
    return bool(type(there) is type(here) and there == here)
