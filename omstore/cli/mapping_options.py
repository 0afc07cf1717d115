"""The options that say what plays which part in a pickle, the same for `convert` and `peek`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["mapping_options"]


def _parse_map(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for entry in given:
        field, equals, name = entry.partition("=")
        if not (field and equals and name):
            raise click.BadParameter(f"{entry!r} isn't FIELD=NAME, such as next_node=dst")
        if overrides.setdefault(field, name) != name:
            raise click.BadParameter(f"{field} is given twice: {overrides[field]} and {name}")
    return overrides


def mapping_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--map``, ``--keep`` and ``--focal``."""
    for option in (
        click.option(
            "--focal",
            metavar="AGENT",
            show_default="agent 0",
            help="Agent, by name or number, whose observation is the state of a transition, where the replay "
            "has an observation per agent.",
        ),
        click.option(
            "--keep",
            multiple=True,
            metavar="NAME",
            show_default="none",
            help="Store this extra field of the records as well; may be given several times.",
        ),
        click.option(
            "--map",
            "overrides",
            multiple=True,
            metavar="FIELD=NAME",
            callback=_parse_map,
            show_default="inferred",
            help="Which legacy name plays a part; may be given several times. FIELD: nodes, edges, "
            "node_state, node_id, source, next_node, joint_action, probability, reward, done; for the "
            "replay: transitions, observation, next_observation, replay_joint_action, replay_reward, "
            "replay_done, ring_position, ring_size.",
        ),
    ):
        function = option(function)
    return function
