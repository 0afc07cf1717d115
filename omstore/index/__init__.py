"""The state-hash index: packed state -> node, in a memory-mapped table of 64-bit slots.

Slots are ordered linear probing: states sorted by hash, each at the first free slot from its home on, where
``home = hash * capacity >> 64`` grows with the hash. So the table is the sorted list of hashes with gaps,
it can be written front to back, and its bytes depend on nothing but the states. The table is longer than
its capacity instead of wrapping around, and ends with an empty slot.
"""

from omstore.index.build import build_index, capacity_for
from omstore.index.lookup import StateIndex

__all__ = ["StateIndex", "build_index", "capacity_for"]
