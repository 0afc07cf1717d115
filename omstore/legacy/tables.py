"""The machine's tables: shapes compiled to schema nodes, row buffers, and handing full buffers to the
sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omstore.legacy.machine import plan, tags
from omstore.legacy.machine.arrays import Schema
from omstore.legacy.schema import KEY, KEY2, VALUE, Column, Ignored, Sink, Step, TableSchema
from omstore.legacy.shapes import Shape
from omstore.legacy.values import dtype_of

__all__ = ["MAX_TABLES", "NodeInfo", "Tables"]

MAX_TABLES: Final = 128
"""Exports have a handful; a pickle with thousands of small lists mustn't make a buffer for each."""

_BUFFER_BYTES: Final = 2 << 20
_LATER_BUFFER_BYTES: Final = 16 << 10
_LARGE_TABLES: Final = 16
_MAX_ROWS: Final = 1 << 16


@dataclass
class NodeInfo:
    """What Python knows about a schema node.

    Attributes
    ----------
    table : int
    path : tuple
        Of the value in the record.
    field : int
        Schema node of the record's field it belongs to: the smallest thing that can be left out as a whole;
        -1 when that is the record itself.
    column : int
        Position in the table's columns, -1 for nodes that make none.
    """

    table: int
    path: tuple[Step, ...]
    field: int
    column: int = -1


@dataclass
class _Layout:
    """Where each column of a table lives: scalar column number or byte offset in the vector row."""

    scalars: int = 0
    row_bytes: int = 0
    places: list[tuple[bool, int]] = field(default_factory=list)


class Tables:
    """All tables of one pickle, with the arrays the machine reads them from."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.schemas: list[TableSchema] = []
        self.infos: list[NodeInfo] = []
        self.table: NDArray[np.int64] = np.zeros((0, plan.TABLE_FIELDS), np.int64)
        self.nodes: NDArray[np.int64] = np.zeros((0, plan.NODE_FIELDS), np.int64)
        self.key_pool: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self.buffer: NDArray[np.int64] = np.zeros(1, np.int64)
        self.buffer8: NDArray[np.uint8] = self.buffer.view(np.uint8)
        self.work: NDArray[np.int64] = np.zeros((64, 3), np.int64)
        self._layouts: list[_Layout] = []

    # --- making tables ----------------------------------------------------------------------------------

    def add(
        self, path: tuple[Step, ...], container: str, record: str, shape: Shape, *, pairs: bool = False
    ) -> int:
        """Make a table whose items have a shape; for a dict's items (`pairs`) the shape's two children are
        KEY and VALUE."""
        table = len(self.schemas)
        schema = TableSchema(table, path, container, record)
        self.schemas.append(schema)
        layout = _Layout()
        self._layouts.append(layout)
        top = shape.children[1][1] if pairs else shape
        schema.positional = (top.kind == plan.K_SEQ) or (
            top.kind == plan.K_OBJ and top.mode in (plan.M_SEQ, plan.M_ARGS)
        )
        root = self._compile(table, shape, (), layout)
        self._finish(table, root, layout)
        self.table[table, plan.T_TAG], self.table[table, plan.T_CLASS] = _recogniser(shape)
        return table

    def add_links(self, path: tuple[Step, ...], keys: list[Shape], records: int) -> int:
        """Make the link table of an adjacency of one or two levels over a record table."""
        table = len(self.schemas)
        schema = TableSchema(table, path, "dict", "item", links_to=records)
        self.schemas.append(schema)
        layout = _Layout()
        self._layouts.append(layout)
        shape = Shape(plan.K_SEQ, children=tuple(zip((KEY, KEY2), keys, strict=False)))
        root = self._compile(table, shape, (), layout)
        first = layout.scalars
        for name in ("@first", "@count"):
            schema.columns.append(Column((name,), "int", np.dtype(np.int64), (), "rows"))
            layout.places.append((True, layout.scalars))
            layout.scalars += 1
        self._finish(table, root, layout)
        self.table[table, plan.T_LINK] = len(keys)
        self.table[table, plan.T_FIRSTCOL] = first
        return table

    def _compile(self, table: int, shape: Shape, path: tuple[Step, ...], layout: _Layout) -> int:
        """Append the nodes of a shape, a node's children side by side; the root's number."""
        root = self._append(table, shape, path, layout, -1)
        level = [(root, shape, path)]
        while level:
            below = []
            for node, node_shape, node_path in level:
                if node_shape.kind not in (plan.K_SEQ, plan.K_DICT, plan.K_OBJ):
                    continue
                self.nodes[node, plan.N_CHILD] = len(self.infos)
                self.nodes[node, plan.N_CHILDREN] = len(node_shape.children)
                # A field of the record is what can be left out; so is the record's dict under a VALUE.
                parent = self.infos[node]
                for step, child in node_shape.children:
                    child_path = (*node_path, step)
                    number = self._append(table, child, child_path, layout, -1)
                    info = self.infos[number]
                    holder = node == root or node_path == (VALUE,)
                    inner = child.kind in (plan.K_SEQ, plan.K_DICT, plan.K_OBJ)
                    if step in (KEY, KEY2) or (step == VALUE and inner):
                        info.field = -1
                    else:
                        info.field = number if holder else parent.field
                    self._set_key(number, step)
                    below.append((number, child, child_path))
            level = below
        self.work = np.zeros((max(64, len(self.infos) + 8), 3), np.int64)
        self._order_columns(table, layout)
        return root

    def _append(
        self, table: int, shape: Shape, path: tuple[Step, ...], layout: _Layout, field_node: int
    ) -> int:
        number = len(self.infos)
        self.infos.append(NodeInfo(table, path, field_node))
        node = np.zeros((1, plan.NODE_FIELDS), np.int64)
        node[0, plan.N_KIND] = shape.kind
        node[0, plan.N_SIZE] = shape.size
        node[0, plan.N_CODE] = shape.class_id if shape.kind == plan.K_OBJ else shape.code
        node[0, plan.N_MODE] = shape.mode
        node[0, plan.N_KEYPOS] = -1
        node[0, plan.N_NDIM] = len(shape.dims)
        for i, extent in enumerate(shape.dims):
            node[0, plan.N_DIM0 + i] = extent
        schema = self.schemas[table]
        if shape.kind not in (plan.K_SEQ, plan.K_DICT, plan.K_OBJ):
            column = shape.column(path)
            if isinstance(column, Ignored):
                schema.ignored.append(column)
            else:
                self.infos[number].column = len(schema.columns)
                schema.columns.append(column)
                if shape.kind in (plan.K_INT, plan.K_FLOAT, plan.K_BOOL):
                    node[0, plan.N_COLUMN] = layout.scalars
                    layout.places.append((True, layout.scalars))
                    layout.scalars += 1
                else:
                    node[0, plan.N_COLUMN] = layout.row_bytes
                    layout.places.append((False, layout.row_bytes))
                    layout.row_bytes += _vector_bytes(shape)
        self.nodes = np.concatenate([self.nodes, node])
        return number

    def _set_key(self, number: int, step: Step) -> None:
        if isinstance(step, int):
            self.nodes[number, plan.N_KEYKIND] = 1
            self.nodes[number, plan.N_KEY] = step
            return
        text = np.frombuffer(step.encode("utf-8", "surrogatepass"), np.uint8).copy()
        self.nodes[number, plan.N_KEY] = self.key_pool.size
        self.nodes[number, plan.N_KEYLEN] = text.size
        self.key_pool = np.concatenate([self.key_pool, text])

    def _order_columns(self, table: int, layout: _Layout) -> None:
        """Put the columns in the record's own order: nodes were laid out level by level."""
        schema = self.schemas[table]
        numbers = {info.path: number for number, info in enumerate(self.infos) if info.table == table}

        def place(column: int) -> tuple[int, ...]:
            # Siblings are numbered in record order, so the numbers along a path sort as the record does.
            path = schema.columns[column].path
            return tuple(numbers[path[: i + 1]] for i in range(len(path)))

        order = sorted(range(len(schema.columns)), key=place)
        position = {old: new for new, old in enumerate(order)}
        schema.columns = [schema.columns[i] for i in order]
        layout.places = [layout.places[i] for i in order]
        for info in self.infos:
            if info.table == table and info.column >= 0:
                info.column = position[info.column]

    def _finish(self, table: int, root: int, layout: _Layout) -> None:
        row = np.zeros((1, plan.TABLE_FIELDS), np.int64)
        width = 8 * layout.scalars + layout.row_bytes
        room = _BUFFER_BYTES if table < _LARGE_TABLES else _LATER_BUFFER_BYTES
        cap = max(8, min(_MAX_ROWS, room // max(width, 1)))
        row[0, plan.T_CAP] = cap
        row[0, plan.T_ROOT] = root
        row[0, plan.T_ROWBYTES] = layout.row_bytes
        row[0, plan.T_SCALARS] = self.buffer.size
        row[0, plan.T_VECTORS] = (self.buffer.size + layout.scalars * cap) * 8
        row[0, plan.T_TAG] = -1
        self.table = np.concatenate([self.table, row])
        grown = np.zeros(self.buffer.size + layout.scalars * cap + layout.row_bytes * cap // 8, np.int64)
        grown[: self.buffer.size] = self.buffer
        self.buffer = grown
        self.buffer8 = grown.view(np.uint8)

    def arrays(self) -> Schema:
        """What the machine reads and fills."""
        return Schema(self.table, self.nodes, self.key_pool, self.buffer, self.buffer8, self.work)

    # --- rows -------------------------------------------------------------------------------------------

    def columns(self, table: int) -> list[NDArray[Any]]:
        """Views of the rows now in a table's buffer, one array a column."""
        schema = self.schemas[table]
        layout = self._layouts[table]
        rows = int(self.table[table, plan.T_ROWS])
        cap = int(self.table[table, plan.T_CAP])
        start = int(self.table[table, plan.T_SCALARS])
        vectors = int(self.table[table, plan.T_VECTORS])
        scalars = self.buffer[start : start + layout.scalars * cap].reshape(layout.scalars, cap)
        block = self.buffer8[vectors : vectors + layout.row_bytes * cap].reshape(cap, layout.row_bytes)
        arrays: list[NDArray[Any]] = []
        for column, (is_scalar, place) in zip(schema.columns, layout.places, strict=True):
            if is_scalar:
                bits = scalars[place, :rows]
                if column.kind == "float":
                    arrays.append(bits.view(np.float64))
                else:
                    arrays.append(bits if column.kind == "int" else bits.astype(np.uint8))
                continue
            stored = self._stored_dtype(table, column)
            size = int(np.prod(column.shape, dtype=np.int64)) * stored.itemsize
            values = np.ascontiguousarray(block[:rows, place : place + size]).view(stored)
            arrays.append(values.reshape(rows, *column.shape).astype(column.dtype, copy=False))
        return arrays

    def _stored_dtype(self, table: int, column: Column) -> np.dtype[Any]:
        """A vector's dtype as it stands in the file: big-endian arrays are only turned on the way out."""
        if column.origin in ("ndarray", "tensor"):
            for number, info in enumerate(self.infos):
                if info.table == table and info.path == column.path:
                    return dtype_of(int(self.nodes[number, plan.N_CODE]))
        return column.dtype

    def flush(self, table: int) -> None:
        """Hand the rows in a table's buffer to the sink."""
        rows = int(self.table[table, plan.T_ROWS])
        if rows == 0:
            return
        first = int(self.table[table, plan.T_FLUSHED])
        schema = self.schemas[table]
        schema.num_rows = first + rows
        if schema.columns:  # records of nothing but text have none
            self.sink.rows(schema, first, self.columns(table))
        self.table[table, plan.T_FLUSHED] = first + rows
        self.table[table, plan.T_ROWS] = 0

    def flush_all(self) -> None:
        """Hand over everything."""
        for table in range(len(self.schemas)):
            self.flush(table)

    def num_rows(self, table: int) -> int:
        """Rows of a table so far, handed over or not."""
        return int(self.table[table, plan.T_FLUSHED] + self.table[table, plan.T_ROWS])

    # --- changing one's mind ----------------------------------------------------------------------------

    def widen(self, node: int, tag: int) -> bool:
        """Make a column wide enough for a number of another kind; False when that isn't what's wrong.

        The rows before are handed over first: they keep the narrower dtype.
        """
        kind = int(self.nodes[node, plan.N_KIND])
        wider = {
            (plan.K_BOOL, tags.INT): plan.K_INT,
            (plan.K_BOOL, tags.FLOAT): plan.K_FLOAT,
            (plan.K_INT, tags.FLOAT): plan.K_FLOAT,
            (plan.K_INTS, tags.FLOAT): plan.K_FLOATS,
        }.get((kind, tag))
        if wider is None:
            return False
        info = self.infos[node]
        self.flush(info.table)
        schema = self.schemas[info.table]
        old = schema.columns[info.column]
        if wider == plan.K_INT:
            new = Column(old.path, "int", np.dtype(np.int64), old.shape, old.origin)
        else:
            new = Column(
                old.path,
                "vector" if wider == plan.K_FLOATS else "float",
                np.dtype(np.float64),
                old.shape,
                old.origin,
            )
        schema.columns[info.column] = new
        self.nodes[node, plan.N_KIND] = wider
        return True

    def abandon(self, node: int, reason: str) -> tuple[Step, ...]:
        """Leave out the field a node belongs to from now on; its path."""
        info = self.infos[node]
        field_info = self.infos[info.field]
        self.flush(info.table)
        self.nodes[info.field, plan.N_KIND] = plan.K_SKIP
        self.schemas[info.table].ignored.append(Ignored(field_info.path, reason))
        return field_info.path


def _vector_bytes(shape: Shape) -> int:
    size = shape.size * 8 if shape.kind in (plan.K_INTS, plan.K_FLOATS) else shape.size
    return (size + 7) // 8 * 8


def _recogniser(shape: Shape) -> tuple[int, int]:
    """(tag, class or length) by which the machine tells a record from other values."""
    if shape.kind == plan.K_OBJ:
        return tags.OBJ, shape.class_id
    if shape.kind == plan.K_DICT:
        return tags.DICT, len(shape.children)
    if shape.kind == plan.K_ARRAY:
        return tags.ARRAY, 0
    if shape.kind == plan.K_BYTES:
        return tags.BYTES, 0
    if shape.origin == "tuple":
        size = len(shape.children) if shape.kind == plan.K_SEQ else shape.size
        return tags.TUPLE, size
    if shape.origin == "list":
        return tags.LIST, 0
    scalars = {plan.K_INT: tags.INT, plan.K_FLOAT: tags.FLOAT, plan.K_BOOL: tags.BOOL}
    return scalars.get(shape.kind, -1), 0
