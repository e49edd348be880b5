"""What is composed and what is said of it, as JSON, TOML or YAML: one reader of specs for all commands.

A spec is an object: ``parts``; ``delta`` or ``epsilon``, at which the other is asked; ``relation``; ``unit``, whose
data one record is, and ``group``, how many of them change together; ``fixed``, who fixed the settings and when, false
where they followed from results. Each part is a mechanism (``type``, fields, ``count`` or ``epochs``, ``sampling``),
or what others wrote: ``report``, of this library's trainer; ``opacus``, a history or checkpoint; ``dp_event``, with the
names of dp_accounting's classes and fields. A file that is one of these is a spec of one part.
"""

from jaxacct.specs.spec import Release, Spec, combined, parsed, part_of, read

__all__ = ["Release", "Spec", "combined", "parsed", "part_of", "read"]
