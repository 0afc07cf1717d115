"""The value stack with its open marks, and the numbers of the memo."""

# ruff: noqa: SIM110 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy.machine.arrays import Marks, Stacks
from omstore.legacy.machine.registers import (
    EV_ERROR,
    R_BASE,
    R_ERROR,
    R_FREE_MARK,
    R_HIGH,
    R_MARKS,
    R_SP,
    R_TOP,
)
from omstore.legacy.machine.tags import ROWS

__all__ = ["close", "fail", "has_rows", "memo_slot", "owner", "rewind"]


@inner_kernel
def fail(registers: Any, error: Any) -> Any:
    """The event for an error, which is noted."""
    registers[R_ERROR] = error
    return np.int64(EV_ERROR)


@inner_kernel
def has_rows(stacks: Stacks, start: Any, stop: Any) -> Any:
    """Whether there are ROWS among values that must be single ones."""
    for i in range(start, stop):
        if stacks.tag[i] == ROWS:
            return True
    return False


@inner_kernel
def rewind(registers: Any, marks: Marks) -> Any:
    """Drop what the heap holds from the innermost mark on, unless the memo needs it: it has become rows."""
    heap = marks.heap[registers[R_MARKS] - 1]
    if heap > registers[R_HIGH]:
        registers[R_TOP] = heap


@inner_kernel
def close(registers: Any, sp: Any) -> Any:
    """Close the innermost mark, leaving the stack at a height."""
    registers[R_MARKS] -= 1
    registers[R_SP] = sp
    if registers[R_FREE_MARK] > registers[R_MARKS]:
        registers[R_FREE_MARK] = registers[R_MARKS]


@inner_kernel
def owner(registers: Any, marks: Marks) -> Any:
    """Stack position of the container below the innermost mark, -1 when there is none."""
    count = registers[R_MARKS]
    position = registers[R_BASE] - 1
    below = marks.height[count - 2] if count > 1 else np.int64(0)
    return position if position >= below else np.int64(-1)


@inner_kernel
def memo_slot(numbers: Any, size: Any, number: Any) -> Any:
    """Position of a memo number among those that are fetched, -1 when it never is."""
    low = np.int64(0)
    high = size
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    if low < size and numbers[low] == number:
        return low
    return np.int64(-1)
