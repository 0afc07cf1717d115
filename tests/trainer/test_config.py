"""Settings: the same from Python, a file and flags; every mistake named."""

import dataclasses
import tomllib

import pytest

from omstore.errors import UsageError
from trainer.cli.train import train_command
from trainer.config import TrainConfig, settings
from trainer.improvement import SoftRolloutPIConfig
from trainer.level0_training import Level0Config
from trainer.staircase import StaircaseConfig


class TestDefaults:
    def test_staircase(self):
        own, theirs = TrainConfig().staircase(), StaircaseConfig()
        assert own == theirs

    def test_level0(self):
        assert TrainConfig().level0() == Level0Config()

    def test_every_setting_of_a_stage_reaches_it(self):
        changed = TrainConfig(
            batch=7, n_rollouts=3, horizon=4, discount=0.5, temperature=2.0, entropy_coef=0.1, lr=0.5,
            lr_decay=0.25, candidate_actions=2, print_every=9, seed=11, levels=3, agent_root_state_samples=20,
            team_root_state_samples=30, level0_epochs=5, level0_batch=6, level0_lr=0.25, level0_held_out=0.5,
            sweep_updates=12, agent_action_values="exact", team_action_values="rollouts",
        )  # fmt: skip
        assert changed.staircase() == StaircaseConfig(
            3, 20, 30,
            SoftRolloutPIConfig(
                batch=7, n_rollouts=3, horizon=4, discount=0.5, temperature=2.0, entropy_coef=0.1, lr=0.5,
                lr_decay=0.25, candidate_actions=2, print_every=9, seed=11, sweep_updates=12,
            ),
            "exact", "rollouts",
        )  # fmt: skip
        assert changed.level0() == Level0Config(epochs=5, batch=6, lr=0.25, held_out=0.5, seed=11)

    def test_what_depends_on_the_graph(self):
        three, four = 85_184 * 25, 3_748_096 * 125
        small = TrainConfig().staircase(team_numbers=three)
        assert (small.agent_action_values, small.team_action_values) == ("rollouts", "exact")
        assert small.team_root_state_samples == 4500 * 512
        large = TrainConfig().staircase(team_numbers=four)
        assert (large.team_action_values, large.team_root_state_samples) == ("rollouts", 100_000)
        given = TrainConfig(team_root_state_samples=7).staircase(team_numbers=four)
        assert given.team_root_state_samples == 7
        edge = [TrainConfig().staircase(team_numbers=(1 << 22) + k).team_action_values for k in (0, 1)]
        assert edge == ["exact", "rollouts"]
        both = TrainConfig(agent_action_values="auto", team_action_values="exact")
        assert both.staircase(agent_numbers=85_184 * 5).agent_action_values == "exact"
        assert both.staircase(agent_numbers=1 << 23, team_numbers=four).agent_action_values == "rollouts"
        assert both.staircase(team_numbers=four).team_action_values == "exact"

    def test_temperature_of_phases(self):
        stairs = TrainConfig().staircase()
        agent, team = (stairs.of_phase(phase) for phase in stairs.phases[:2])
        assert (agent.action_values, agent.softness, agent.root_state_samples) == ("rollouts", 0.015, 400_000)
        assert (team.action_values, team.softness, team.num_updates) == ("exact", 0.03, 4500)
        warm = TrainConfig(temperature=0.2).staircase()
        assert [warm.of_phase(phase).softness for phase in warm.phases] == [0.2] * 4

    def test_sentence_and_unit_for_every_field(self):
        assert [each.name for each in settings()] == [each.name for each in dataclasses.fields(TrainConfig)]
        for each in settings():
            assert each.help.endswith((".", "bar."))
            assert each.unit


class TestSources:
    def test_flags_over_file_over_defaults(self, tmp_path):
        file = tmp_path / "run.toml"
        file.write_text('lr = 0.5\nbatch = 7\nmax_ram = "1G"\nfocal_agent = 2\nstrict = false\n')
        config = TrainConfig.load(file, batch="9")
        assert (config.lr, config.batch, config.horizon) == (0.5, 9, 10)
        assert (config.max_ram, config.focal_agent, config.strict) == (1 << 30, "2", False)

    def test_the_same_from_everywhere(self, tmp_path):
        file = tmp_path / "run.toml"
        file.write_text('temperature = 1\ncapacity = "none"\ndevice = "cpu"\n')
        flags = TrainConfig.from_mapping({"temperature": "1", "capacity": "none", "device": "cpu"})
        assert TrainConfig.load(file) == flags == TrainConfig(temperature=1.0, device="cpu")

    def test_back_from_a_dict(self):
        config = TrainConfig(lr=0.1, focal_agent="evader", candidate_actions=3)
        assert TrainConfig.from_mapping(config.to_dict()) == config

    def test_every_field_has_a_flag_with_its_default(self):
        options = {option.name: option for option in train_command.params}
        for each in settings():
            assert each.flag in options[each.name].opts
            assert "default: " in options[each.name].help

    def test_files_in_the_documents_are_right(self):
        from pathlib import Path

        text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
        block = text.split("```toml\n")[1].split("```")[0]
        TrainConfig.from_mapping(tomllib.loads(block))


class TestMistakes:
    @pytest.mark.parametrize(
        ("name", "nearest"),
        [("lrr", "lr"), ("n-rollout", "n_rollouts"), ("agent_root_states", "agent_root_state_samples")],
    )
    def test_unknown_names(self, name, nearest):
        with pytest.raises(UsageError, match=name) as error:
            TrainConfig.from_mapping({name: 1})
        assert error.value.hint == f"Did you mean {nearest}?"

    def test_unknown_name_in_a_file_names_the_file(self, tmp_path):
        (tmp_path / "run.toml").write_text("qqq = 1")
        with pytest.raises(UsageError, match=r"run\.toml: there is no setting 'qqq'"):
            TrainConfig.load(tmp_path / "run.toml")

    @pytest.mark.parametrize("text", ["lr = ", "lr = 1 2", "\xff"])
    def test_no_toml(self, tmp_path, text):
        (tmp_path / "run.toml").write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError, match="isn't TOML"):
            TrainConfig.load(tmp_path / "run.toml")

    def test_no_file(self, tmp_path):
        with pytest.raises(UsageError, match="can't be read"):
            TrainConfig.load(tmp_path / "nothing.toml")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("lr", "fast"), ("lr", True), ("lr", 0), ("batch", 1.5), ("batch", 0), ("batch", True), ("batch", None),
            ("device", "gpu"), ("representation", "pixels"), ("strict", "yes"), ("max_ram", "lots"),
            ("discount", 1.01), ("level0_held_out", 1), ("seed", -1), ("candidate_actions", 0), ("horizon", "2.5"),
            ("temperature", "nan"), ("temperature", float("inf")), ("temperature", 0),
            ("team_action_values", "guessed"), ("team_root_state_samples", 0), ("sweep_updates", 0),
            ("checkpoint_seconds", -1), ("threads", 0),
        ],
    )  # fmt: skip
    def test_wrong_values_are_named(self, name, value):
        with pytest.raises(UsageError) as error:
            TrainConfig(**{name: value})
        assert name in error.value.message or str(value) in error.value.message


class TestDifferences:
    def test_none(self):
        assert TrainConfig().differences(TrainConfig().to_dict()) == []

    def test_those_that_decide_are_listed(self):
        earlier = TrainConfig(lr=0.5, threads=7, candidate_actions=3).to_dict()
        assert TrainConfig(seed=1).differences(earlier) == [
            "seed was 0, and is 1 now",
            "lr was 0.5, and is 0.01 now",
            "candidate_actions was 3, and is none now",
        ]

    def test_a_setting_that_was_not_there_yet(self):
        earlier = TrainConfig().to_dict()
        del earlier["horizon"]
        assert TrainConfig().differences(earlier) == ["horizon was unknown, and is 10 now"]
