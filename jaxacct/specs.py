"""Specs: compositions and the question asked of them; the public names of :mod:`jaxacct.certificates.specs`."""

from jaxacct.certificates.specs import Release, Spec, combined, parsed, part_of, read

__all__ = ["Release", "Spec", "combined", "parsed", "part_of", "read"]
