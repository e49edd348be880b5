"""Certificates: the proved privacy of a composition, in words and in numbers, for somebody else to check.

* :mod:`.specs`: what was composed, read from files; public as :mod:`jaxacct.specs`.
* :mod:`.claims`: :func:`certify` makes the content of a certificate from a spec.
* :mod:`.folders`: :func:`write` writes it to a sealed folder, and :func:`check` reads a folder elsewhere: it compares
  every byte with the seal, has the referee (:mod:`jaxacct.verify`) judge the bracket, and computes everything else anew
  from the spec inside.

The format is that of ``certificate-1.schema.json`` in this folder, a JSON Schema.

*A check proves this.* The bracket is the referee's theorem, or the accountants' where the referee has no statement of a
mechanism; words and pictures follow from it. No theorem says that the run was the one in the spec: the assumptions are
listed one by one. The seal is a hash and no signature: it reveals careless changes, and identifies a certificate by 64
letters that are handed over on another channel. Whoever makes a new seal can change the date, the versions and the code
that made it, the picture, and the files beside the page, which the seal alone covers; and numbers other than the
bracket and the claim, by a millionth. A check refuses every other change.
"""

from jaxacct.certificates.claims import certify
from jaxacct.certificates.folders import CERTIFICATE, Checked, check, write

__all__ = ["CERTIFICATE", "Checked", "certify", "check", "write"]
