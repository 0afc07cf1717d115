"""The bar's text and numbers, character by character, and when it is refreshed."""

from __future__ import annotations

import io

import pytest

from trainer.progress import Phase, PhaseBar, is_due, postfix, refresh_interval

EXAMPLE = {
    "local": 300, "local_total": 3000, "global": 76800, "global_total": 3840000, "roots": 76800,
    "roots_total": 768000, "valid": 256, "requested": 256, "policy_ce": 0.6862, "entropy": 0.6930,
    "objective": 0.6862 - 0.005 * 0.6930,
}  # fmt: skip
TEXT = (
    "local=300/3000 global=76800/3840000 (2.0%) roots=76800/768000 valid=256/256 policy_ce=0.6862 "
    "entropy=0.6930 objective=0.6827"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_labels() -> None:
    assert Phase(1, 4, "agent", 0).label == "soft-rollout-PI 1/4 | agent opp=L0"
    assert Phase(2, 4, "team", 1).label == "soft-rollout-PI 2/4 | team level=L1"


def test_postfix_is_the_documented_one() -> None:
    assert postfix(EXAMPLE) == TEXT


def test_postfix_before_any_valid_batch() -> None:
    unknown = {**EXAMPLE, "local": 0, "valid": 0, "policy_ce": None, "entropy": None, "objective": None}
    assert postfix(unknown).endswith("valid=0/256 policy_ce=nan entropy=nan objective=nan")


@pytest.mark.parametrize(
    ("print_every", "samples", "interval"),
    [(1, 768_000, 76_800), (1, 101, 11), (1, 100, 10), (1, 99, 10), (1, 91, 10), (1, 90, 9), (50, 100, 50),
     (10, 100, 10), (11, 100, 11), (0, 100, 10), (1, 1, 1)],
)  # fmt: skip
def test_interval(print_every: int, samples: int, interval: int) -> None:
    assert refresh_interval(print_every, samples) == interval


def refreshes(print_every: int, samples: int, batch: int) -> list[int]:
    found, roots = [], 0
    while roots < samples:
        now = min(samples, roots + batch)
        if is_due(roots, now, print_every, samples):
            found.append(now)
        roots = now
    return found


def test_refreshes_are_sparse() -> None:
    assert refreshes(1, 768_000, 256) == [76_800 * k for k in range(1, 11)]
    # the first update that reaches each multiple of 10,000
    assert refreshes(1, 100_000, 512) == [
        10240, 20480, 30208, 40448, 50176, 60416, 70144, 80384, 90112, 100000,
    ]  # fmt: skip
    assert refreshes(40, 100, 10) == [40, 80, 100]
    assert refreshes(1, 100, 1) == list(range(10, 101, 10))
    assert refreshes(1, 10, 512) == [10]
    # one less than the interval, the interval, one more
    assert [is_due(0, now, 1, 100) for now in (9, 10, 11)] == [False, True, True]
    assert [is_due(now, now + 1, 1, 100) for now in (8, 9, 10)] == [False, True, False]


def test_bar_on_a_terminal() -> None:
    stream = Terminal()
    with PhaseBar(Phase(1, 4, "agent", 0), 768_000, stream=stream) as bar:
        bar.refresh(EXAMPLE)
    assert "soft-rollout-PI 1/4 | agent opp=L0:  10%|" in stream.getvalue()
    assert "| 76800/768000 [" in stream.getvalue()
    assert f", {TEXT}]" in stream.getvalue()


def test_bar_goes_on_from_where_a_phase_was() -> None:
    stream = Terminal()
    with PhaseBar(Phase(1, 4, "agent", 0), 768_000, initial=384_000, stream=stream):
        pass
    assert " 50%|" in stream.getvalue()


def test_lines_elsewhere() -> None:
    stream = io.StringIO()
    with PhaseBar(Phase(2, 4, "team", 1), 768_000, stream=stream) as bar:
        bar.refresh(EXAMPLE)
    assert stream.getvalue() == f"soft-rollout-PI 2/4 | team level=L1: {TEXT}\n"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_zero_turns_it_off(stream: io.StringIO) -> None:
    with PhaseBar(Phase(), 768_000, print_every=0, stream=stream) as bar:
        bar.refresh(EXAMPLE)
    assert stream.getvalue() == ""
