"""Arrays on disk, by Orbax: from the devices of one process or several, and to any others.

Each process writes and reads its parts of an array that is divided over processes; what all of
them have whole the first one writes. Reading, no process waits for another.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the only way to its store of keys and values
from orbax.checkpoint import v1 as ocp

from tlite.errors import UserError
from tlite.processes import agree, count, is_first
from tlite.training.digest import MODULUS, Digests, Part, parts, parts_digest

WAIT = 1200  # seconds for the slowest process to write its parts
CHUNK = 2**26  # bytes that are read at once at the most, for however small a part
SAVES = itertools.count()  # a number for each: processes save together, so it is the same in all

Trees = dict[str, dict[str, Any]]


def begin_save(path: Path, trees: Trees) -> Callable[[], Digests]:
    """Copy to the host what is to be written, so that the originals may be used up.

    Of several processes all call it: they agree on what they do.

    Returns:
        What writes the copies, in whatever thread. In the first process it ends when all have
        written, and gives the digests of the arrays.
    """
    number, together = next(SAVES), count() > 1
    trees = jax.tree.map(_copy_of_parts if together else _host_copy, trees)
    found = jax.tree.map(lambda array: (_own_parts(array, together), array.shape), trees)
    context = _context()
    if not together:

        def write() -> Digests:
            with context:
                ocp.save_checkpointables(path, trees)
            return _digests(trees, _sums(found))

        return write
    with context:
        response = ocp.save_checkpointables_async(path, trees)

    def finish() -> Digests:
        sums = _added_up(_sums(found), number)
        response.result()
        return _digests(trees, sums)

    return finish


def load(path: Path, abstract: Trees) -> Trees:
    """The arrays with the shapes, types and shardings wanted; of each what belongs here."""
    with _context(alone=True):
        return ocp.load_checkpointables(path, abstract)


def shapes(path: Path) -> Trees:
    """The arrays that are there, by shape and type."""
    with _context(alone=True):
        return ocp.checkpointables_metadata(path).metadata


def difference(found: Trees, wanted: Trees) -> str:
    """The first array that a checkpoint has otherwise than wanted, as a phrase; "" if none."""
    for tree, arrays in sorted(wanted.items(), reverse=True):  # parameters before the optimizer's
        saved = {name: tuple(array.shape) for name, array in found.get(tree, {}).items()}
        for name, array in arrays.items():
            if saved.get(name) != array.shape:
                return f"its {name} has the shape {saved.get(name, '-')}, not {array.shape}"
            if found[tree][name].dtype != array.dtype:
                return f"its {name} is of {found[tree][name].dtype}, not {array.dtype}"
        if more := sorted(saved.keys() - arrays.keys()):
            return f"it has {more[0]}, which the config does not"
    return ""


def digests(trees: Trees, together: bool) -> Digests:
    """Of arrays that were loaded: by all processes together, or in this one alone."""
    found = jax.tree.map(lambda array: (_own_parts(array, together), array.shape), trees)
    sums = np.array(_sums(found), np.uint64)
    if together:
        sums = agree(sums).sum(0)  # modulo 2^64, as it should be
    return _digests(trees, sums)


def _context(*, alone: bool = False) -> ocp.Context:
    context = ocp.Context()
    context.memory.deepcopy_host_arrays = False  # they are copies
    context.array.saving.use_replica_parallel = False
    context.array.saving.storage_options.chunk_byte_size = CHUNK
    if alone:
        context.multiprocessing.primary_host = jax.process_index()
        context.multiprocessing.active_processes = {jax.process_index()}
    return context


def _host_copy(array: Any) -> np.ndarray:
    host = np.asarray(array)
    return host.copy() if isinstance(array, jax.Array) and _on_a_cpu(array) else host


def _on_a_cpu(array: jax.Array) -> bool:
    """Whether its memory is the host's, which what reads it there shares with it."""
    return next(iter(array.sharding.device_set)).platform == "cpu"


def _copy_of_parts(array: Any) -> Any:
    """Of one of several processes: its parts as a copy, or all where every process has all."""
    if not _divided(array):
        if is_first():
            return _host_copy(array)
        return np.broadcast_to(np.zeros((), array.dtype), array.shape)  # Orbax asks for no more
    if not _on_a_cpu(array):
        return array  # Orbax copies it to the host, at once
    copies = [jax.device_put(np.array(s.data), s.device) for s in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, copies)


def _divided(array: Any) -> bool:
    """Whether no process has all of it."""
    local = not isinstance(array, jax.Array) or array.is_fully_addressable
    return not (local or array.is_fully_replicated)


def _own_parts(array: Any, together: bool) -> list[Part]:
    """What of an array counts here: what several processes have counts in the first."""
    if not together or _divided(array):
        return parts(array)
    return parts(np.asarray(array)) if is_first() else []


def _sums(found: Any) -> list[int]:
    """The digests of parts, in the order of the leaves."""
    pairs = jax.tree.leaves(found, is_leaf=lambda node: isinstance(node, tuple))
    return [parts_digest(*pair) for pair in pairs]


def _digests(trees: Trees, sums: Any) -> Digests:
    return jax.tree.unflatten(jax.tree.structure(trees), [f"{int(value):016x}" for value in sums])


def _added_up(own: list[int], number: int) -> list[int]:
    """In the first process the sums of all; without collectives, which belong to another thread."""
    client, prefix = distributed.global_state.client, f"tlite/saves/{number}/"
    client.key_value_set(f"{prefix}{jax.process_index()}", json.dumps(own))
    if not is_first():
        return own
    keys = [f"{prefix}{process}" for process in range(count())]
    try:
        everyones = [json.loads(client.blocking_key_value_get(key, WAIT * 1000)) for key in keys]
    except jax.errors.JaxRuntimeError as error:
        reason = f"a process has not written its part in {WAIT // 60} minutes"
        raise UserError(f"the checkpoint is not whole: {reason}") from error
    client.key_value_delete(prefix)
    return [sum(values) % MODULUS for values in zip(*everyones, strict=True)]
