"""Rows into the best row encoding: attributes hoisted, sizes forecast, one chosen, written, and proven.

The one way rows take into a version, whether they come from a pickle, a model or another version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.encode.attribute_arrays import attribute_bytes, code_by_node, write_attributes
from omstore.encode.choose import Choice, check_encoding, check_fits, choose
from omstore.encode.coordinates import Coordinates, find_coordinates
from omstore.encode.factoring import NotFactored, find_factoring
from omstore.encode.forecast import (
    ENCODINGS,
    Forecast,
    forecast_compressed,
    forecast_csr,
    forecast_dictionary,
    forecast_factored,
)
from omstore.encode.hoist import Hoisted, hoist
from omstore.encode.recoded import RecodedRows
from omstore.encode.rows_to_encode import EncodedRows, RowsToEncode
from omstore.encode.speeds import Speed, measure_speeds
from omstore.encode.survey import survey_rows
from omstore.encode.value_proof import ValueComparison
from omstore.errors import DiskFullError, MemoryBudgetError, UsageError
from omstore.format.hot import map_hot
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent
from omstore.publish.scratch import ScratchArrays
from omstore.publish.staging import Staging
from omstore.read.attributes import Attribute
from omstore.rows import GraphSize, Probabilities, open_rows, row_writer
from omstore.rows.dictionary_writer import write_dictionary
from omstore.rows.factored import Factoring
from omstore.rows.factored_writer import write_factored
from omstore.rows.proof import Proof, draw_rows, prove
from omstore.rows.ranges import chunk_rows

__all__ = ["encode_rows"]

Ticker = Callable[[int], object]


def encode_rows(
    given: RowsToEncode,
    staging: Staging,
    *,
    rows: str = "auto",
    budget: int = DEFAULT_BUDGET,
    threads: int = 2,
    all_forecasts: bool = False,
    dry_run: bool = False,
    proof_rows: int | None = None,
    other_bytes: int = 0,
    progress: Progress | None = None,
) -> EncodedRows:
    """Write rows and attributes into a version, in the best row encoding or the one asked for.

    What is written depends on the rows and on `rows` alone: not on the budget, the threads, or how fast
    anything is. Every edge is compared with the source, in the files just written, before this returns; only csr
    rows that lie staged are moved into the version as they are.

    Parameters
    ----------
    given : RowsToEncode
    staging : Staging
    rows : str
        ``auto`` or an encoding.
    budget : int
        Bytes of anonymous memory.
    threads : int
    all_forecasts : bool
        Forecast every encoding even where one was asked for.
    dry_run : bool
        Forecast and choose, write nothing.
    proof_rows : int, optional
        Compare this many random rows instead of all of them, for a graph too large to be swept.
    other_bytes : int
        That the rest of the version still takes on the disk.
    progress : Progress, optional

    Raises
    ------
    UsageError
        If the encoding asked for is impossible; says why.
    DiskFullError, MemoryBudgetError
        If it is predicted not to fit; names the one that does.
    ProofError
        If what was written isn't what the source says.
    CorruptStoreError
        If the source is damaged.
    """
    check_encoding(rows)
    run = _Encoding(given, staging, rows, budget, threads, progress or silent())
    if rows == "csr" and given.staged is not None and not dry_run:
        run.choice = Choice("csr", "asked for")  # taken as they lie: there is nothing to find out
    else:
        run.hoist()
        run.forecast(set(ENCODINGS) if all_forecasts or rows == "auto" else {rows})
        run.choose(other_bytes)
    if not dry_run:
        run.write()
        run.prove(proof_rows)
    return run.result()


class _Encoding:
    """One run of `encode_rows`."""

    def __init__(
        self,
        given: RowsToEncode,
        staging: Staging,
        rows: str,
        budget: int,
        threads: int,
        progress: Progress,
    ) -> None:
        self.given = given
        self.staging = staging
        self.rows = rows
        self.budget = budget
        self.threads = threads
        self.progress = progress
        self.source = given.source
        self.attributes = tuple(given.attributes)
        self.coordinates: Coordinates | None = None
        self.factoring: Factoring | None = given.factoring
        self.forecasts: dict[str, Forecast] = {}
        self.choice = Choice("", "")
        self.description: dict[str, Any] = {}
        self.size = given.source.size
        self.described: dict[str, dict[str, Any]] = {}
        self.proof: dict[str, Any] = {}
        self.proven_values: dict[str, NDArray[Any]] = {}

    # ---- before anything is written

    def hoist(self) -> None:
        """Take what is a function of nodes out of the outcomes."""
        given = self.given
        movable = [a for a in given.attributes if a.level == "outcome" and a.name != "probability"]
        if given.hoist and movable:
            with self._task("looking at rewards and flags", None) as tick:
                found = hoist(given.source, given.attributes, tick)
            self._take(found)
        self.attributes = tuple(code_by_node(attribute) for attribute in self.attributes)

    def _take(self, found: Hoisted) -> None:
        self.attributes = found.attributes
        if found.changed:
            self.source = RecodedRows(self.given.source, found.code_map, found.num_outcomes)

    def forecast(self, wanted: set[str]) -> None:
        """Look at a sample of the rows."""
        positions = num_positions = None
        if wanted & {"dictionary", "factored"}:
            self.coordinates = find_coordinates(self.given.packed, self.given.codec)
        if "dictionary" in wanted and self.coordinates is not None:
            positions = self.coordinates.positions()
            num_positions = self.coordinates.num_positions if positions is not None else None
        problem = self._find_factoring() if "factored" in wanted else ""
        with self._task("sampling rows", None) as tick:
            survey = survey_rows(
                self.source,
                self.staging.scratch / "survey",
                positions=positions,
                num_positions=num_positions,
                dictionary="dictionary" in wanted,
                compressed="csr-compressed" in wanted,
                factoring=self.factoring if "factored" in wanted else None,
                tick=tick,
            )
        made = [attribute.name for attribute in self.attributes if attribute.level == "rows"]
        speeds: dict[str, Speed] = {}
        if wanted == set(ENCODINGS) and not made:
            speeds = self._measure(positions, num_positions)
        predictions: dict[str, Callable[[], Forecast]] = {
            "csr": lambda: forecast_csr(survey),
            "csr-compressed": lambda: forecast_compressed(survey),
            "dictionary": lambda: forecast_dictionary(survey, num_positions),
            "factored": lambda: forecast_factored(survey),
        }
        for name in ENCODINGS:
            if name == "factored" and problem:
                self.forecasts[name] = Forecast(name, False, problem)
            elif name != "factored" and name in wanted and made:
                self.forecasts[name] = Forecast(name, False, f"{' and '.join(made)} are computed, not coded")
            elif name in wanted:
                forecast = predictions[name]()
                if name in speeds:
                    forecast = replace(forecast, gather=speeds[name].gather, sample=speeds[name].sample)
                self.forecasts[name] = forecast

    def _measure(self, positions: NDArray[Any] | None, num_positions: int | None) -> dict[str, Speed]:
        """Measure how fast the encodings answer."""
        probability = next(a for a in self.attributes if a.name == "probability")
        return measure_speeds(
            self.source,
            Probabilities(probability.level, np.asarray(probability.values)),
            self.staging.scratch / "speeds",
            positions=positions,
            num_positions=num_positions,
            factoring=self.factoring,
        )

    def _find_factoring(self) -> str:
        """Look for a factoring where none was given; return why there is none."""
        if self.factoring is not None:
            return ""
        given, size = self.given, self.source.size
        probability = next(a for a in self.attributes if a.name == "probability")
        if probability.level not in ("graph", "outcome"):
            return "probabilities are stored edge by edge, having more distinct values than there are codes"
        others = [a.name for a in self.attributes if a.level == "outcome" and a.name != "probability"]
        if others:
            return f"{' and '.join(others)} differ from edge to edge, and aren't functions of nodes"
        values = np.asarray(probability.values, np.float64)
        table = np.full(size.num_outcomes, values[0]) if probability.level == "graph" else values
        found = find_factoring(
            self.source, given.packed, given.codec, given.num_actions, table, coordinates=self.coordinates
        )
        if isinstance(found, NotFactored):
            return found.reason[:1].lower() + found.reason[1:].rstrip(".")
        self.factoring = found
        return ""

    def choose(self, other_bytes: int) -> None:
        """Choose, and refuse what won't fit."""
        self.choice = choose(self.rows, self.forecasts)
        forecast = self.forecasts.get(self.choice.encoding)
        if forecast is not None:
            adopted = self.choice.encoding == "csr" and self.given.staged is not None
            rest = other_bytes + attribute_bytes(self.attributes)
            if not adopted:
                self._check_fits(forecast, rest)

    def _check_fits(self, forecast: Forecast, other_bytes: int) -> None:
        try:
            check_fits(forecast, self.forecasts, self.staging.store, self.budget, other_bytes=other_bytes)
        except (DiskFullError, MemoryBudgetError):
            if len(self.forecasts) > 1:
                raise
            self.forecast(set(ENCODINGS))  # only what was asked for was looked at: which would fit?
            check_fits(forecast, self.forecasts, self.staging.store, self.budget, other_bytes=other_bytes)

    # ---- writing

    def write(self) -> None:
        """Write rows and attributes."""
        encoding, staged = self.choice.encoding, self.given.staged
        size = self.source.size
        if encoding == "factored" and self.factoring is not None and self.factoring.combination is None:
            self._multiply()
        if encoding == "csr" and staged is not None:
            self._adopt(staged)
        else:
            with self._task(f"writing rows as {encoding}", size.num_edges) as tick:
                self.description, self.size = self._write_rows(encoding, tick)
        self.described = write_attributes(
            self.staging, self.attributes, cold=encoding == "csr-compressed", staged=staged
        )

    def _multiply(self) -> None:
        """Have the encoding make probabilities itself, by multiplying its kernels': there are no codes then."""
        probability = next(a for a in self.attributes if a.name == "probability")
        if probability.level == "outcome":
            self.proven_values = {"probability": np.asarray(probability.values)[self._code_map()]}
            none = np.zeros(self.given.source.size.num_outcomes, np.int64)
            self.source = RecodedRows(self.given.source, none, 1)
        computed = Attribute("probability", "rows", np.empty(0))
        self.attributes = tuple(computed if a.name == "probability" else a for a in self.attributes)

    def _code_map(self) -> NDArray[np.int64]:
        """Code of the rows given -> code of those to be written."""
        if isinstance(self.source, RecodedRows):
            return self.source.code_map.astype(np.int64)
        return np.arange(self.source.size.num_outcomes)

    def _adopt(self, staged: ScratchArrays) -> None:
        """Take the source as it lies, with the outcomes it has."""
        given = self.given
        self.attributes, self.source, self.size = tuple(given.attributes), given.source, given.source.size
        self.description = {"encoding": "csr", "num_outcomes": self.size.num_outcomes}
        for name in ("offsets", "next_node", "outcome"):
            if (staged.path / "rows" / name).is_dir():
                self.staging.adopt(staged, f"rows/{name}")
        if not (self.staging.path / "rows" / "offsets").is_dir():
            self.description["outdegree"] = self.size.num_edges // self.size.num_rows

    def _write_rows(self, encoding: str, tick: Ticker) -> tuple[dict[str, Any], GraphSize]:
        if encoding == "dictionary":
            coordinates = self.coordinates
            assert coordinates is not None  # it was forecast
            positions = coordinates.positions()
            return write_dictionary(
                self.source,
                self.staging,
                positions=positions,
                num_positions=None if positions is None else coordinates.num_positions,
                threads=self.threads,
                budget=self.budget // 2,
                tick=tick,
            )
        if encoding == "factored":
            assert self.factoring is not None  # it was forecast
            multiplied = "probability" in self.proven_values
            return write_factored(
                self.given.source if multiplied else self.source,
                self.factoring,
                self.staging,
                exceptional_nodes=self.given.exceptional_nodes,
                code_map=self._code_map() if multiplied else None,
                num_outcomes=self.source.size.num_outcomes,
                probabilities=self.proven_values.get("probability"),
                threads=self.threads,
                budget=self.budget // 2,
                tick=tick,
            )
        return self._write_csr(encoding, tick)

    def _write_csr(self, encoding: str, tick: Ticker) -> tuple[dict[str, Any], GraphSize]:
        size = self.source.size
        writer = row_writer(encoding, self.staging, size.num_nodes, size.num_joint_actions, size.num_outcomes)
        for chunk in self.source.sweep(0, size.num_rows, chunk_rows(size)):
            writer.append(np.diff(chunk.offsets), chunk.next_node, chunk.outcome)
            tick(len(chunk.next_node))
        description, written = writer.finish()
        if written.num_edges != size.num_edges:
            raise UsageError(f"{written.num_edges:,} edges came of {size.num_edges:,}")
        return description, written

    # ---- proof

    def prove(self, proof_rows: int | None) -> None:
        """Compare what was written with the source."""
        if self.choice.encoding == "csr" and self.given.staged is not None:
            return
        encoded = open_rows(self.staging.path, self.description, self.size)
        probability = next(a for a in self.attributes if a.name == "probability")
        if probability.level in ("graph", "outcome"):
            encoded.check_probabilities(Probabilities(probability.level, np.asarray(probability.values)))
        every = proof_rows is None or proof_rows >= self.size.num_rows
        with self._task("proving rows", self.size.num_edges if every else None) as tick:
            compare = partial(
                prove,
                self.given.source,
                encoded,
                code_map=self._code_map() if isinstance(self.source, RecodedRows) else None,
                values=self.proven_values,
                threads=self.threads,
                tick=tick,
            )
            if proof_rows is None or every:
                proof = compare(also=self._value_comparison().check)
            else:
                rng = np.random.default_rng([0, self.size.num_rows & 0xFFFFFFFF])
                drawn = draw_rows(self.size, proof_rows, rng)
                proof = sum((compare(rows=rows) for rows in drawn), Proof(0, 0, 0))
        self.proof = proof.to_dict()

    def _value_comparison(self) -> ValueComparison:
        """Compare the values of outcomes where any were moved or recoded; else codes tell the same values."""
        written = self._written_attributes()
        moved = isinstance(self.source, RecodedRows) or any(
            a.level == "outcome" != written[a.name].level for a in self.given.attributes
        )
        given = self.given.attributes if moved else ()
        return ValueComparison(given, written, self._code_map(), self.size.num_joint_actions)

    def _written_attributes(self) -> dict[str, Attribute]:
        """Open the attributes as they were written, but those at the level of rows or edges."""
        opened = {}
        for name, entry in self.described.items():
            if entry["level"] in ("row", "edge", "rows"):
                opened[name] = Attribute(name, entry["level"], np.empty(0))
                continue
            parts = {
                part: map_hot(self.staging.path / entry[part]) for part in ("codes", "own") if part in entry
            }
            values = map_hot(self.staging.path / entry["path"])
            opened[name] = Attribute(name, entry["level"], values, parts.get("codes"), parts.get("own"))
        return opened

    def result(self) -> EncodedRows:
        """Put together what was found and written."""
        description = self.description
        if description:
            description |= {"num_outcomes": self.size.num_outcomes, "reason": self.choice.reason}
        if self.proof:
            description["proof"] = self.proof
        return EncodedRows(
            description,
            self.described,
            {attribute.name: attribute.level for attribute in self.attributes},
            self.size,
            self.choice.encoding,
            self.choice.reason,
            tuple(self.forecasts[name] for name in ENCODINGS if name in self.forecasts),
            self.proof,
        )

    @contextlib.contextmanager
    def _task(self, name: str, total: int | None) -> Iterator[Ticker]:
        with self.progress.task(name, total, "edges") as task:
            yield task.update
