"""Preflight: predicted numbers are right, what can't fit is refused before anything is written."""

import shutil
from collections import namedtuple

import numpy as np
import pytest

from omstore.build import BuildOptions, build
from omstore.build.preflight import preflight
from omstore.errors import DiskFullError, MemoryBudgetError, UsageError
from omstore.model import TransitionModel, load_model
from omstore.model.protocol import Outcomes
from tests.model.small_worlds import Drift, Weather

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def small_disk(monkeypatch):
    def shrink(free):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**15, 0, free))

    return shrink


def pursuit(agents):
    return load_model("pursuit", {"agents": agents, "slip": 0.1})


def test_edges_of_kernels_are_exact(tmp_path):
    found = preflight(pursuit(4), tmp_path, BuildOptions())
    assert (found.num_edges, found.edges_error) == (295_281_320_704, 0)
    by_name = {forecast.encoding: forecast for forecast in found.forecasts}
    # 295,281,320,704 edges of 4 bytes and a code of 2 (335 probabilities), and 8 for each row's offset.
    assert by_name["csr"].nbytes == 295_281_320_704 * 6 + 8 * 3_748_096 * 625
    assert by_name["factored"].nbytes < 64 << 20
    assert (
        preflight(Weather(2), tmp_path, BuildOptions()).num_edges
        == build(Weather(2), tmp_path, BuildOptions(rows="csr")).num_edges
    )


def test_predicted_bytes_are_those_written(tmp_path):
    found = preflight(pursuit(2), tmp_path, BuildOptions())
    predicted = {forecast.encoding: forecast.nbytes for forecast in found.forecasts}
    report = build(pursuit(2), tmp_path, BuildOptions(rows="csr"))
    assert report.files["rows"] == pytest.approx(predicted["csr"], rel=0.01)
    assert report.files["nodes"] + report.files["index"] == pytest.approx(found.node_bytes, rel=0.1)


class Ragged(TransitionModel):
    """Every row has 1 to 9 outcomes."""

    agents, num_actions, sizes = ("a",), (4,), (100, 100)
    component_bits = 8

    def successors(self, states, joint_actions):
        degree = (states[:, 0] * 7 + states[:, 1] * 3 + joint_actions) % 9 + 1
        offsets = np.concatenate(([0], np.cumsum(degree)))
        number = np.arange(offsets[-1]) - np.repeat(offsets[:-1], degree)
        following = np.repeat(states, degree, axis=0)
        following[:, 0] = (following[:, 0] + number) % 100
        return Outcomes(offsets, following, np.repeat(1 / degree, degree))

    def vectors(self, states):
        return states


def test_edges_of_other_models_are_sampled_with_their_error(tmp_path):
    found = preflight(Ragged(), tmp_path, BuildOptions())
    states = Ragged().space.states(np.repeat(np.arange(10_000), 4))
    truth = int(((states[:, 0] * 7 + states[:, 1] * 3 + np.tile(np.arange(4), 10_000)) % 9 + 1).sum())
    assert 0 < found.edges_error < 0.02 * truth
    assert abs(found.num_edges - truth) < 4 * found.edges_error


def test_rows_that_do_not_fit_the_disk(tmp_path, small_disk):
    small_disk(1 << 30)
    with pytest.raises(DiskFullError) as raised:
        build(pursuit(3), tmp_path, BuildOptions(rows="csr"))
    assert "415,886,464" in raised.value.message
    assert "1.0 GiB left" in raised.value.message
    assert "--rows factored" in raised.value.hint
    assert not (tmp_path / "store").exists()


def test_nodes_that_do_not_fit_the_disk(tmp_path, small_disk):
    small_disk(1 << 20)
    with pytest.raises(DiskFullError, match="85,184 nodes alone"):
        build(pursuit(3), tmp_path)


def test_nodes_that_do_not_fit_the_budget(tmp_path):
    with pytest.raises(MemoryBudgetError, match="164,916,224 nodes") as raised:
        build(pursuit(5), tmp_path)
    assert "--max-ram" in raised.value.hint


def test_rows_to_be_asked_that_do_not_fit(tmp_path, small_disk):
    small_disk(500_000)
    with pytest.raises(DiskFullError, match=r"\+-"):
        build(Ragged(), tmp_path)


def test_a_dry_run_reports_what_would_be_refused(tmp_path):
    report = build(pursuit(6), tmp_path, BuildOptions(dry_run=True))
    assert "7,256,313,856 nodes" in report.problem
    assert report.version is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", [pursuit(2), Drift(4)], ids=["pursuit", "drift"])
def test_a_dry_run_forecasts_and_leaves_nothing(tmp_path, model):
    report = build(model, tmp_path, BuildOptions(dry_run=True, transitions=100))
    real = build(model, tmp_path / "real")
    assert {forecast["encoding"] for forecast in report.forecasts} >= {"csr", "csr-compressed", "dictionary"}
    assert (report.num_nodes, report.num_edges) == (real.num_nodes, real.num_edges)
    assert (report.encoding, report.problem) == (real.encoding, "")
    assert [path.name for path in tmp_path.iterdir()] == ["real"]


@pytest.mark.parametrize(
    "given", [{"rows": "best"}, {"max_ram": 1000}, {"transitions": -1}, {"horizon": 0}, {"seed": -1}]
)
def test_options_that_make_no_sense(given):
    with pytest.raises(UsageError):
        BuildOptions(**given)
