"""What a row encoding is made of, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["attribute_levels", "row_facts"]

_LEVELS = {
    "graph": "one value",
    "next_node": "by next node",
    "node": "by node",
    "next_node_unless_node": "by next node, unless the node has its own",
    "row": "by row",
    "outcome": "by outcome",
    "edge": "by edge",
    "rows": "computed from the rows",
}


def attribute_levels(levels: Mapping[str, str], values: Mapping[str, int]) -> str:
    """Say of what each attribute is a function, a line each.

    Parameters
    ----------
    levels : mapping of str to str
        By attribute.
    values : mapping of str to int
        Distinct values, of those that nodes hold as codes.
    """
    lines = []
    for name, level in levels.items():
        distinct = f", {values[name]:,} values" if name in values else ""
        lines.append(f"{name} {_LEVELS.get(level, f'by {level}')}{distinct}")
    return "\n".join(lines)


def row_facts(rows: Mapping[str, Any], agents: Sequence[str]) -> list[tuple[str, str]]:
    """Say what the manifest knows of the rows, as names and values.

    Parameters
    ----------
    rows : mapping
        ``manifest.rows``.
    agents : sequence of str
        Their names.
    """
    lines = []
    if rows.get("outdegree") is not None:
        lines.append(("each row", f"{rows['outdegree']:,} successors"))
    components = rows.get("components")
    if components:
        lines.append(("components", "\n".join(_component(entry, agents) for entry in components)))
    exceptions = rows.get("exceptions")
    if isinstance(exceptions, Mapping):
        parts = (f"{value:,} {name}" for name, value in sorted(exceptions.items()))
        lines.append(("exceptions", ", ".join(parts)))
    counts = {
        name.removeprefix("num_").replace("_", " "): value
        for name, value in rows.items()
        if name.startswith("num_") and isinstance(value, int)
    }
    if counts:
        lines.append(("made of", ", ".join(f"{value:,} {name}" for name, value in counts.items())))
    proof = rows.get("proof")
    if proof:
        text = f"{proof.get('rows', 0):,} rows, {proof.get('edges', 0):,} edges compared with the source"
        ulp = proof.get("largest_difference_ulp")
        if ulp is not None:
            text += f", probabilities equal within {ulp} ulp" if ulp else ", all equal"
        lines.append(("proof", text))
    if rows.get("model"):
        lines.append(("model", str(rows["model"])))
    return lines


def _component(entry: Mapping[str, Any], agents: Sequence[str]) -> str:
    agent = entry.get("agent")
    mover = "moved by nobody" if agent is None or agent >= len(agents) else f"moved by {agents[agent]}"
    return f"{entry.get('size', 0):,} local states {mover}, {entry.get('num_actions', 1):,} actions"
