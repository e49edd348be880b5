"""Certificates: what is proved of a composition, in words and in numbers, for somebody else to check.

:func:`certify` makes the content of one from a spec (:mod:`jaxacct.specs`), :func:`write` a folder of it, and
:func:`check` reads a folder elsewhere: it compares every byte with the seal, has the referee (:mod:`jaxacct.verify`)
judge the bracket, and makes everything else anew from the spec that is inside. ``certificate-1.schema.json`` beside
this file is the format, of JSON Schema.

What a check proves. The bracket is the referee's theorem, or the accountants' where the referee has no statement of a
mechanism; words and pictures follow from it. That what ran is what the spec says is nobody's theorem: the assumptions
are listed one by one. The seal is a hash and no signature: it finds what was changed without care, and makes a
certificate known by 64 letters that are handed over by another road. Whoever makes a new seal can change when it was
made and by which versions and code, the picture, and the files beside the page, of which the seal alone speaks; numbers
other than the bracket and the claim by a millionth; and nothing else that a check would not refuse.
"""

from jaxacct.certificates.certificate import CERTIFICATE, Checked, certify, check, write

__all__ = ["CERTIFICATE", "Checked", "certify", "check", "write"]
