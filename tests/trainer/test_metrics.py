"""The metrics' file, its times, TensorBoard; and that documents define every metric."""

import json
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

from omstore.errors import UsageError
from tests.trainer.small_runs import StopAfter, run
from trainer.exact.phases import EXACT_METRICS
from trainer.metrics import LEVEL0_METRICS, TIMING, MetricsFile, TensorBoard
from trainer.progress import METRICS
from trainer.stopping import Interrupted


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestFile:
    def test_cut_back_to_where_it_goes_on(self, tmp_path):
        file = MetricsFile(tmp_path / "m.jsonl")
        assert file.open(0) == 0
        file.write({"a": 1})
        size = file.size
        file.write({"a": 2, "b": None})
        file.close()
        assert size == len('{"a": 1}\n')
        again = MetricsFile(file.path)
        assert again.open(size) == 0
        again.write({"a": 3})
        again.close()
        assert lines(file.path) == [{"a": 1}, {"a": 3}]

    def test_a_file_somebody_shortened(self, tmp_path):
        (tmp_path / "m.jsonl").write_text('{"a": 1}\n')
        file = MetricsFile(tmp_path / "m.jsonl")
        assert file.open(20) == 11
        file.write({"a": 2})
        file.close()
        assert lines(file.path) == [{"a": 1}, {"a": 2}]

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_no_number_is_refused(self, tmp_path, value):
        file = MetricsFile(tmp_path / "m.jsonl")
        file.open(0)
        with pytest.raises(UsageError, match=r"loss is (nan|inf): training diverged"):
            file.write({"loss": value})
        file.close()
        assert file.path.read_text() == ""

    def test_floats_come_back_to_the_bit(self, tmp_path):
        file = MetricsFile(tmp_path / "m.jsonl")
        file.open(0)
        value = 0.1 + 0.2
        file.write({"a": value})
        file.close()
        assert lines(file.path)[0]["a"] == value


class TestDefinitions:
    def test_lines_have_exactly_the_metrics_defined(self, trained):
        for line in lines(trained / "om" / "metrics.jsonl"):
            defined = LEVEL0_METRICS if line["stage"] == "level0" else METRICS
            assert list(line) == ["stage", *defined]

    def test_timing_has_exactly_the_fields_defined(self, trained):
        for line in lines(trained / "om" / "timing.jsonl"):
            assert list(line) == list(TIMING)

    @pytest.mark.parametrize("defined", [LEVEL0_METRICS, METRICS, TIMING, EXACT_METRICS])
    def test_the_documents_say_the_same(self, defined):
        text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
        for name, meaning in defined.items():
            assert f"| `{name}` | {meaning} |" in text


class Writer:
    made: ClassVar[list[Any]] = []

    def __init__(self, folder, purge_step=None):
        self.folder = Path(folder).name
        self.purge_step = purge_step
        self.scalars = []
        self.closed = False
        Writer.made.append(self)

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch):
    """SummaryWriter that remembers."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setattr(Writer, "made", [])
    return Writer.made


class TestTensorBoard:
    def test_a_folder_a_stage_numbers_only(self, writers, tmp_path):
        board = TensorBoard(tmp_path, {})
        board.write("level0", {"stage": "level0", "update": 4, "loss": 0.5, "held_out_loss": None})
        board.write("staircase", {"stage": "staircase", "global": 512, "learner": "team"})
        board.close()
        assert [(made.folder, made.purge_step, made.closed) for made in writers] == [
            ("level0", None, True), ("staircase", None, True),
        ]  # fmt: skip
        assert writers[0].scalars == [("update", 4, 4), ("loss", 0.5, 4)]
        assert writers[1].scalars == [("global", 512, 512)]

    def test_a_run_that_goes_on_hides_what_was_beyond(self, writers, export):
        with pytest.raises(Interrupted):
            run(export, tensorboard=True, stop=StopAfter(17))
        run(export, tensorboard=True)
        level0, before, after = writers
        assert (level0.folder, before.folder, after.folder) == ("level0", "staircase", "staircase")
        assert after.purge_step == 102 + 1  # phases of 70 and 50 root states: 5 updates, then 2 of 16
        assert {step for _, _, step in before.scalars} == {16, 32, 48, 64, 70, 86, 102}
        assert min(step for _, _, step in after.scalars) == 118
