"""State that clients keep from round to round, in a store whose layout only this module knows.

A row of the store is the state of one client, with one vector for each data type. It is read and
written once per round, in place: another read or a second write would copy the whole store.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.numerics import target
from fedjax_fair.parallel import collectives, processes
from fedjax_fair.roles import Client, Cohort, Context, Solver, checked_calls
from fedjax_fair.utils.tree import Integer, Tree

__all__ = [
    "ClientRow",
    "Layout",
    "Store",
    "init_store",
    "make_client",
    "pack_row",
    "read_row",
    "write_rows",
]

_RESIDUAL = "residual"
_BITS = "uint16"
"""Type of stored bfloat16; a CPU would convert the whole store to float32 in every round."""

# Shorter rows are not padded: padding would take up to 128 times the memory, and copies at the ends
# of a chunk of rounds are small. Longer ones are, because other lengths would be copied to another
# layout and back.
_LANES = 128
"""Elements of a row of a TPU's memory; other lengths are copied to another layout and back."""


class Layout(NamedTuple):
    """Structure of the state of a client, shape and type of each leaf, elements of the residual."""

    treedef: Any
    leaves: tuple[tuple[tuple[int, ...], str], ...]
    residual_width: int

    @property
    def widths(self) -> dict[str, int]:
        """Elements of each vector of a row by name, without padding."""
        widths: dict[str, int] = {}
        for shape, dtype in self.leaves:
            widths[dtype] = widths.get(dtype, 0) + math.prod(shape)
        return widths | ({_RESIDUAL: self.residual_width} if self.residual_width else {})

    @property
    def shapes(self) -> dict[str, str]:
        """Type and shape of each leaf, and of the residual, by path."""
        tree = jax.tree.unflatten(self.treedef, range(len(self.leaves)))
        shapes = {}
        for path, index in jax.tree_util.tree_leaves_with_path(tree):
            shape, dtype = self.leaves[index]
            shapes[f"state{jax.tree_util.keystr(path)}"] = f"{dtype}{list(shape)}"
        if self.residual_width:
            shapes[_RESIDUAL] = f"float32[{self.residual_width}]"
        return shapes


class ClientRow(NamedTuple):
    """The stored values of one client.

    Attributes:
        state: The state of its solver.
        residual: The residual of compressed updates; ``()`` without error feedback.
    """

    state: PyTree = ()
    residual: Float[Array, " width"] | tuple[()] = ()


# Rows are flat, one vector per data type, because unflattened leaves take three times the memory on
# a TPU. Each array is written by one scatter per round: a second one, or a `where` over rows, would
# copy it in every round (93 ms instead of 0.4 ms with 100,000 clients).
class Store(Tree):
    """The rows of all clients.

    Attributes:
        arrays: Vectors by name, ``[clients, width]``, or ``[runs, clients, width]``.
        layout: Layout of the solver's state.
        run: Index of the run whose rows are meant, if there is an axis of runs.
    """

    arrays: PyTree
    layout: Layout
    run: PyTree = None

    def read(self, examples: ClientExamples, client: Integer) -> ClientRow:
        """Returns the row of a client, on the device that has its examples."""
        place = self._place(_position(examples, client))
        row = {name: _decode(name, array[place]) for name, array in self.arrays.items()}
        residual = row.pop(_RESIDUAL)[: self.layout.residual_width] if _RESIDUAL in row else ()
        return ClientRow(_unpack(row, self.layout), residual)

    def write(self, positions: Int[Array, " cohort"], rows: dict[str, Array]) -> Store:
        """Replaces rows; positions beyond the last row are ignored."""
        place = self._place(positions)
        arrays = {
            name: array.at[place].set(_encode(rows[name], array.dtype), mode="drop")
            for name, array in self.arrays.items()
        }
        return self.replace(arrays=arrays)

    def in_client_order(self, num_runs: int, examples: ClientExamples) -> dict[str, np.ndarray]:
        """Returns the vectors ``[runs, clients, width]`` on the host, without padding.

        They do not depend on the devices and their platform. All processes get all of them.

        Args:
            num_runs: Number of runs; others repeat the last one.
            examples: The training examples on their devices.
        """
        rows, widths = _global_rows(examples), self.layout.widths
        return {
            name: processes.to_host(array)[:num_runs, rows, : widths[name]]
            for name, array in self.arrays.items()
        }

    def from_client_order(self, rows: dict[str, np.ndarray], examples: ClientExamples) -> Store:
        """Inverts ``in_client_order``, on the devices of this store, whose arrays it deletes."""
        places, arrays = _global_rows(examples), {}
        for name, array in self.arrays.items():
            shape, dtype, sharding = array.shape, array.dtype, array.sharding
            array.delete()  # The old and the new rows may not fit together.
            runs = np.minimum(np.arange(shape[0]), len(rows[name]) - 1)
            values = np.zeros(shape, dtype)
            for run, source in enumerate(runs):
                values[run, places, : self.layout.widths[name]] = rows[name][source]
            arrays[name] = jax.make_array_from_callback(shape, sharding, values.__getitem__)
        return self.replace(arrays=arrays)

    def _place(self, position: Any) -> Any:
        return position if self.run is None else (self.run, position)


def init_store(
    solver: Solver,
    key: Key[Array, ""],
    context: Context,
    broadcast: dict[str, PyTree],
    residual_width: int,
    dtype: Literal["bfloat16"] | None,
) -> Store | tuple[()]:
    """Returns the rows before the first round; ``()`` if clients keep nothing.

    ``dtype`` is the type to which stored vectors of float32 are rounded; None keeps them.
    """

    def init(client: Int[Array, ""]) -> ClientRow:
        participant = make_client(context, client, broadcast=broadcast)
        key_client = jax.random.fold_in(key, client)
        state = checked_calls.init_client(solver, key_client, context.variables, participant)
        return ClientRow(state, jnp.zeros(residual_width) if residual_width else ())

    examples = context.examples
    if examples.residents is None:
        clients = jnp.arange(examples.num_clients, dtype=jnp.int32)
    else:
        clients = jnp.maximum(examples.residents, 0)  # Nobody reads the rows of padding.
    row = jax.eval_shape(init, clients[0])
    if not jax.tree.leaves(row):
        return ()
    leaves, treedef = jax.tree.flatten(row.state)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
    layout = Layout(treedef, shapes, residual_width)
    arrays = jax.vmap(lambda client: pack_row(init(client)))(clients)
    if dtype is not None:
        arrays = {
            name: _encode(array, _BITS) if array.dtype == jnp.float32 else array
            for name, array in arrays.items()
        }
    return Store(arrays, layout)


def make_client(
    context: Context,
    client: Int[Array, ""],
    state: PyTree = (),
    broadcast: dict[str, PyTree] | None = None,
    instructions: dict[str, PyTree] | None = None,
) -> Client:
    """Returns a client as its solver sees it."""
    return Client(
        model=context.model,
        examples=context.examples,
        offset=context.examples.offsets[client],
        size=context.examples.sizes[client],
        round=context.round,
        instructions=instructions or {},
        id=client,
        state=state,
        broadcast=broadcast or {},
        sensitive_names=context.sensitive_names,
    )


def read_row(store: Store | tuple[()], examples: ClientExamples, client: Integer) -> ClientRow:
    """Returns what a client keeps, on the device that has its examples."""
    return store.read(examples, client) if isinstance(store, Store) else ClientRow()


def pack_row(row: ClientRow) -> dict[str, Array]:
    """Returns the vectors of a row by name."""
    parts: dict[str, list[Array]] = {}
    for leaf in jax.tree.leaves(row.state):
        parts.setdefault(str(leaf.dtype), []).append(leaf.reshape(-1))
    vectors = {name: jnp.concatenate(leaves) for name, leaves in parts.items()}
    if not isinstance(row.residual, tuple):
        vectors[_RESIDUAL] = row.residual
    if target.current().platform != "tpu":
        return vectors
    return {
        name: jnp.pad(vector, (0, -vector.size % _LANES)) if vector.size > _LANES else vector
        for name, vector in vectors.items()
    }


def write_rows(
    store: Store | tuple[()],
    examples: ClientExamples,
    cohort: Cohort,
    rows: dict[str, Array],
    is_nonfinite: Bool[Array, " cohort"] | None,
) -> Store | tuple[()]:
    """Writes the rows of the clients that responded.

    Of a client that is drawn repeatedly the last response counts, and its residuals are added up. A
    row that is not finite is not written.
    """
    if not isinstance(store, Store):
        return ()
    is_written = cohort.is_last_response
    if is_nonfinite is not None:
        is_written &= ~is_nonfinite
    if _RESIDUAL in rows:
        # Only then are vectors rounded to bfloat16, after the residuals of a repeated client are
        # added.
        residuals = rows[_RESIDUAL]
        summed = jnp.zeros_like(residuals).at[cohort.last_slots].add(residuals)
        rows = rows | {_RESIDUAL: summed}
    if examples.has_all_clients:
        rows = collectives.all_reduce(examples, rows)
    else:
        is_written &= collectives.is_local(examples, cohort.clients)
    nowhere = jnp.iinfo(cohort.clients.dtype).max
    positions = _position(examples, cohort.clients)
    return store.write(jnp.where(is_written, positions, nowhere), rows)


def _position(examples: ClientExamples, clients: Any) -> Any:
    """Returns the index of the rows of clients on the device that has their examples."""
    return clients if examples.slots is None else examples.slots[clients]


def _global_rows(examples: ClientExamples) -> Any:
    """Returns the index of the row of each client among the rows of all devices, on the host."""
    residents: Any = examples.residents
    if residents is None:
        return slice(None)
    (capacity,) = residents.sharding.shard_shape(residents.shape)
    return np.asarray(examples.devices) * capacity + np.asarray(examples.slots)


def _encode(vectors: Array, dtype: Any) -> Array:
    """Returns vectors as they are stored: rounded to bfloat16 if that store has bits."""
    if vectors.dtype == dtype:
        return vectors
    return jax.lax.bitcast_convert_type(vectors.astype(jnp.bfloat16), dtype)


def _decode(name: str, vector: Array) -> Array:
    """Inverts `_encode`, up to rounding; the name of a vector tells bits from integers."""
    if vector.dtype != _BITS or name == _BITS:
        return vector
    return jax.lax.bitcast_convert_type(vector, jnp.bfloat16).astype(jnp.float32)


def _unpack(vectors: dict[str, Array], layout: Layout) -> PyTree:
    leaves, starts = [], dict.fromkeys(vectors, 0)
    for shape, dtype in layout.leaves:
        start, size = starts[dtype], math.prod(shape)
        leaves.append(vectors[dtype][start : start + size].reshape(shape))
        starts[dtype] += size
    return jax.tree.unflatten(layout.treedef, leaves)
