"""The settings of a training run: one dataclass, filled from Python, a TOML file or flags."""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from omstore.errors import UsageError
from omstore.memory import DEFAULT_BUDGET
from trainer.improvement.config import SoftRolloutPIConfig
from trainer.level0_config import Level0Config
from trainer.setting import Setting, setting, shown
from trainer.staircase_config import StaircaseConfig

__all__ = ["TrainConfig", "read_settings", "settings"]

_MOST_SWEPT = 1 << 22
"""Numbers in a table of a side's policy over all nodes up to which `auto` means exact action values: they take some
50 MiB then, whatever the memory budget, on which results mustn't depend."""

_TEAM_ROOTS = {"exact": StaircaseConfig.team_root_state_samples, "rollouts": 100_000}
"""Budgets of a team phase: 4,500 updates take a few milliseconds each where action values are exact; by rollouts 196
take as long as an agent phase."""


@dataclass(frozen=True)
class TrainConfig:
    """How a run trains.

    `settings` lists the fields, each with a sentence and a unit. A field marked as deciding nothing may differ when a
    run goes on; any other must be what it was. What the settings of a stage have too (`Level0Config`,
    `StaircaseConfig`, `SoftRolloutPIConfig`) has its default there.

    Raises
    ------
    UsageError
        Naming a field whose value makes no sense.
    """

    focal_agent: str | None = setting(
        None,
        "name or number",
        "Agent that learns against the others; none: the first whose observations are the replay's states and whose "
        "team's mean reward isn't always the same.",
    )
    representation: Literal["observation", "state"] = setting(
        "observation",
        "word",
        "What level 0 learns from: what the focal agent observed, or the replay's states.",
    )
    capacity: int | None = setting(
        None,
        "transitions",
        "Newest transitions of the replay to learn from and draw root states from; none: all.",
    )
    strict: bool = setting(
        True,
        "yes or no",
        "Refuse a replay with states that aren't in the graph; else no roots are drawn from them.",
    )
    store_version: str | None = setting(
        None,
        "version",
        "Version of the store, such as v000001; none: the live one when training began.",
        decides=False,  # the store itself is compared
    )
    hidden: int = setting(256, "units", "Units in each of the two hidden layers of every network.")
    seed: int = setting(SoftRolloutPIConfig.seed, "number", "Seed of all random numbers.")
    level0_epochs: int = setting(
        Level0Config.epochs, "epochs", "Times that level 0 uses every training transition."
    )
    level0_batch: int = setting(Level0Config.batch, "transitions", "Transitions of an update of level 0.")
    level0_lr: float = setting(
        Level0Config.lr, "weight a step", "Step size of Adam for level 0 at first; it falls to 0."
    )
    level0_held_out: float = setting(
        Level0Config.held_out,
        "fraction",
        "Fraction of the transitions that level 0 never trains on, to evaluate it.",
    )
    levels: int = setting(
        StaircaseConfig.levels,
        "levels",
        "Levels of the team above level 0; two phases of the staircase each.",
    )
    agent_root_state_samples: int = setting(
        StaircaseConfig.agent_root_state_samples, "root states", "Root states of each agent phase."
    )
    team_root_state_samples: int | None = setting(
        None,
        "root states",
        "Root states of each team phase; none: 2,304,000 where its action values are exact, else 100,000.",
    )
    agent_action_values: Literal["rollouts", "exact", "auto"] = setting(
        StaircaseConfig.agent_action_values,
        "word",
        "How agent phases find values of actions: by rollouts; exact, by sweeps over all rows; auto: exact where nodes x "
        "actions are at most 4,194,304.",
    )
    team_action_values: Literal["rollouts", "exact", "auto"] = setting(
        "auto", "word", "How team phases find values of actions: rollouts, exact or auto, as agent phases."
    )
    batch: int = setting(
        SoftRolloutPIConfig.batch, "root states", "Root states of an update of the staircase."
    )
    n_rollouts: int = setting(
        SoftRolloutPIConfig.n_rollouts, "rollouts", "Rollouts of each candidate action of a root state."
    )
    sweep_updates: int = setting(
        SoftRolloutPIConfig.sweep_updates,
        "updates",
        "Updates that exact action values serve, before they are computed anew.",
    )
    horizon: int = setting(
        SoftRolloutPIConfig.horizon,
        "steps",
        "Steps of a rollout at most, and what exact action values look ahead.",
    )
    discount: float = setting(
        SoftRolloutPIConfig.discount,
        "factor a step",
        "Factor by which a reward counts less for each step that it comes later, 0 to 1.",
    )
    temperature: float | None = setting(
        SoftRolloutPIConfig.temperature,
        "return",
        "Difference of action values at which the soft target is e times as likely for the better one, or, where they are "
        "exact, e times as likely as now; none: 0.015 by rollouts, 0.03 where exact.",
    )
    entropy_coef: float = setting(
        SoftRolloutPIConfig.entropy_coef,
        "nats a nat",
        "Cross-entropy that a nat of the policy's entropy is worth.",
    )
    lr: float = setting(
        SoftRolloutPIConfig.lr, "weight a step", "Step size of Adam in the staircase, at first in each phase."
    )
    lr_decay: float = setting(
        SoftRolloutPIConfig.lr_decay,
        "fraction",
        "Fraction of a phase, at its end, over which lr falls linearly to 0; 0: it stays.",
    )
    candidate_actions: int | None = setting(
        SoftRolloutPIConfig.candidate_actions,
        "actions",
        "Actions evaluated at a root state at most, drawn from the legal ones; none: all legal.",
    )
    print_every: int = setting(
        SoftRolloutPIConfig.print_every,
        "root states",
        "Root states between two refreshes of bar and metrics at least, a tenth of the phase where that is more; "
        "0: no bar.",
    )
    evaluate: bool = setting(
        False,
        "yes or no",
        "After each phase compute exactly what its policies are worth, and best responses; as metrics of stage exact.",
    )
    legal_cache: int = setting(
        100_000, "nodes", "Nodes whose legal actions are kept in memory.", decides=False
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "word", "Where networks run; auto: cuda where there is one.", decides=False
    )
    threads: int = setting(2, "threads", "Threads for rollouts and policy tables.", decides=False)
    max_ram: int = setting(
        DEFAULT_BUDGET,
        "bytes",
        "Memory to stay under, such as 512M or 2G (units of 1024); policies are tabulated within it.",
        decides=False,
    )
    checkpoint_updates: int = setting(
        1000, "updates", "Updates between two checkpoints at most.", decides=False
    )
    checkpoint_seconds: float = setting(
        60.0, "seconds", "Seconds between two checkpoints at most, to the next update.", decides=False
    )
    allow_model_import: bool = setting(
        False,
        "yes or no",
        "Import, and so execute, the model that a store with procedural rows names.",
        decides=False,
    )
    tensorboard: bool = setting(
        False, "yes or no", "Write the metrics for TensorBoard too, into om/tensorboard.", decides=False
    )

    def __post_init__(self) -> None:
        for each in settings():
            object.__setattr__(self, each.name, each.coerce(getattr(self, each.name)))
        for name in (
            "hidden", "levels", "agent_root_state_samples", "level0_epochs", "level0_batch", "batch", "n_rollouts",
            "sweep_updates", "horizon", "threads", "max_ram", "checkpoint_updates",
        ):  # fmt: skip
            self._check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("capacity", "candidate_actions", "team_root_state_samples"):
            self._check(name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1, or none")
        for name in ("level0_lr", "lr"):
            self._check(name, 0 < getattr(self, name) < float("inf"), "above 0")
        good = self.temperature is None or 0 < self.temperature < float("inf")
        self._check("temperature", good, "above 0, or none")
        for name in ("print_every", "legal_cache", "checkpoint_seconds"):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        self._check("entropy_coef", 0 <= self.entropy_coef < float("inf"), "at least 0")
        self._check("level0_held_out", 0 <= self.level0_held_out < 1, "at least 0 and below 1")
        self._check("discount", 0 <= self.discount <= 1, "from 0 to 1")
        self._check("lr_decay", 0 <= self.lr_decay <= 1, "from 0 to 1")
        self._check("seed", 0 <= self.seed < 1 << 64, "from 0 to 2^64 - 1")

    def _check(self, name: str, good: bool, what: str) -> None:
        if not good:
            raise UsageError(f"{name} is {what}, not {getattr(self, name)}")

    @classmethod
    def from_mapping(cls, *layers: Mapping[str, Any], where: str = "settings") -> TrainConfig:
        """Make a config of settings by name; a later layer wins over an earlier one.

        Raises
        ------
        UsageError
            Naming a setting that there isn't, with the nearest one that there is; or a wrong value.
        """
        known = {each.name for each in settings()}
        merged: dict[str, Any] = {}
        for layer in layers:
            for name, value in layer.items():
                if name not in known:
                    nearest = difflib.get_close_matches(name.replace("-", "_"), known, 1, cutoff=0.5)
                    raise UsageError(
                        f"{where}: there is no setting {name!r}",
                        f"Did you mean {nearest[0]}?"
                        if nearest
                        else "`omtrain train --help` lists the settings.",
                    )
                merged[name] = value
        return cls(**merged)

    @classmethod
    def load(cls, path: str | Path | None, **settings: Any) -> TrainConfig:
        """Read a TOML file of settings, ``name = value`` on the top level; keyword arguments win over it.

        Raises
        ------
        UsageError
            If the file can't be read, isn't TOML, or names a setting that there isn't.
        """
        return cls.from_mapping({} if path is None else read_settings(path), settings)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name: what `from_mapping` takes, and what checkpoints hold."""
        return asdict(self)

    def deciding(self) -> dict[str, Any]:
        """Return the settings that results depend on."""
        return {each.name: getattr(self, each.name) for each in settings() if each.decides}

    def differences(self, earlier: Mapping[str, Any]) -> list[str]:
        """Say in which settings that results depend on this differs from an earlier config's `to_dict`.

        Returns
        -------
        list of str
            Such as ``"lr was 0.001, and is 0.01 now"``.
        """
        return [
            f"{name} was {shown(earlier.get(name, 'unknown'))}, and is {shown(value)} now"
            for name, value in self.deciding().items()
            if name not in earlier or earlier[name] != value
        ]

    def level0(self) -> Level0Config:
        """Return how level 0 is trained."""
        return Level0Config(
            epochs=self.level0_epochs,
            batch=self.level0_batch,
            lr=self.level0_lr,
            held_out=self.level0_held_out,
            seed=self.seed,
        )

    def staircase(self, *, agent_numbers: int = 0, team_numbers: int = 0) -> StaircaseConfig:
        """Return how the staircase is trained.

        Parameters
        ----------
        agent_numbers, team_numbers : int
            Nodes times actions of a side, what ``auto`` depends on; 0 is few.
        """
        agent_values = _resolved(self.agent_action_values, agent_numbers)
        team_values = _resolved(self.team_action_values, team_numbers)
        improvement = SoftRolloutPIConfig(
            batch=self.batch,
            n_rollouts=self.n_rollouts,
            sweep_updates=self.sweep_updates,
            horizon=self.horizon,
            discount=self.discount,
            temperature=self.temperature,
            entropy_coef=self.entropy_coef,
            lr=self.lr,
            lr_decay=self.lr_decay,
            candidate_actions=self.candidate_actions,
            print_every=self.print_every,
            seed=self.seed,
        )
        team_roots = self.team_root_state_samples or _TEAM_ROOTS[team_values]
        return StaircaseConfig(
            self.levels, self.agent_root_state_samples, team_roots, improvement, agent_values, team_values
        )


def _resolved(
    action_values: Literal["rollouts", "exact", "auto"], numbers: int
) -> Literal["rollouts", "exact"]:
    """Say what a setting means on a graph."""
    if action_values != "auto":
        return action_values
    return "exact" if numbers <= _MOST_SWEPT else "rollouts"


@cache
def settings() -> tuple[Setting, ...]:
    """Return the fields of `TrainConfig` in their order."""
    hints = typing.get_type_hints(TrainConfig)
    made = []
    for each in fields(TrainConfig):
        hint = hints[each.name]
        optional = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        if optional:
            hint = next(part for part in typing.get_args(hint) if part is not type(None))
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        made.append(
            Setting(
                each.name,
                str if choices else hint,
                choices,
                optional,
                each.default,
                each.metadata["unit"],
                each.metadata["help"],
                each.metadata["decides"],
            )
        )
    return tuple(made)


def read_settings(path: str | Path) -> dict[str, Any]:
    """Read settings by name from a TOML file.

    Raises
    ------
    UsageError
        If the file can't be read, isn't TOML, or names a setting that there isn't.
    """
    try:
        with Path(path).open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", "Give --config a TOML file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} isn't TOML: {error}", "Write a setting a line, such as: lr = 0.001"
        ) from error
    TrainConfig.from_mapping(found, where=str(path))
    return found
