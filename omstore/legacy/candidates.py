"""Which of a pickle's records play a part: telling names, then the longest; and why none of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from omstore.errors import BadDataError, UsageError
from omstore.legacy.fields import Records, find_records, snake_case
from omstore.legacy.roles import Roles
from omstore.legacy.schema import PickleTree

__all__ = ["choose_records", "choose_roles"]

_Refusal = tuple[Records, BadDataError]
"""Records that were tried, and why they are not it."""


def choose_roles(
    tree: PickleTree,
    part: str,
    wanted: Sequence[str],
    overrides: Mapping[str, str],
    roles_of: Callable[[Records], Roles],
) -> tuple[Roles, list[Records]]:
    """Take the likeliest records of a pickle whose fields have all the roles.

    Parameters
    ----------
    tree : PickleTree
    part : str
        What they are, and the option that says which: edges or transitions.
    wanted : sequence of str
        Telling names of such records, the best first.
    overrides : mapping
        ``--map``.
    roles_of : callable
        Assigns the fields of records to roles; raises `BadDataError` where one can't be decided.

    Returns
    -------
    roles : Roles
    found : list of Records
        All records of the pickle.

    Raises
    ------
    BadDataError, UsageError
        As `map_graph` says.
    """
    found = find_records(tree)
    refused: list[_Refusal] = []
    for records in choose_records(found, wanted, overrides.get(part), f"the {part}"):
        if _is_guesswork(records, refused, wanted):
            continue
        try:
            roles = roles_of(records)
        except BadDataError as error:
            refused.append((records, error))
            continue
        if part not in overrides:
            _refuse_rivals(records, found, wanted, part)
        return roles, found
    raise _nothing_fits(part, refused, tree)


def choose_records(
    found: Sequence[Records], wanted: Sequence[str], override: str | None, what: str
) -> list[Records]:
    """Order candidates: the one asked for, else those with a telling name, else the longest."""
    if override is not None:
        exact = [r for r in found if r.name == override or (r.path and str(r.path[-1]) == override)]
        if not exact:
            listed = ", ".join(f"{r.name} ({r.num_rows:,} records)" for r in found) or "nothing like records"
            raise UsageError(f"nothing called {override!r} to take as {what}", f"The pickle holds: {listed}.")
        return exact

    return sorted(found, key=lambda r: (_telling(r, wanted), len(r.path), -r.num_rows))


def _telling(records: Records, wanted: Sequence[str]) -> int:
    """Rank of the innermost name around the records among those wanted; the root has the last but one."""
    if records.path == ():
        return len(wanted) - 1
    steps = [snake_case(step) for step in records.path if isinstance(step, str)]
    return min((wanted.index(step) for step in steps[-1:] if step in wanted), default=len(wanted))


def _refuse_rivals(records: Records, found: Sequence[Records], wanted: Sequence[str], option: str) -> None:
    """Refuse to take one of several containers with records alike, none of which has a better name.

    They may be episodes, or the edges of one node each: taking the longest would drop the others in silence.

    Raises
    ------
    BadDataError
        Naming them, and the option that says which.
    """
    alike = [
        other
        for other in found
        if _telling(other, wanted) <= _telling(records, wanted) and _signature(other) == _signature(records)
    ]
    if len(alike) > 1:
        shown = ", ".join(
            f"{other.name} ({other.num_rows:,})" for other in sorted(alike, key=lambda r: r.schema.id)[:5]
        )
        more = f" and {len(alike) - 5:,} more" if len(alike) > 5 else ""
        raise BadDataError(
            f"{len(alike):,} containers hold records alike, and it can't be told which are the {option}: {shown}{more}",
            f"Export them as one list, or say which to take, and leave the others out, with --map {option}=NAME.",
        )


def _signature(records: Records) -> list[tuple[object, ...]]:
    return [(column.path, column.kind, column.shape) for column in records.schema.columns]


def _is_called(records: Records, names: Sequence[str]) -> bool:
    """Whether the container of the records has one of these names."""
    return any(isinstance(step, str) and snake_case(step) in names for step in records.path[-1:])


def _is_guesswork(records: Records, refused: Sequence[_Refusal], names: Sequence[str]) -> bool:
    """Whether taking records without field names would be a wild guess: others have a telling name, and were
    refused because something about them has to be said.
    """
    return records.unnamed and any(_is_called(other, names) for other, _ in refused)


def _nothing_fits(what: str, reasons: Sequence[_Refusal], tree: PickleTree) -> BadDataError:
    """Make the error for a pickle in which nothing plays the part, from why the candidates don't."""
    if not reasons:
        return BadDataError(
            f"the pickle holds nothing like {what}: its root is a {type(tree.root).__name__} without records",
            "Is it the right file? `omstore peek FILE` shows what is in it.",
        )
    likely = reasons[0][1]
    if len(reasons) == 1:
        return likely
    listed = ", ".join(f"{records.name} ({records.num_rows:,})" for records, _ in reasons)
    return BadDataError(
        f"{likely.message}; the pickle holds: {listed}",
        f"{likely.hint} Which records to take: --map {what}=NAME.",
    )
