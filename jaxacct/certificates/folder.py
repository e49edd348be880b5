"""A certificate's folder: written whole or not at all, and sealed."""

from __future__ import annotations

import hashlib
import os
import pathlib
import secrets
import shutil
from typing import Any

from jaxacct import strict_json
from jaxacct.certificates.content import digest
from jaxacct.whole_file import synchronize, write_whole

CERTIFICATE = "certificate.json"
"""The file that everything else in a folder is checked by."""


def write(
    folder: str | os.PathLike[str], made: dict[str, Any], files: dict[str, bytes], *, overwrite: bool = False
) -> str:
    """Writes a certificate with its other files, all of it or nothing, and returns its seal.

    Args:
        folder: where; made, with the folders above it.
        made: what :func:`certify` returned.
        files: further files by their names, of which the certificate gets the hashes.
        overwrite: whether to replace a certificate that is there.

    Raises ValueError where the folder is there and not to be replaced, or is no certificate's.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     seal = write(f"{place}/new", {"sha256": {"files": {}}}, {"note.txt": b"note"})
    ...     len(seal), sorted(os.listdir(f"{place}/new"))
    (64, ['certificate.json', 'note.txt'])
    """
    path = pathlib.Path(folder)
    check_free(path, overwrite=overwrite)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    whole = made | {"sha256": made["sha256"] | {"files": hashes}}
    sealed = whole | {"seal": digest(whole)}
    new, old = (path.with_name(f".{path.name}.{secrets.token_hex(8)}") for _ in range(2))
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
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
    return str(sealed["seal"])


def check_free(path: pathlib.Path, *, overwrite: bool) -> None:
    """Raises ValueError where a certificate cannot be written to a folder."""
    if (path / CERTIFICATE).exists():
        if not overwrite:
            raise ValueError(f"--out {path} holds a certificate: give --overwrite, or name another folder.")
    elif path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise ValueError(f"--out {path} is there, and no certificate: name another folder.")


def text_of(sealed: dict[str, Any]) -> bytes:
    """Returns the one text that a certificate has."""
    return (strict_json.dumps(sealed, indent=1) + "\n").encode()
