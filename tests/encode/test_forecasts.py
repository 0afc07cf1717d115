"""Forecasts against what the encoders then write, and growth against known curves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omstore.encode.choose import Choice, check_fits, choose
from omstore.encode.forecast import (
    Forecast,
    forecast_compressed,
    forecast_csr,
    forecast_dictionary,
    forecast_factored,
)
from omstore.encode.growth import Growth
from omstore.encode.sampling import SAMPLED_EDGES, sample_nodes
from omstore.encode.survey import survey_rows
from omstore.errors import DiskFullError, MemoryBudgetError, UsageError
from omstore.publish.scratch import ScratchArrays
from omstore.rows import CsrRows, GraphSize, RowEncoding, row_writer
from omstore.rows.dictionary_writer import write_dictionary
from omstore.rows.factored import Component, Factoring

# Sampling


@given(
    nodes=st.integers(1, 1 << 40),
    actions=st.integers(1, 5000),
    degree=st.integers(0, 1000),
    seed=st.integers(0, 9),
)
def test_samples_are_ranges_within_the_graph(nodes: int, actions: int, degree: int, seed: int) -> None:
    size = GraphSize(nodes, actions, nodes * actions * degree)
    sample = sample_nodes(size, seed=seed)
    assert sample == sample_nodes(size, seed=seed)
    last = 0
    for first, stop in sample.ranges:
        assert last <= first < stop <= nodes
        last = stop
    assert sample.num_nodes == sum(stop - first for first, stop in sample.ranges)
    assert sample.share == pytest.approx(sample.num_nodes / nodes)
    per_node = max(actions, actions * degree)
    assert sample.num_nodes * per_node <= SAMPLED_EDGES + 64 * per_node
    assert sorted(r for part in sample.quarters() for r in part) == list(sample.ranges)
    if max(size.num_edges, size.num_rows) <= SAMPLED_EDGES:
        assert sample.whole


# Growth


def test_growth_of_known_curves() -> None:
    linear = Growth.linear(1000.0)
    assert linear.extrapolate(1 / 64) == pytest.approx((64_000, 1000, 64_000))
    assert Growth(500, 500, 500).extrapolate(1e-6) == (500, 500, 500)
    assert Growth(1, 2, 3).extrapolate(1.0) == (3, 3, 3)
    root = Growth(10.0, 10 * math.sqrt(2), 20.0)
    expected, low, high = root.extrapolate(1 / 16)
    assert (expected, low, high) == pytest.approx((80, 20, 80))
    # a quantity that is nearly all seen: slopes 1/2, 1/4, and so 1/8 + 1/16 + ... expected
    slowing = Growth(100.0, 100 * 2**0.5, 100 * 2**0.75)
    expected, low, high = slowing.extrapolate(1 / 1024)
    assert low < expected < 100 * 2.0 < high


@given(
    st.tuples(st.floats(1, 1e9), st.floats(1, 1e9), st.floats(1, 1e9)).map(sorted),
    st.floats(1e-12, 1, exclude_min=True),
)
def test_what_is_expected_lies_between_the_bounds(seen: list[float], share: float) -> None:
    expected, low, high = Growth(*seen).extrapolate(share)
    assert low * (1 - 1e-9) <= expected <= high * (1 + 1e-9)
    assert high <= seen[2] / share * (1 + 1e-6)


# Surveys


class Grid:
    """Two agents on a ring, moving independently with some chance: rows repeat, and factor but for loops."""

    def __init__(self, side: int, loops: int) -> None:
        actions, self.side = 3, side
        offsets, next_node, code = [0], [], []
        for node in range(side * side):
            x, y = divmod(node, side)
            for joint in range(actions * actions):
                a, b = divmod(joint, actions)
                if node < loops:
                    edges = [(node, 1)]
                else:
                    places = [((x + a) % side) * side + (y + b) % side, ((x + a) % side) * side + y]
                    edges = sorted({(places[0], 1)} if b == 0 else {(place, 0) for place in places})
                next_node += [target for target, _ in edges]
                code += [c for _, c in edges]
                offsets.append(len(next_node))
        self.size = GraphSize(side * side, actions * actions, len(next_node), 2)
        self.rows = CsrRows(
            self.size,
            np.array(offsets, np.uint64),
            np.array(next_node, np.uint32),
            np.array(code, np.uint8),
        )

    def factoring(self) -> Factoring:
        """The kernels of both agents: the second stays with chance 1/2."""
        side = self.side
        sure = Component(
            0, side, 3, np.arange(3 * side + 1), (np.arange(side)[:, None] + np.arange(3)).reshape(-1) % side,
            np.ones(3 * side), np.zeros(3 * side, np.int64), 1,
        )  # fmt: skip
        counts, targets, chances, classes = [0], [], [], []
        for y in range(side):
            for b in range(3):
                places = [y] if b == 0 else sorted({y, (y + b) % side})
                targets += places
                chances += [1 / len(places)] * len(places)
                classes += [len(places) == 1] * len(places)
                counts.append(len(targets))
        slips = Component(
            1, side, 3, np.array(counts), np.array(targets), np.array(chances), np.array(classes, np.int64), 2
        )
        return Factoring((sure, slips), np.array([0, 1]))


def written(source: RowEncoding, folder: Path, encoding: str) -> int:
    """Bytes of the arrays that an encoder writes, without metadata."""
    arrays = ScratchArrays(folder / encoding)
    if encoding == "dictionary":
        write_dictionary(source, arrays)
    else:
        size = source.size
        writer = row_writer(encoding, arrays, size.num_nodes, size.num_joint_actions, size.num_outcomes)
        for chunk in source.sweep(0, size.num_rows, 1000):
            writer.append(np.diff(chunk.offsets), chunk.next_node, chunk.outcome)
        writer.finish()
    arrays.close()
    files = [path for path in arrays.path.rglob("*") if path.is_file() and path.name != "zarr.json"]
    return sum(path.stat().st_size for path in files)


def test_a_survey_of_a_whole_graph_is_exact(tmp_path: Path) -> None:
    grid = Grid(20, 30)
    survey = survey_rows(grid.rows, tmp_path / "survey", factoring=grid.factoring())
    assert survey.sample.whole
    assert (survey.num_rows, survey.num_edges) == (grid.size.num_rows, grid.size.num_edges)
    assert forecast_csr(survey).nbytes == written(grid.rows, tmp_path, "csr")
    dictionary = forecast_dictionary(survey, None)
    assert dictionary.low == dictionary.nbytes == dictionary.high
    assert dictionary.nbytes == pytest.approx(written(grid.rows, tmp_path, "dictionary"), rel=0.01)
    # the loops' rows are exceptions, but those of them that would stay anyway (both actions 0)
    assert (survey.num_exceptional, survey.num_exceptional_rows) == (30, 30 * 8)
    assert not (tmp_path / "survey").exists()


def test_a_sample_bounds_what_is_written(tmp_path: Path) -> None:
    grid = Grid(60, 0)
    survey = survey_rows(grid.rows, tmp_path / "survey", factoring=grid.factoring(), edges=6000)
    assert 0.05 < survey.sample.share < 0.5
    dictionary = forecast_dictionary(survey, None)
    assert dictionary.low <= written(grid.rows, tmp_path, "dictionary") <= dictionary.high
    factored = forecast_factored(survey)
    assert (survey.num_exceptional_rows, factored.few_exceptions) == (0, True)
    assert factored.nbytes < dictionary.nbytes
    assert "2 components" in factored.about
    again = survey_rows(grid.rows, tmp_path / "survey", factoring=grid.factoring(), edges=6000)
    assert (again.patterns, again.blocks, again.delta_bytes) == (
        survey.patterns,
        survey.blocks,
        survey.delta_bytes,
    )


def test_compressed_edges_are_as_large_in_a_sample_as_in_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    size = GraphSize(50_000, 2, 100_000 * 5, 3)
    next_node = np.sort(rng.integers(0, 50_000, (100_000, 5)), axis=1).reshape(-1).astype(np.uint32)
    rows = CsrRows(size, None, next_node, (next_node % 3).astype(np.uint8), 5)
    survey = survey_rows(rows, tmp_path / "survey", edges=100_000, dictionary=False)
    assert survey.sample.share < 0.3
    forecast = forecast_compressed(survey)
    assert forecast.nbytes == pytest.approx(written(rows, tmp_path, "csr-compressed"), rel=0.1)
    assert forecast.low < forecast.nbytes < forecast.high
    assert forecast_csr(survey).nbytes == 5 * 500_000  # no offsets: all rows have five successors


def test_too_many_patterns_grow_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    size = GraphSize(2000, 4, 8000 * 5)
    rows = CsrRows(
        size, None, np.sort(rng.integers(0, 2000, (8000, 5)), axis=1).reshape(-1).astype(np.uint32), None, 5
    )
    monkeypatch.setattr("omstore.encode.growth.PATTERN_MEMORY", 300_000)
    survey = survey_rows(rows, tmp_path / "survey")
    assert survey.pattern_share < 1
    forecast = forecast_dictionary(survey, None)
    assert forecast.nbytes == forecast.high == pytest.approx(written(rows, tmp_path, "dictionary"), rel=0.25)
    assert forecast.anonymous > 300_000


# The choice


def forecasts(**changes: Forecast) -> dict[str, Forecast]:
    made = {
        "csr": Forecast("csr", nbytes=1000 << 20, low=1000 << 20, high=1000 << 20, anonymous=1 << 20),
        "csr-compressed": Forecast("csr-compressed", nbytes=9 << 20, anonymous=2 << 20),
        "dictionary": Forecast(
            "dictionary", nbytes=20 << 20, low=10 << 20, high=499 << 20, anonymous=400 << 20
        ),
        "factored": Forecast("factored", nbytes=1 << 20, anonymous=3 << 20, about="2 components"),
    }
    return made | {change.encoding: change for change in changes.values()}


def test_auto_takes_the_best_that_is_sure() -> None:
    none = Forecast("factored", False, "no agent moves alone")
    few = Forecast("factored", nbytes=1, about="9 of 10 rows are exceptions", few_exceptions=False)
    varied = Forecast("dictionary", nbytes=20 << 20, low=1, high=501 << 20)
    assert choose("auto", forecasts()).encoding == "factored"
    for factored in (none, few):
        assert choose("auto", forecasts(factored=factored)).encoding == "dictionary"
        reason = choose("auto", forecasts(factored=factored, dictionary=varied)).reason
        assert choose("auto", forecasts(factored=factored, dictionary=varied)).encoding == "csr"
        assert "1000 MiB" in reason
        assert "501 MiB" in reason
        assert (factored.problem or factored.about) in reason
    large = Forecast("csr", nbytes=1025 << 20)
    no_use = Forecast("dictionary", nbytes=1 << 40, high=1 << 40)
    taken = choose("auto", forecasts(factored=none, dictionary=no_use, csr=large))
    assert taken.encoding == "csr-compressed"


def test_what_was_asked_for_is_taken_or_refused_with_the_reason() -> None:
    for name in forecasts():
        assert choose(name, forecasts()) == Choice(name, "asked for")
        assert choose(name, {}) == Choice(name, "asked for")
    none = Forecast("factored", False, "no agent moves alone")
    with pytest.raises(UsageError, match="no agent moves alone"):
        choose("factored", forecasts(factored=none))
    with pytest.raises(UsageError, match="csr-compressed, dictionary"):
        choose("frob", forecasts())


def test_what_does_not_fit_is_refused_naming_what_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = forecasts()
    check_fits(made["dictionary"], made, tmp_path, 400 << 20)
    with pytest.raises(MemoryBudgetError, match=r"400 MiB.*399 MiB") as refused:
        check_fits(made["dictionary"], made, tmp_path, 399 << 20)
    assert "--rows factored" in refused.value.hint
    assert "--max-ram" in refused.value.hint

    class Usage:
        free = 10 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    with pytest.raises(DiskFullError, match=r"1000 MiB as csr.*10.0 MiB") as full:
        check_fits(made["csr"], made, tmp_path, 400 << 20)
    assert "--rows factored, predicted 1.0 MiB" in full.value.hint
    with pytest.raises(DiskFullError) as full:
        check_fits(made["csr"], made, tmp_path, 400 << 20, other_bytes=20 << 20)
    assert full.value.hint == "Free some disk space."
