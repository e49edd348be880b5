"""Borders of a run: the other processes that make it, and the programs that take its model.

* :func:`agreed_key` to :func:`meet`: several processes that make one run together, each with devices of its own
  (:func:`jax.distributed.initialize`);
* :func:`save_model`, :func:`load_model`, :func:`export_inference`: models that may be given away.

All processes of a run execute the same program with the same arguments. What a process would decide by itself, such as
a key from its own entropy or what to do at Ctrl-C, one of them decides for all. The ledger, which each keeps for
itself, is compared. Alone, a process pays nothing for any of this.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export
from jaxtyping import PyTree

from jaxacct.train.models import copy_module
from jaxacct.train.ownership import arrays_of, describe, differences, digest, place


def agreed_key(key: jax.Array) -> jax.Array:
    """Returns the typed key of the first process, on all of them."""
    if jax.process_count() == 1:
        return key
    from jax.experimental import multihost_utils

    words = multihost_utils.broadcast_one_to_all(np.asarray(jax.random.key_data(key)))
    return place(jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(key)), key.sharding)


def check_same(tree: Any, name: str) -> None:
    """Raises RuntimeError where the leaves of ``tree`` are not the same bits on all processes."""
    if jax.process_count() == 1:
        return
    _compare(bytes.fromhex(digest(arrays_of(tree))), name)


def check_settings(settings: dict[str, Any]) -> None:
    """Raises RuntimeError, and names it, where a setting is not written the same on all processes."""
    if jax.process_count() > 1:
        for name, value in sorted(settings.items()):
            _compare(hashlib.sha256(f"{name} {value}".encode()).digest(), name)


def _compare(content: bytes, name: str) -> None:
    """Raises RuntimeError where ``content``, which has the same length everywhere, differs between processes."""
    from jax.experimental import multihost_utils

    own = np.frombuffer(content, np.uint8)
    everybody = np.asarray(multihost_utils.process_allgather(own))
    if (everybody != own).any():
        raise RuntimeError(
            f"{name} is not the same on all {jax.process_count()} processes: give all of them the same model, data and "
            "settings."
        )


def writes() -> bool:
    """Returns whether it is this process that writes to disks."""
    return jax.process_index() == 0


def meet(where: str) -> None:
    """Returns when all processes are at ``where``."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(where)


# ----------------------------------------------------------------------------------------------------
# Models that may be given away: their arrays on disk, and a function that needs nothing but JAX to be called.
#
# Neither holds a key of the run, nor its ledger: for going on with a run there is
# :class:`~jaxacct.train.checkpoints.Checkpoints`. A model that goes on with training on the same data by another
# trainer has spent what both spend, and no report of either says so.
# ----------------------------------------------------------------------------------------------------


def save_model(model: nnx.Module, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Writes a module's arrays into ``folder`` by Orbax: all there or none of it.

    They lie there under their paths, such as ``hidden/kernel``: ``StandardCheckpointer().restore(folder)`` of
    ``orbax.checkpoint`` returns a dict of them. Random state is left out: its keys may be derived from the run's.

    Raises FileExistsError where ``folder`` exists, unless ``overwrite`` is True: then it is replaced.

    >>> import orbax.checkpoint, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), f"{folder}/model")
    ...     sorted(orbax.checkpoint.StandardCheckpointer().restore(f"{folder}/model"))
    ['bias', 'kernel']
    """
    import orbax.checkpoint  # takes seconds, which a trainer that saves nothing need not wait

    path = pathlib.Path(folder).absolute()
    if path.exists() and not overwrite:
        raise FileExistsError(f"folder = {path} exists: name another one, or give overwrite=True to replace it.")
    arrays = {name: variable[...] for name, variable in _variables(model).items()}
    with orbax.checkpoint.StandardCheckpointer() as writer:
        writer.save(path, {name: array for name, array in arrays.items() if array.size}, force=overwrite)


def load_model(model: nnx.Module, folder: str | os.PathLike[str]) -> nnx.Module:
    """Returns a module like ``model`` with the arrays that :func:`save_model` or :meth:`.DPTrainer.save` wrote.

    Args:
        model: made as the saved one was, with any first values; not modified.
        folder: the one that was given to either of them.

    Raises FileNotFoundError where there is none; ValueError where the arrays have other names, shapes or dtypes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), f"{folder}/model")
    ...     load_model(nnx.Linear(2, 1, rngs=nnx.Rngs(1)), f"{folder}/model").kernel.shape
    (2, 1)
    """
    import orbax.checkpoint

    path = pathlib.Path(folder).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"{path} holds no model.")
    loaded = copy_module(model)
    variables = {name: variable for name, variable in _variables(loaded).items() if variable[...].size}
    with orbax.checkpoint.StandardCheckpointer() as reader:
        there = {name: describe(array) for name, array in reader.metadata(path).item_metadata.tree.items()}
        here = {name: describe(variable[...]) for name, variable in variables.items()}
        if differing := differences(there, here):
            raise ValueError(f"{path} is of another model ({differing}): give one that is made as that was.")
        arrays = reader.restore(path, {name: jax.eval_shape(lambda v=v: v[...]) for name, v in variables.items()})
    for name, variable in variables.items():
        variable[...] = arrays[name]
    return loaded


def export_inference(
    model: nnx.Module,
    inputs: PyTree,
    predict: Callable[..., PyTree] | None = None,
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
) -> bytes:
    """Returns the model as a function of a batch, serialized: JAX alone deserializes and calls it.

    Args:
        model: as in evaluation (Dropout off, BatchNorm by running averages); not modified.
        inputs: shapes and dtypes, or arrays, of what it takes for one example, without a batch axis: any pytree, which
            is one argument.
        predict: ``predict(model, inputs)`` for one example; None: ``model(inputs)``.
        platforms: on which it is to run, as :mod:`jax.export` calls them.

    The function takes a pytree like ``inputs`` whose arrays have a leading axis of any length, the same for all, and
    returns what ``predict`` does with that axis in front. The model's arrays are part of it.

    Raises ModuleNotFoundError without flatbuffers, by which JAX serializes.

    >>> import numpy as np
    >>> blob = export_inference(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), jax.ShapeDtypeStruct((2,), np.float32))
    >>> [export.deserialize(bytearray(blob)).call(np.ones((rows, 2), np.float32)).shape for rows in (1, 5)]
    [(1, 1), (5, 1)]
    """
    still = copy_module(model)
    still.eval()
    one = (lambda example: still(example)) if predict is None else (lambda example: predict(still, example))
    (batch,) = export.symbolic_shape("batch")
    shapes = jax.tree.map(lambda part: jax.ShapeDtypeStruct((batch, *part.shape), part.dtype), inputs)
    lowered = export.export(jax.jit(jax.vmap(one)), platforms=tuple(platforms))(shapes)
    try:
        return bytes(lowered.serialize())
    except ImportError:
        raise ModuleNotFoundError("jax.export needs flatbuffers, which is missing: pip install flatbuffers.") from None


def _variables(model: nnx.Module) -> dict[str, Any]:
    """Returns a module's variables by their paths, without random state."""
    state = nnx.state(model, nnx.Not(nnx.RngState))
    return {"/".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
