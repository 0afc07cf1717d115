"""Progress lines with a clock that the test moves, and bars on something that says it is a terminal."""

import io
import threading

import pytest

from omstore import progress as progress_module
from omstore.progress import for_stream, format_seconds, silent


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def test_lines_say_how_far_how_fast_and_how_long(clock):
    stream = io.StringIO()
    with for_stream(stream).task("edges", 1000, "edges") as task:
        clock.now += 5
        task.update(100)  # too soon for a line
        clock.now += 5
        task.update(100)
        clock.now += 9.9
        task.update(100)
        clock.now += 0.1
        task.set(800)
    assert stream.getvalue().splitlines() == [
        "edges: 200 of 1,000 edges (20%), 20 edges/s, 40.0 s left",
        "edges: 800 of 1,000 edges (80%), 40 edges/s, 5.0 s left",
        "edges: 800 edges, done in 20.0 s, 40 edges/s",
    ]


def fail_after(clock, task, done):
    clock.now += 10
    task.update(done)
    raise ZeroDivisionError


def test_bytes_and_unknown_totals(clock):
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), for_stream(stream).task("reading", None, "B") as task:
        fail_after(clock, task, 3 << 20)
    assert stream.getvalue().splitlines() == [
        "reading: 3.0 MiB, 307 KiB/s",
        "reading: 3.0 MiB, stopped after 10.0 s, 307 KiB/s",
    ]


def test_an_empty_task_and_a_message(clock):
    stream = io.StringIO()
    progress = for_stream(stream)
    progress.message("hello")
    with progress.task("nothing", 0, "rows"):
        pass
    assert stream.getvalue() == "hello\nnothing: 0 rows, done in 0.0 s\n"


def test_every_line_is_flushed(clock):
    class Stream(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = len(self.getvalue())

    stream = Stream()
    progress = for_stream(stream)
    progress.message("hello")
    assert stream.flushed == 6
    with progress.task("x", 1, "rows"):
        pass
    assert stream.flushed == len(stream.getvalue())


def test_stderr_by_default_and_nothing_when_quiet(capsys):
    for_stream().message("hello")
    for_stream(quiet=True).message("no")
    silent().message("no")
    with silent().task("no", 1, "rows") as task:
        task.update(1)
        task.set(1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "hello\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_on_a_terminal():
    terminal = Terminal()
    progress = for_stream(terminal)
    before = threading.active_count()
    with progress.task("edges", 1000, "edges") as one, progress.task("rows", 10, "rows") as two:
        one.update(500)
        two.set(10)
        progress.message("hello")
        one.set(1000)
        assert threading.active_count() == before  # workers are forked meanwhile
    text = terminal.getvalue()
    assert "hello\n" in text
    assert "edges: 100%" in text
    assert "rows: 100%" in text


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_threads_count_every_update(clock, stream):
    progress = for_stream(stream())
    tasks = [progress.task(str(number), 20_000, "rows") for number in range(2)]

    def work(task):
        for _ in range(5000):
            task.update(1)

    threads = [threading.Thread(target=work, args=(task,)) for task in tasks for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for task in tasks:
        with task:
            assert task.done == 20_000


def test_durations():
    assert [format_seconds(s) for s in (0.04, 59.9, 65, 3599, 7800)] == [
        *("0.0 s", "59.9 s", "1 min 05 s", "59 min 59 s", "2 h 10 min")
    ]
