"""How the machine and Python talk: registers, commands, events and errors."""

from __future__ import annotations

from typing import Final

# --- registers ------------------------------------------------------------------------------------------
R_PC: Final = 0
R_SP: Final = 1
R_MARKS: Final = 2
R_TOP: Final = 3
R_MEMO: Final = 4  # number of memo entries so far
R_CURSOR: Final = 5  # first fetched memo id not below R_MEMO
R_PROGRESS: Final = 6  # items of the current opcode that are converted already
R_LOOSE: Final = 7  # table + 1 whose records may sit in any small list (adjacency)
R_TABLE: Final = 8  # event argument: table
R_ADDRESS: Final = 9  # event argument: container, or number of slots wanted
R_NODE: Final = 10  # event argument: schema node that didn't fit
R_TAG: Final = 11  # event argument: the value that didn't fit
R_VALUE: Final = 12
R_HIGH: Final = 13  # highest heap address the memo points at
R_ERROR: Final = 14
R_MATCHED: Final = 15  # rows read by templates
R_FREE_MARK: Final = 16  # marks up to this depth may overflow (their items were looked at and stay)
R_LINKED: Final = 17  # entries of an adjacency's inner dict that are converted already
R_LIMIT: Final = 18  # file offset to stop at
R_BASE: Final = 19  # stack height at the innermost mark
R_AFTER: Final = 20  # file offset behind the opcode at R_PC
R_COMMAND: Final = 21
R_START: Final = 22  # of a conversion: first heap slot
R_COUNT: Final = 23  # heap slots; afterwards, how many were done
R_STEP: Final = 24  # slots an item takes
# Sizes of the arrays, set by `run`.
R_SIZE: Final = 25
R_HEAP_SIZE: Final = 26
R_STACK_SIZE: Final = 27
R_MARK_SIZE: Final = 28
R_MEMO_SIZE: Final = 29
R_NUM_GLOBALS: Final = 30
NUM_REGISTERS: Final = 32

# --- commands -------------------------------------------------------------------------------------------
DO_RUN: Final = 0  # run opcodes
DO_ITEMS: Final = 1  # convert heap slots to rows of R_TABLE
DO_LINKS: Final = 2  # the same for an adjacency's pairs
DO_COLLECT: Final = 3  # collect garbage into `spare`

# --- events ---------------------------------------------------------------------------------------------
AGAIN: Final = -1  # no event: go on where the registers say
EV_LIMIT: Final = 1
EV_STOP: Final = 2
EV_COLLECT: Final = 3
EV_STACK: Final = 4
EV_MARKS: Final = 5
EV_GLOBAL: Final = 6
EV_BIG: Final = 7
EV_FLUSH: Final = 8
EV_MISFIT: Final = 9
EV_OVERFLOW: Final = 10
EV_ERROR: Final = 11
EV_LEARN: Final = 12  # a batch read without templates lies between bytes R_ADDRESS and R_VALUE

# --- errors ---------------------------------------------------------------------------------------------
E_UNDERFLOW: Final = 1
E_MARK: Final = 2
E_MEMO: Final = 3
E_CALL: Final = 4  # REDUCE of something that isn't understood: R_VALUE is the global
E_TYPE: Final = 5  # operands of the wrong kind
E_OPCODE: Final = 6
E_NEWOBJ: Final = 8
E_DTYPE: Final = 9
E_TENSOR: Final = 10
E_LINK: Final = 11  # an adjacency's list that holds something other than records

# --- limits ---------------------------------------------------------------------------------------------
OVERFLOW: Final = 4096  # values above one mark before Python is asked what they are
BATCH: Final = 1000  # items of a container before Python is asked whether they make a table
LEARN: Final = 48  # rows read without a template before Python is asked for one
ROOM: Final = 16  # free heap slots before any opcode: enough for what doesn't say how much it takes
NEVER: Final = 1 << 62
