"""``omtrain evaluate``: exact answers on the graph."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from omstore.errors import UsageError
from omstore.memory import format_bytes, parse_bytes
from omstore.terminal import columns, table
from trainer.cli.command import Session, command

__all__ = ["evaluate_command"]

_SHOWN_LEVELS = (
    ("agent's return", "agent_return"),
    ("best response", "agent_best"),
    ("gains", "agent_gain"),
    ("team's return", "team_return"),
    ("best response", "team_best"),
    ("gains", "team_gain"),
)
_HEADER = ("", *(title for title, _ in _SHOWN_LEVELS))


@command(
    "evaluate",
    short="Say exactly how good policies are, and how exploitable.",
    examples=(
        "omtrain evaluate exports/pursuit/3",
        "omtrain evaluate exports/pursuit/3 --team uniform --horizon 20 --json",
        "omtrain evaluate exports/pursuit/3 --converge --discount 0.9 --node 4711",
        "omtrain evaluate exports/pursuit/3 --team other/om/iop_stack.pt:level2",
    ),
)
@click.argument("export")
@click.option("--agent", metavar="POLICY", help="The focal agent's policy [default: agent, else uniform].")
@click.option(
    "--team", metavar="POLICY", help="The team's policy [default: the highest level, else uniform]."
)
@click.option(
    "--focal-agent",
    metavar="NAME|N",
    help="The agent that is no team member [default: that of the training].",
)
@click.option(
    "--horizon", type=int, metavar="STEPS", help="Steps of returns [default: those of the training]."
)
@click.option(
    "--converge", is_flag=True, help="Returns without an end, within --tolerance; discount below 1."
)
@click.option(
    "--discount", type=float, metavar="G", help="Factor a step, 0 to 1 [default: that of training]."
)
@click.option(
    "--tolerance", type=float, default=1e-9, show_default=True, help="Of returns without an end, at most."
)
@click.option(
    "--within", type=int, default=20, show_default=True, metavar="STEPS", help="Steps that captures may take."
)
@click.option(
    "--max-sweeps",
    type=int,
    default=1000,
    show_default=True,
    help="Sweeps for captures without an end, at most.",
)
@click.option(
    "--goal",
    metavar="FILE.npy",
    help="(nodes,) bool: what counts as a capture [default: done on entering it].",
)
@click.option("--captures/--no-captures", default=True, help="How likely captures are [default: yes].")
@click.option(
    "--visits/--no-visits",
    default=None,
    help="How often nodes are visited [default: if edges aren't too many].",
)
@click.option("--levels/--no-levels", default=True, help="A table over the team's levels [default: yes].")
@click.option("--write/--no-write", default=True, help="Values of every node to om/values/ [default: yes].")
@click.option(
    "--node", type=int, multiple=True, metavar="N", help="Show the values of a node; may be repeated."
)
@click.option(
    "--state",
    multiple=True,
    metavar="0,1,...",
    help="Show the values of a state: its components, or bits run together.",
)
@click.option("--max-ram", default="512M", show_default=True, metavar="SIZE", help="Memory to stay under.")
@click.option(
    "--threads", type=int, default=2, show_default=True, metavar="N", help="No influence on results."
)
@click.option("--store-version", "version", metavar="VERSION", help="Of the store [default: the live one].")
@click.option("--allow-model-import", is_flag=True, help="Import the model that a procedural store names.")
def evaluate_command(
    session: Session, export: str, node: tuple[int, ...], state: tuple[str, ...], max_ram: str, **given: Any
) -> int:
    """Compute returns, best responses, captures and visits of two policies exactly, by sweeps over EXPORT's graph.

    A POLICY is `uniform`; `agent`, or `level0`, `level1`, ... of the training in om/; FILE.npy with a row of
    probabilities a node; or PATH:agent, PATH:level1 of another artifact, export or checkpoint. Values of every node
    go to om/values/ and are read by trainer.open_values.
    """
    import omstore
    from trainer.evaluating import EvaluateOptions, evaluate

    session.interrupted_note = lambda: "nothing was written"
    graph = omstore.open(
        export, version=given["version"], allow_model_import=given["allow_model_import"]
    ).graph
    wanted = [] if graph is None else _nodes(graph, node, state)
    report = evaluate(
        export, EvaluateOptions(max_ram=parse_bytes(max_ram), **given), progress=session.progress
    )
    document = {**report.document}
    if wanted:
        document["nodes"] = [
            {"node": n, **{name: values[n].item() for name, values in report.arrays.items()}} for n in wanted
        ]
    session.emit(document, lambda: _write(document))
    return 0


def _nodes(graph: Any, nodes: tuple[int, ...], states: tuple[str, ...]) -> list[int]:
    found = list(nodes)
    for number in nodes:
        if not 0 <= number < graph.num_nodes:
            raise UsageError(f"there is no node {number}: nodes are 0 to {graph.num_nodes - 1:,}")
    for text in states:
        parts = text.replace(",", " ").split()
        if len(parts) == 1 and graph.component_bits == 1:
            parts = list(parts[0])
        try:
            vector = np.array([int(part) for part in parts], np.int64)
        except ValueError as error:
            raise UsageError(f"{text!r} is no state: {error}", "Such as 0,1,1,0.") from error
        if len(vector) != graph.state_width:
            raise UsageError(f"a state has {graph.state_width} components, {text!r} has {len(vector)}")
        at = int(graph.lookup(vector[None])[0])
        if at < 0:
            raise UsageError(f"the state {text!r} isn't in the graph")
        found.append(at)
    return found


def _mean(means: dict[str, Any]) -> str:
    text = f"{means['nodes']:+.6f} over nodes"
    if means["roots"] is not None:
        text = f"{means['roots']:+.6f} over root states, {text}"
    return text + (f" (within {means['error']:.1e})" if means["error"] else "")


def _write(document: dict[str, Any]) -> None:
    pair = document["pair"]
    steps = "without an end" if document["horizon"] is None else f"over {document['horizon']} steps"
    focal = document["agents"][document["focal_agent"]]
    click.echo(
        f"{document['export']}: {focal} plays {pair['agent']}, the others play {pair['team']}; returns {steps}, "
        f"discount {document['discount']:g}"
    )
    rows = [(f"return of {name}", _mean(means)) for name, means in pair["returns"].items()]
    rows += [
        ("agent's best response", _mean(pair["agent_best"])),
        ("  gains (the team's exploitability)", _mean(pair["agent_gain"])),
        ("team's best response", _mean(pair["team_best"])),
        ("  gains (the agent's exploitability)", _mean(pair["team_gain"])),
    ]
    captures = document.get("captures")
    if captures is not None:
        for ending, who in (("", ""), ("_most", ", most"), ("_least", ", least")):
            rows += [
                (f"captured within {captures['within']}{who}", _mean(captures[f"capture_within{ending}"])),
                (f"captured ever{who}", _mean(captures[f"capture_ever{ending}"])),
            ]
    found = document.get("visits")
    if found is not None:
        rows.append(
            (
                "visits",
                f"{found['visits']:.4f} from {found['from']}, to {found['nodes_visited']:,} nodes; most to "
                + ", ".join(
                    f"{each['node']} ({each['frequency']:.4f})" for each in found["most_visited"][:3]
                ),
            )
        )
    columns(rows)
    if document.get("levels"):
        click.echo("levels, means over " + ("root states" if document["roots"] else "nodes"))
        table(_HEADER, [_row(f"L{each['level']}", each) for each in document["levels"]])
    if document.get("phases"):
        click.echo(
            "after each phase of training, means over " + ("root states" if document["roots"] else "nodes")
        )
        table(_HEADER, [_phase(each) for each in document["phases"]])
    for each in document.get("nodes", ()):
        click.echo(f"node {each['node']}")
        columns((name, f"{value:.9g}") for name, value in each.items() if name != "node")
    last = [("memory", f"{format_bytes(document['peak_anonymous'])} anonymous at the peak")]
    if "values" in document:
        last.append(("values", document["values"]))
    columns(last)


def _number(means: dict[str, Any]) -> str:
    return f"{means['nodes'] if means['roots'] is None else means['roots']:+.5f}"


def _row(name: str, pair: dict[str, Any]) -> list[str]:
    return [name, *(_number(pair[key]) for _, key in _SHOWN_LEVELS)]


def _phase(each: dict[str, Any]) -> list[str]:
    which = f"opp=L{each['level']}" if each["learner"] == "agent" else f"level=L{each['level']}"
    name = f"{each['phase']}/{each['phases']} {each['learner']} {which}"
    shown = []
    for _, key in _SHOWN_LEVELS:
        roots, nodes = each[f"{key}_roots"], each[f"{key}_nodes"]
        shown.append(f"{nodes if roots is None else roots:+.5f}")
    return [name, *shown]
