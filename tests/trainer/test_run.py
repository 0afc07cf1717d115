"""The main job: what it writes, and that neither kills nor ranks nor threads change it."""

import json

import numpy as np
import pytest
import torch

from omstore.errors import StoreNotFoundError, UsageError, WriterBusyError
from omstore.progress import for_stream
from tests.trainer.made_exports import make_export
from tests.trainer.small_runs import UPDATES, Crash, CrashAfter, StopAfter, results, run, small
from trainer.artifact import load_stack
from trainer.files import training_lock
from trainer.improvement import RolloutModel
from trainer.run import train
from trainer.stopping import Interrupted


def lines(export, name="metrics.jsonl"):
    return [json.loads(line) for line in (export / "om" / name).read_text().splitlines()]


class TestWhatItWrites:
    def test_counts(self, trained):
        stack = load_stack(trained)
        assert stack.document["training"]["updates"] == UPDATES
        assert stack.document["level0"]["updates"] == 10
        assert [phase["local"] for phase in stack.document["training"]["phases"]] == [5, 4, 5, 4]
        assert [phase["roots"] for phase in stack.document["training"]["phases"]] == [70, 50, 70, 50]
        assert stack.document["training"]["phases"][-1]["global"] == 240
        assert stack.opponent.num_levels == 3

    def test_metrics_are_a_line_a_refresh(self, trained):
        found = lines(trained)
        level0 = [line for line in found if line["stage"] == "level0"]
        assert [line["update"] for line in level0] == list(range(1, 11))  # every ceil(10 / 10) updates
        assert [line["epoch"] for line in level0] == [0] * 5 + [1] * 5
        # a tenth of 70 is 7, less than a batch: every update of every phase is a refresh
        assert [(line["phase"], line["roots"]) for line in found[10:15]] == [
            (1, 16), (1, 32), (1, 48), (1, 64), (1, 70),
        ]  # fmt: skip
        assert len(found) == 10 + 5 + 4 + 5 + 4

    def test_print_every_makes_them_sparse(self, export):
        run(export, print_every=40)
        phase1 = [line["roots"] for line in lines(export) if line.get("phase") == 1]
        assert phase1 == [48, 70]

    def test_no_time_in_metrics_but_in_timing(self, trained):
        assert not {"time", "seconds"} & {key for line in lines(trained) for key in line}
        assert [line["event"] for line in lines(trained, "timing.jsonl") if line["event"] != "refresh"] == [
            "started", "checkpoint", "finished",
        ]  # fmt: skip

    def test_states_that_are_not_in_the_graph_are_filtered(self, trained):
        found = [line for line in lines(trained) if line["stage"] == "staircase"]
        assert sum(line["valid"] for line in found) < sum(line["requested"] for line in found) == 240

    def test_it_learns_in_every_phase(self, trained):
        stack = load_stack(trained)
        weights = [stack.opponent.level(level).head.weight for level in range(3)]
        assert not torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[1], weights[2])


class TestResume:
    @pytest.mark.parametrize("after", [1, 7, 10, 11, 15, 19, 20, UPDATES - 1, UPDATES])
    def test_stopped_and_resumed_is_the_same(self, export, trained, after):
        with pytest.raises(Interrupted) as stopped:
            run(export, stop=StopAfter(after))
        assert stopped.value.number == 15
        report = run(export)
        assert report.resumed_from == after
        assert results(export) == results(trained)

    @pytest.mark.parametrize("after", [2, 6, 9, 12, 14, 21, 27])
    def test_crashed_and_resumed_is_the_same(self, export, trained, after):
        with pytest.raises(Crash):
            run(export, checkpoint_updates=4, stop=CrashAfter(after))
        report = run(export, checkpoint_updates=4)
        # the last checkpoint before the update that crashed
        assert report.resumed_from == ((after - 1) // 4 * 4 or None)
        assert results(export) == results(trained)

    def test_several_times_over(self, export, trained):
        for after in (3, 5, 9, 4):
            with pytest.raises(Interrupted):
                run(export, stop=StopAfter(after))
        assert run(export).resumed_from == 21
        assert results(export) == results(trained)

    def test_settings_that_decide_nothing_may_change(self, export, trained):
        with pytest.raises(Interrupted):
            run(export, stop=StopAfter(13), threads=1)
        run(export, threads=2, max_ram=64 << 20, checkpoint_updates=1, legal_cache=0)
        assert results(export) == results(trained)

    def test_other_settings_are_refused_by_name(self, export):
        with pytest.raises(Interrupted):
            run(export, stop=StopAfter(3), lr=0.25)
        with pytest.raises(UsageError, match="other settings") as refused:
            run(export, lr=0.5)
        assert "lr was 0.25, and is 0.5 now" in refused.value.message
        assert "--fresh" in refused.value.hint

    def test_fresh_starts_over(self, export, trained):
        with pytest.raises(Interrupted):
            run(export, stop=StopAfter(12), lr=0.5)
        report = run(export, fresh=True)
        assert report.resumed_from is None
        assert results(export) == results(trained)
        assert len([line for line in lines(export, "timing.jsonl") if line["event"] == "started"]) == 1

    def test_a_damaged_checkpoint_falls_back_to_the_one_before(self, export, trained):
        with pytest.raises(Crash):
            run(export, checkpoint_updates=3, stop=CrashAfter(17))
        newest = sorted((export / "om" / "checkpoints").iterdir())[-1]
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
        assert run(export, checkpoint_updates=3).resumed_from == 12
        assert results(export) == results(trained)

    def test_finished_runs_make_the_artifact_again_only_if_it_is_gone(self, export, trained):
        run(export)
        artifact = export / "om" / "iop_stack.pt"
        before = artifact.stat().st_mtime_ns
        assert run(export).resumed_from == UPDATES
        assert artifact.stat().st_mtime_ns == before
        artifact.unlink()
        run(export)
        assert results(export) == results(trained)

    def test_another_store_is_refused(self, export):
        with pytest.raises(Interrupted):
            run(export, stop=StopAfter(3))
        make_export(export, 500, nodes=39)
        with pytest.raises(UsageError, match="another store") as refused:
            run(export, store_version="v000002")
        assert "--fresh" in refused.value.hint

    def test_the_version_it_began_with_is_gone_on_with(self, export, trained):
        with pytest.raises(Interrupted):
            run(export, stop=StopAfter(3))
        make_export(export, 500, nodes=39)
        run(export)
        assert results(export) == results(trained)

    def test_two_checkpoints_are_kept(self, export):
        run(export, checkpoint_updates=5)
        kept = sorted(path.name[:21] for path in (export / "om" / "checkpoints").iterdir())
        assert kept == ["checkpoint-0000000025", "checkpoint-0000000028"]


class TestOneAtATime:
    def test_a_second_trainer_is_kept_out(self, export):
        with training_lock(export / "om"), pytest.raises(WriterBusyError, match=r"Another process trains in"):
            run(export)

    def test_the_lock_ends_with_the_run(self, export):
        with pytest.raises(Crash):
            run(export, stop=CrashAfter(2))
        run(export)


class TestErrors:
    def test_no_export(self, tmp_path):
        with pytest.raises(StoreNotFoundError, match="isn't a folder"):
            run(tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()

    def test_cuda_where_there_is_none(self, export):
        if torch.cuda.is_available():
            pytest.skip("there is one")
        with pytest.raises(UsageError, match="finds no cuda device"):
            run(export, device="cuda")

    def test_divergence_is_said(self, export):
        with pytest.raises(UsageError, match=r"diverged|is nan|is inf"):
            run(export, level0_lr=1e30)

    def test_tensorboard_without_the_package(self, export, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
        with pytest.raises(UsageError, match="--tensorboard") as error:
            run(export, tensorboard=True)
        assert "omstore[tensorboard]" in error.value.hint


def test_a_phase_without_anything_to_learn_says_so(export, monkeypatch, capsys):
    monkeypatch.setattr(RolloutModel, "reward_weights", lambda self, side: np.zeros(3))
    train(export, small(levels=1), progress=for_stream())
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: soft")]
    assert notes[0] == (
        "note: soft-rollout-PI 1/2 | agent opp=L0: every rollout of the last batch returned 0, so there was nothing "
        "to learn"
    )
    assert notes[1].startswith(
        "note: soft-rollout-PI 2/2 | team level=L1: every action of the last batch is worth 0, so"
    )
    assert notes[1].endswith("choose another --focal-agent")
