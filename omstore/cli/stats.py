"""`omstore stats`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from omstore.cli.command import allow_model_import_option, command, max_ram_option
from omstore.cli.row_facts import attribute_levels, row_facts
from omstore.terminal import Session, bar, columns, percent, short_number, table

if TYPE_CHECKING:
    from omstore.inspect.coverage import Coverage
    from omstore.inspect.edges import EdgeSummary
    from omstore.inspect.summary import StatsReport, Unreachable

__all__ = ["stats_command"]

_BAR = 40


@command(
    "stats",
    short="Show what a store holds.",
    examples=["omstore stats exports/pursuit/3", "omstore stats exports/pursuit/3 --version 1 --json"],
)
@click.argument("export", type=click.Path(path_type=Path))
@click.option("--version", metavar="V", show_default="the live one", help="Version, such as v000001 or 1.")
@allow_model_import_option
@max_ram_option
def stats_command(
    session: Session, export: Path, version: str | None, allow_model_import: bool, max_ram: int
) -> None:
    """Show what a store holds, from counts and bytes to replay coverage and provenance.

    Bytes by part and by edge, compression against the pickles, a histogram of outdegrees, legal shares by
    agent and action, probabilities and rewards, absorbing and unreachable nodes, how much of the graph the
    replay has seen, and what the store was made from. Reads all rows once, front to back, in bounded memory;
    of a graph with more than 2 billion edges a random part, and says so.
    """
    from omstore.inspect.exports import require_export
    from omstore.inspect.summary import stats

    require_export(export, "stats", needs="store")
    report = stats(
        export,
        version,
        allow_model_import=allow_model_import,
        max_ram=max_ram,
        progress=session.progress,
    )
    session.emit(report.to_dict(), lambda: _write(export, report))


def _write(export: Path, report: StatsReport) -> None:
    click.echo(f"{export} {report.version}, published {report.published:%Y-%m-%d %H:%M} UTC")
    columns(_counts(report))
    _heading("bytes")
    columns(_sizes(report))
    _parts(report)
    if report.edges is not None:
        if report.edges.estimated:
            _estimate(report, report.edges)
        _outdegrees(report.edges)
        _actions(report)
        _numbers(report.edges)
        _heading("nodes")
        columns(_nodes(report.edges, report.unreachable))
    if report.coverage is not None:
        _heading("replay")
        columns(_coverage(report.coverage))
    _heading("provenance")
    columns(_provenance(report))


def _count(number: int, edges: EdgeSummary) -> str:
    """Write a number of rows or nodes: the first three digits of it where it was estimated."""
    return f"{float(f'{number:.2e}') if edges.estimated else number:,.0f}"


def _heading(title: str) -> None:
    click.echo(f"\n{title}")


def _counts(report: StatsReport) -> list[tuple[str, str]]:
    counts = report.counts
    lines = [("agents", ", ".join(report.agents))]
    if counts.num_nodes:
        legal = report.edges.legal_rows if report.edges is not None else 0
        about = "about " if report.edges is not None and report.edges.estimated else ""
        each = " x ".join(map(str, report.num_actions))
        lines += [
            ("nodes", f"{counts.num_nodes:,}"),
            ("joint actions", f"{counts.num_joint_actions:,} ({each})"),
            ("rows", f"{counts.num_rows:,}, {about}{percent(legal / counts.num_rows)} legal"),
            ("edges", f"{counts.num_edges:,}"),
        ]
    state = f"{report.state_width} components of {report.state_bits} bit{'s' * (report.state_bits > 1)}"
    lines += [("transitions", f"{counts.num_transitions:,}"), ("state", state)]
    if report.encoding:
        reason = f" ({report.encoding_reason})" if report.encoding_reason else ""
        lines.append(("row encoding", f"{report.encoding}{reason}"))
        lines += row_facts(report.rows, report.agents)
        lines.append(("attributes", attribute_levels(report.attributes, report.attribute_values)))
    return lines


def _sizes(report: StatsReport) -> list[tuple[str, str]]:
    from omstore.memory import format_bytes

    lines = [("store", format_bytes(report.store_bytes))]
    ratio = report.compression
    if ratio is not None:
        compared = f"{ratio:.1f} times smaller" if ratio >= 1 else f"{1 / ratio:.1f} times larger"
        lines[0] = (
            "store",
            f"{format_bytes(report.store_bytes)} from {format_bytes(report.source_bytes)} of pickles, "
            f"{compared}",
        )
    return lines


def _parts(report: StatsReport) -> None:
    from omstore.memory import format_bytes

    rows = [(part.name, format_bytes(part.size), _per_edge(part.per_edge)) for part in report.parts]
    graph = sum(part.size for part in report.parts if part.per_edge is not None)
    if report.counts.num_edges:
        rows.append(("the graph", format_bytes(graph), _per_edge(graph / report.counts.num_edges)))
    table(("part", "size", "bytes an edge"), rows)


def _estimate(report: StatsReport, edges: EdgeSummary) -> None:
    click.echo(
        f"\nWhat follows is estimated from {edges.nodes_read:,} of {report.counts.num_nodes:,} nodes, at random "
        f"({edges.edges_read:,} of {report.counts.num_edges:,} edges): the graph is too large to read all of it."
    )


def _per_edge(size: float | None) -> str:
    if size is None:
        return ""
    return "<0.0001" if 0 < size < 0.00005 else f"{size:.4f}"


def _outdegrees(edges: EdgeSummary) -> None:
    _heading(
        f"successors of a row (mean of legal rows {edges.mean_outdegree:.2f}, most {edges.max_outdegree:,})"
    )
    largest = max((b.rows for b in edges.outdegree), default=1)
    total = sum(b.rows for b in edges.outdegree)
    names = [f"{b.low:,}" if b.low == b.high else f"{b.low:,} to {b.high:,}" for b in edges.outdegree]
    width = max(map(len, names), default=0)
    counts = max((len(_count(b.rows, edges)) for b in edges.outdegree), default=0)
    for name, entry in zip(names, edges.outdegree, strict=True):
        drawn = bar(entry.rows / largest, _BAR)
        click.echo(
            f"  {name:>{width}}  {_count(entry.rows, edges):>{counts}} rows {percent(entry.rows / total):>7}  {drawn}"
        )


def _actions(report: StatsReport) -> None:
    if report.edges is None:
        return
    _heading("legal share of rows, by agent and action")
    lines = []
    for agent in report.agents:
        shares = [entry for entry in report.edges.actions if entry.agent == agent]
        if len({entry.legal for entry in shares}) == 1:
            text = f"{percent(shares[0].legal)} for each of {len(shares)} actions"
        else:
            text = ", ".join(f"{entry.action}: {percent(entry.legal)}" for entry in shares)
        lines.append((agent, text))
    columns(lines)


def _numbers(edges: EdgeSummary) -> None:
    _heading("edges")
    p = edges.probability
    rows = [
        ("probability", short_number(p.minimum), short_number(p.maximum), short_number(p.mean), "", ""),
    ]
    for reward in edges.rewards:
        values = (reward.minimum, reward.maximum, reward.mean, reward.expected)
        rows.append(
            (f"reward of {reward.agent}", *map(short_number, values), percent(reward.nonzero_share))  # type: ignore[arg-type]
        )
    table(("", "least", "largest", "mean", "expected in a row", "not 0"), rows)
    lines = [
        ("done", percent(edges.done_share)),
        ("back to their node", percent(edges.self_share)),
        ("sum of a row", f"1 within {edges.row_error:.1g}"),
    ]
    nonfinite = sum(reward.nonfinite for reward in edges.rewards)
    if nonfinite:
        lines.append(("not finite", f"{nonfinite:,} rewards"))
    columns(lines)


def _nodes(edges: EdgeSummary, unreachable: Unreachable | None) -> list[tuple[str, str]]:
    lines = [
        ("absorbing", f"{_count(edges.absorbing, edges)} (every edge leads back)"),
        ("without a legal row", _count(edges.dead_ends, edges)),
    ]
    if unreachable is not None:
        first = f", such as {', '.join(map(str, unreachable.first))}" if unreachable.count else ""
        lines.append(
            (
                "unreachable",
                f"{unreachable.count:,} (no edge from another node, not in the replay){first}",
            )
        )
    return lines


def _coverage(coverage: Coverage) -> list[tuple[str, str]]:
    lines = [
        ("off the graph", f"{percent(coverage.off_graph_share)} ({coverage.off_graph:,} transitions)"),
        ("nodes seen", f"{percent(coverage.node_share)} ({coverage.nodes:,})"),
        ("rows taken", f"{percent(coverage.row_share)} of the legal ones ({coverage.rows:,})"),
    ]
    if coverage.illegal:
        lines.append(("not legal", f"{coverage.illegal:,} transitions by a joint action without successors"))
    return lines


def _provenance(report: StatsReport) -> list[tuple[str, str]]:
    from omstore.memory import format_bytes

    lines = [
        ("source", f"{source.name}, {format_bytes(source.size)}, sha256 {source.sha256[:16]}...")
        for source in report.sources
    ]
    chosen = {name: value for name, value in report.options.items() if value not in (None, False, [], {})}
    lines.append(("options", ", ".join(f"{name} {value}" for name, value in chosen.items()) or "none"))
    lines.append(("made by", f"omstore {report.tool_version}, schema {report.schema_version}"))
    lines += [("note", note) for note in report.notes]
    return lines
