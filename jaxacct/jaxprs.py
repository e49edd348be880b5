"""What traced programs hold, as each version of JAX names it."""

from __future__ import annotations

from typing import Any


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns how many constants and how many carried values a traced ``lax.scan`` takes, before its rows.

    >>> import jax, jax.numpy as jnp
    >>> looped = lambda k, c, rows: jax.lax.scan(lambda c, row: (c + k * row, c), c, rows)
    >>> scan_counts(jax.make_jaxpr(looped)(2.0, 0.0, jnp.ones(3)).eqns[-1].params)
    (1, 1)
    """
    if "num_carry" in params:  # until JAX 0.10
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)
