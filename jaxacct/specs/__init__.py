"""Specs: compositions and the question asked of them, as JSON, TOML or YAML, with one reader for all commands.

A spec is an object with these keys: ``parts``; ``delta`` or ``epsilon``, at which the other is asked; ``relation``;
``unit``, whose data one record is, and ``group``, the number of records that change together; ``fixed``, who fixed the
settings and when, false where they followed from results. Each part is a mechanism (``type``, fields, ``count`` or
``epochs``, ``sampling``), or a record of a run in another format: ``report``, of this library's trainer; ``opacus``, a
history or checkpoint; ``dp_event``, with the names of dp_accounting's classes and fields. A file with one such record
is a spec of one part.
"""

from jaxacct.specs.spec import Release, Spec, combined, parsed, part_of, read

__all__ = ["Release", "Spec", "combined", "parsed", "part_of", "read"]
