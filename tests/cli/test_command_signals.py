"""Ctrl-C and SIGTERM at any stage: one line, the exit code shells expect, nothing half-made."""

import os
import signal

import pytest

STAGES = {
    "reading": "omstore.convert.pipeline.read_files",
    "nodes": "omstore.convert.pipeline.build_nodes",
    "edges": "omstore.convert.pipeline.build_edges",
    "replay": "omstore.convert.pipeline.write_replay",
    "publishing": "omstore.publish.staging.write_manifest",
}


def send_on_call(monkeypatch, where, number):
    """Have the process send itself a signal when a function is called."""

    def stop(*_, **__):
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was swallowed")

    monkeypatch.setattr(where, stop)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_nothing_is_left_behind(stage, number, code, name, run, fresh, monkeypatch):
    send_on_call(monkeypatch, STAGES[stage], number)
    before = signal.getsignal(number)
    ran = run("convert", fresh)
    assert ran.code == code
    assert ran.err.splitlines()[-1] == f"stopped by {name}: nothing was published, and nothing is left behind"
    assert ran.out == ""
    assert not (fresh / "store").exists()
    assert sorted(path.name for path in fresh.iterdir()) == ["truth", "wm"]
    assert signal.getsignal(number) is before


def test_the_live_version_stays(run, store, monkeypatch):
    send_on_call(monkeypatch, STAGES["edges"], signal.SIGTERM)
    assert run("convert", store).code == 143
    assert sorted(path.name for path in (store / "store").iterdir()) == ["CURRENT", "LOCK", "v000001"]
    assert run("verify", store, "-q").code == 0


def test_stopped_after_publication_says_so(run, fresh, monkeypatch):
    send_on_call(monkeypatch, "omstore.publish.staging.Staging._remove_old", signal.SIGINT)
    ran = run("convert", fresh)
    assert ran.code == 130
    assert "v000001 was published already" in ran.err
    assert run("verify", fresh, "-q").code == 0


def test_a_second_signal_does_not_interrupt_the_clean_up(run, fresh, monkeypatch):
    send_on_call(monkeypatch, STAGES["replay"], signal.SIGTERM)
    import omstore.publish.staging as staging

    clean_up = staging.discard_staging

    def impatient(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return clean_up(*arguments)

    monkeypatch.setattr(staging, "discard_staging", impatient)
    assert run("convert", fresh).code == 143
    assert not (fresh / "store").exists()


def test_looking_can_be_stopped_too(run, store, monkeypatch):
    send_on_call(monkeypatch, "omstore.inspect.summary.sweep_edges", signal.SIGINT)
    ran = run("stats", store)
    assert (ran.code, ran.err) == (130, "stopped by Ctrl-C: nothing was changed\n")
