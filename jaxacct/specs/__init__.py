"""What is composed and what is said of it, as JSON, TOML or YAML: one reader of specs for all commands.

A spec is an object with the keys of :data:`KEYS`. Each of its ``parts`` is a mechanism (``type``, its fields, ``count``
or ``epochs``, and where it takes samples how, ``sampling``), or what somebody else wrote: ``report``, of this library's
trainer; ``opacus``, a history or a checkpoint; ``dp_event``, with the names of dp_accounting's classes and fields. A
file that is one of these by itself is read as a spec of that one part. What :func:`read` returns names no other file.
"""

from jaxacct.specs.files import read
from jaxacct.specs.parts import Release, part_of
from jaxacct.specs.spec import KEYS, Spec, combined, parsed

__all__ = ["KEYS", "Release", "Spec", "combined", "parsed", "part_of", "read"]
