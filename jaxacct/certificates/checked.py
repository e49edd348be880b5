"""Whether a folder is a certificate, elsewhere and later."""

from __future__ import annotations

import hashlib
import math
import os
import pathlib
import re
from dataclasses import dataclass
from typing import Any

from jaxacct import strict_json
from jaxacct.certificates import page
from jaxacct.certificates.content import MAKERS, SCHEMA, code_digest, digest, followed, follows, judged, worded
from jaxacct.certificates.folder import CERTIFICATE, text_of
from jaxacct.specs import parsed

CLOSE = 1e-6
"""Relative distance to which two machines have to agree on what is computed.

Exact are the bracket, which the referee judges, and that the claim follows from it.
"""

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        status: "PROVED" or "UNDECIDED", the referee's verdict on a certificate that holds in all else; "REFUTED".
        reason: the referee's.
        certificate: what was checked.
        same_code: whether the package that made it and the one that checked it are the same.

    >>> Checked("REFUTED", "upper = 1.0 is below the truth.", {}, True).status
    'REFUTED'
    """

    status: str
    reason: str
    certificate: dict[str, Any]
    same_code: bool


def check(folder: str | os.PathLike[str]) -> Checked:
    """Checks a certificate's folder: the seal of every byte, the referee on the bracket, and all else made anew.

    Args:
        folder: what ``jaxacct certify`` wrote, or its ``certificate.json``; then nothing is said of other files.

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
    content = file.read_bytes()
    try:
        sealed = strict_json.loads(content)
        whole = {key: value for key, value in sealed.items() if key != "seal"}
        intact = text_of(sealed) == content and sealed["seal"] == digest(whole)
        files = whole["sha256"]["files"] | {}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{file} is no certificate, or a damaged one: ask for the folder again.") from None
    if not intact:
        raise ValueError(f"{file} is not as it was sealed: somebody changed it. Ask for the folder again.")
    if whole["schema"] != SCHEMA:
        raise ValueError(f"{file} is of the format {whole['schema']!r}, and {SCHEMA} is known here: update jaxacct.")
    if path.is_dir():
        for name in sorted({CERTIFICATE, *files}.symmetric_difference(entry.name for entry in path.iterdir())):
            raise ValueError(f"{path / name} is {'missing' if name in files else 'no part of it'}: ask for it again.")
        for name, expected in files.items():
            if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                raise ValueError(f"{path / name} is not as it was sealed: ask for the folder again.")
    same = whole["sha256"]["code"] == code_digest()
    try:
        spec = parsed(whole["spec"])
        verdict = judged(spec, whole["bracket"])
        if verdict["status"] == "REFUTED":
            return Checked("REFUTED", verdict["reason"], sealed, same)
        about = {"schema": SCHEMA, "made": whole["made"], "verdict": verdict}
        about["versions"] = {name: str(whole["versions"][name]) for name in MAKERS}
        about["sha256"] = {"spec": digest(whole["spec"]), "code": whole["sha256"]["code"], "files": files}
        anew = worded(about | followed(whole["spec"]))
        _compare(whole, anew | {"statement": worded(whole)["statement"]}, "")  # in words: the numbers that stand there
        if not follows(spec, whole):
            raise ValueError(f"claim = {whole['claim']} is not implied by the bracket")
        if not TIME.fullmatch(whole["made"]):
            raise ValueError(f"made = {whole['made']!r} is no time")
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{file} has not what a certificate has ({error!r}): ask for the folder again.") from None
    except ValueError as error:
        raise ValueError(f"{file} does not follow from its spec: {error}") from None
    if path.is_dir() and page.HTML in files:
        shown = page.without_picture((path / page.HTML).read_text("utf-8"))
        if shown != page.html(whole, None):
            raise ValueError(f"{path / page.HTML} does not say what {CERTIFICATE} says: ask for the folder again.")
    return Checked(verdict["status"], verdict["reason"], sealed, same)


def _compare(there: Any, here: Any, where: str) -> None:
    """Raises ValueError where two values differ: words at all, numbers by more than two machines may."""
    if isinstance(there, dict) and isinstance(here, dict) and list(there) == list(here):
        for key in here:
            _compare(there[key], here[key], f"{where}.{key}".lstrip("."))
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for i, (one, other) in enumerate(zip(there, here, strict=True)):
            _compare(one, other, f"{where}[{i}]")
    elif isinstance(there, float) and isinstance(here, float) and not where.startswith("spec"):
        if not math.isclose(there, here, rel_tol=CLOSE, abs_tol=0.0):
            raise ValueError(f"{where} is {there!r} there, and {here!r} computed here")
    elif type(there) is not type(here) or there != here:
        raise ValueError(f"{where or 'the certificate'} is {there!r:.120} there, and {here!r:.120} here")
