"""One writer at a time; the second is told who the first is."""

import fcntl
import os
import signal
import socket
import threading

import pytest

from omstore.errors import PublishError, WriterBusyError
from omstore.publish.lock import WriterLock
from omstore.publish.staging import stage
from omstore.publish.versions import gc, resolve, rollback

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def writer_in_child(export):
    """Fork a child that holds a staging folder until it is told to go on; gives its pid and the pipe for
    that.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with stage(export):
                os.write(ready_write, b"x")
                os.read(go_read, 1)
        finally:
            os._exit(0)
    os.read(ready_read, 1)
    for descriptor in (ready_read, ready_write, go_read):
        os.close(descriptor)
    return child, go_write


def test_the_second_writer_is_told_who_the_first_is(tmp_path, small):
    small.publish(tmp_path, 1)
    small.publish(tmp_path, 2)
    child, go = writer_in_child(tmp_path)
    try:
        for write in (lambda: small.publish(tmp_path, 3), lambda: gc(tmp_path), lambda: rollback(tmp_path)):
            with pytest.raises(WriterBusyError) as caught:
                write()
            assert f"process {child} on {socket.gethostname()}" in caught.value.message
        assert len(list((tmp_path / "store").glob(".staging-*"))) == 1  # the living one's
        assert small.check(resolve(tmp_path)) == 2
    finally:
        os.write(go, b"x")
        os.waitpid(child, 0)
        os.close(go)
    assert small.publish(tmp_path, 3) == "v000003"


def test_the_lock_ends_with_its_process(tmp_path, small):
    child, go = writer_in_child(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(go)
    assert list((tmp_path / "store").glob(".staging-*"))
    small.publish(tmp_path, 1)
    assert not list((tmp_path / "store").glob(".staging-*"))


def test_two_writers_in_one_process(tmp_path):
    with stage(tmp_path), pytest.raises(WriterBusyError, match=str(os.getpid())), stage(tmp_path):
        pass


def test_never_two_at_once_though_the_file_comes_and_goes(tmp_path):
    """A store without versions is removed with its lock: the next must not lock a file that is gone."""
    inside, most, entered = 0, 0, 0
    guard = threading.Lock()
    stop = threading.Event()

    def work():
        nonlocal inside, most, entered
        while not stop.is_set():
            try:
                with WriterLock(tmp_path / "store"):
                    with guard:
                        inside += 1
                        entered += 1
                        most = max(most, inside)
                    with guard:
                        inside -= 1
            except WriterBusyError:
                continue

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert most == 1
    assert entered > 10
    assert not (tmp_path / "store").exists()


def test_a_lock_file_with_anything_in_it(tmp_path, small):
    for content in (b"", b"garbage", b"[]", b'{"last_version": "x"}', bytes(10_000)):
        (tmp_path / "store").mkdir(exist_ok=True)
        (tmp_path / "store" / "LOCK").write_bytes(content)
        with stage(tmp_path), pytest.raises(WriterBusyError), stage(tmp_path):
            pass
    small.publish(tmp_path, 1)


def test_a_file_system_without_locks_says_so(tmp_path, monkeypatch):
    import errno

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(PublishError, match="no locks") as caught, stage(tmp_path):
        pass
    assert "local disk" in caught.value.hint
