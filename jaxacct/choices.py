"""The choices that the library and its command offer alike, as types of strings.

Nothing is imported here, JAX least of all: the command's help shows them, and must not wait.
"""

from typing import Literal, TypeAlias

Relation: TypeAlias = Literal["add_or_remove", "add", "remove", "replace", "zero_out"]
"""Neighbouring relations: neighbours differ by one example more or less, one more, one less, one replaced by another,
or one replaced by an example that contributes nothing ("zero_out", also called replace-special: a record of its own,
whose clipped gradients are all 0).

Under "replace" and "zero_out" neighbours have equally many examples: their number is public and may be used. Under the
others it is protected as well. Sums protect it, but what a sum is divided by must not depend on it."""

Certified: TypeAlias = Literal["auto", "float64", "float32"]
"""Arithmetics, which all give bounds: "auto" is float64, and float32 on platforms that lack it."""

Mode: TypeAlias = Literal["saddlepoint", "certified"]
"""Modes of a sweep: the exact accountant alone, or the mesh where that does not converge."""
