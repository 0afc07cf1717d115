"""Pass 2: a compiled pickle machine that turns big containers into columns as it goes.

All state is in plain arrays, so the machine can stop at any opcode, let Python decide something rare (a new class, a
new table, a full buffer), and go on. `entry.run` is the only way in; the modules, from there inwards:

- entry: makes pointers of the arrays (arrays says why), and does what it is told to
- loop: runs the common opcodes; rare: all others, filling and making among them
- matching: reads a record by a template, without running its opcodes
- batches: many values into rows of a table; conversion: one value into one row
- known_globals, tensors: what a global gives that would be called
- heap, stack: what values lie on; operands: what stands in the file behind an opcode; dtypes: codes of arrays' numbers
- tags, registers, plan: the numbers in the arrays, which Python reads and writes too

A value is a tag and a 64-bit payload. Numbers are their own payload; text and bytes are the file offset of
their opcode; the rest points into a bump heap. The heap is rewound after each batch of records unless the
memo still needs something in it, and a copying collection bounds what is left.

Heap objects, in slots (every slot is tagged; RAW marks numbers of the machine's own):

=========  ===================================================================================
TUPLE      n, item * n
container  count, first chunk, last chunk, table, first row, rows, made at  (LIST, DICT, SET, DEQUE)
CHUNK      n, next chunk, item * n  (a DICT's keys and values alternate)
OBJ        class, constructor arguments, state
ARRAY      dtype code, shape, order, data
DTYPE      dtype code
=========  ===================================================================================

A container's table is 0 (none), t + 1, or -1 (looked at, stays on the heap). A row of a two-dimensional array is
named by the offset of its first field: `t` of a table, `n` of a schema node.
"""
