"""The referee."""

try:
    import flint as _flint  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'jaxacct.verify computes in ball arithmetic and needs python-flint: pip install "jaxacct[verify]"', name="flint"
    ) from missing

from jaxacct.verify.verdict import Status, Verdict, delta, epsilon

__all__ = ["Status", "Verdict", "delta", "epsilon"]
