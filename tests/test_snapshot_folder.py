"""Snapshots in a folder: they outlive workers and the server, and nothing else of them remains."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.client.stream import connect
from gt.dispatcher.journal.state_codec import decode_state, encode_state
from gt.dispatcher.recovery import recoveries
from gt.dispatcher.recovery.snapshot_folder import SnapshotFolder
from gt.errors import ClusterError, ConfigError, WorkerLost
from gt.testing import Cluster
from gt.wire.identities import PeerIdentity, Quota
from gt.wire.recovery_messages import SavedPart
from gt.worker.recovery import snapshot_parts
from gt.worker.recovery.snapshot_parts import PartReader, write_file
from tests.support.processes import wait_until
from tests.test_journal import Twins
from tests.test_recovery import kill_home, log_of


@pytest.fixture(autouse=True)
def _later_sessions_do_not_recover() -> Iterator[None]:
    yield
    connect.recover_later_sessions(None)


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Cluster:
    return Cluster(2, seed=1, backend="numpy", snapshots=tmp_path / "snapshots")


def files(tmp_path: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "snapshots").glob("snapshots-*/*"))


def folder_of(cluster: Cluster) -> SnapshotFolder:
    assert isinstance(cluster.storage, SnapshotFolder)
    return cluster.storage


# -- taking and restoring ----------------------------------------------------------------


def test_a_program_runs_again_from_its_files(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with cluster.client():
        gt.recovery("replay")
        with gt.signal.context("dp"):
            x = gt.arange(6.0)
        view = x.reshape(3, 2)
        assert gt.snapshot().wait()
        assert files(tmp_path) == ["1-1-0", "1-1-1"]
        x += 1
        assert gt.snapshot().wait()
        assert log_of(cluster).length == 0
        folder_of(cluster).clean()
        assert len(files(tmp_path)) == 4  # those that are not needed are removed when they are found again
        folder_of(cluster).clean()
        assert files(tmp_path) == ["1-2-0", "1-2-1"]
        cluster.kill_worker(b"w1")
        assert view.tolist() == [[1, 2], [3, 4], [5, 6]]
        cluster.add_worker()
        kill_home(cluster)
        assert (x * 2).tolist() == [2, 4, 6, 8, 10, 12]
    cluster.settle()
    folder_of(cluster).clean()
    folder_of(cluster).clean()
    assert files(tmp_path) == []
    assert not len(cluster.storage)


def test_workers_on_other_hosts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.client():
        gt.recovery("replay")
        x = gt.arange(3.0)
        monkeypatch.setattr("gt.testing.host_identity", lambda: "elsewhere")
        cluster.add_worker()
        assert gt.snapshot().wait()
        assert log_of(cluster).length == 0
        for _ in range(2):
            kill_home(cluster)
            assert x.tolist() == [0, 1, 2]


def test_a_state_that_is_written_and_read_has_its_snapshots(tmp_path: pathlib.Path) -> None:
    """Before every event, as if the server were started again all the time."""
    cluster = Cluster(2, seed=2, backend="numpy", snapshots=tmp_path / "snapshots")
    twins = Twins(cluster)
    assert twins.core.snapshots._storage is cluster.storage
    with cluster.client():
        gt.recovery("replay")
        x = gt.zeros(3)
        for _ in range(3):
            x += 1
            assert gt.snapshot().wait()
            kill_home(cluster)
            cluster.add_worker()
            assert x[0].item() > 0
        assert x.tolist() == [3, 3, 3]
    assert twins.events > 20


def test_a_server_that_is_started_again(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    """It keeps the files that its state knows, and removes the others. If one is missing, the program is lost."""
    with cluster.client():
        gt.recovery("replay")
        x = gt.arange(3.0)
        (tmp_path / "snapshots" / "snapshots-0123456789abcdef").mkdir()  # of another server, which has ended
        os.utime(tmp_path / "snapshots" / "snapshots-0123456789abcdef", (0, 0))
        assert gt.snapshot().wait()
        core, storage = cluster.dispatcher, folder_of(cluster)
        (name,) = files(tmp_path)
        (inner,) = {path.parent for path in (tmp_path / "snapshots").glob("snapshots-*/*")}
        (inner / "1-7-0").write_bytes(b"of a worker that was killed")
        (inner / "notes").write_text("not of GT")
        storage.close(keep=True)
        again = SnapshotFolder(tmp_path / "snapshots", threaded=False)
        externals = {"clock": core.listeners.clock, "wall": core.inspections._wall, "access": core._access}
        state = encode_state(core, {**externals, "snapshots": storage})
        cluster.dispatcher, cluster.storage = decode_state(state, {**externals, "snapshots": again}), again
        missing = again.begin(cluster.dispatcher.snapshots.files())
        assert missing == set()
        assert cluster.dispatcher.snapshots.lose_files(missing) == 0
        assert files(tmp_path) == [name, "notes"]
        assert [path.name for path in (tmp_path / "snapshots").glob("snapshots-*")] == [inner.name]
        x += 1
        kill_home(cluster)
        assert x.tolist() == [1, 2, 3]
        os.unlink(inner / name)
        assert cluster.dispatcher.snapshots.lose_files(again.begin(cluster.dispatcher.snapshots.files())) == 1
        kill_home(cluster)
        with pytest.raises(WorkerLost, match="its snapshot was lost when the server was started again"):
            x.tolist()


def test_a_server_that_is_started_again_while_a_snapshot_is_taken(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    """The worker finds its folder, although no file is there yet."""
    storage, (inner,) = folder_of(cluster), (tmp_path / "snapshots").glob("snapshots-*")
    assert storage.begin([str(inner / "1-1-0")]) == {str(inner / "1-1-0")}
    assert inner.is_dir()
    storage.begin([])
    assert not inner.exists()
    assert len(list((tmp_path / "snapshots").glob("snapshots-*"))) == 1


# -- what can go wrong -------------------------------------------------------------------


def test_a_full_disk_is_reported_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    """The snapshot before it counts."""
    with cluster.client():
        gt.recovery("replay")
        x = gt.arange(3.0)
        assert gt.snapshot().wait()
        before = files(tmp_path)

        def full(fd: int, data: memoryview) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(snapshot_parts, "_write", full)
        for _ in range(2):
            x += 1
            with pytest.raises(ClusterError, match=r"a worker could not write it: .*No space left on device"):
                gt.snapshot().wait()
        assert files(tmp_path) == before
        said = "No space left on device; the one before it counts"
        assert capsys.readouterr().err.count(said) == 1
        kill_home(cluster)
        assert x.tolist() == [2, 3, 4]
        monkeypatch.undo()
        assert gt.snapshot().wait()
        monkeypatch.setattr(snapshot_parts, "_write", full)
        gt.snapshot()
        assert x.tolist() == [2, 3, 4]
        cluster.settle()
        assert capsys.readouterr().err.count(said) == 1


def test_a_disk_keeps_some_space_free(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    monkeypatch.setattr(snapshot_parts, "MIN_FREE_BYTES", disk.f_blocks * disk.f_frsize * 2)
    small = tmp_path / "small"
    free = disk.f_bavail * disk.f_frsize
    with pytest.raises(OSError, match=r"the disk is almost full: \d+ bytes, and \d+ are free"):
        write_file(str(small), free, [])
    assert not small.exists()
    write_file(str(small), 3, [memoryview(b"abc")])
    assert small.read_bytes() == b"abc"
    assert small.stat().st_mode & 0o777 == 0o600


def test_a_worker_that_sees_another_folder(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    with cluster.client():
        gt.recovery("replay")
        x = gt.ones(2)
        x.tolist()
        (inner,) = (tmp_path / "snapshots").glob("snapshots-*")
        inner.rename(tmp_path / "elsewhere")
        with pytest.raises(ClusterError, match=r"it does not see .*; all workers must see the --snapshots folder"):
            gt.snapshot().wait()


def test_a_file_that_was_cut(cluster: Cluster, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "HOLD_S", 3.0)
    with cluster.client():
        gt.recovery("replay")
        x = gt.ones(100)
        assert gt.snapshot().wait()
        (path,) = (tmp_path / "snapshots").glob("snapshots-*/*")
        os.truncate(path, 40)
        kill_home(cluster)
        with pytest.raises(WorkerLost, match=r"could not be restored: .* ends after 40 bytes"):
            x.tolist()


def test_parts_are_read(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "part")
    write_file(path, 9, [memoryview(b"abc"), memoryview(b""), memoryview(b"defghi")])
    parts = PartReader([SavedPart(None, path, 9)])
    assert bytes(parts.read(0, 2, 4)) == b"cdef"
    assert bytes(parts.read(0, 9, 0)) == b""
    with pytest.raises(FileExistsError):
        write_file(path, 0, [])


@pytest.mark.parametrize("shared_memory", [True, False])
def test_snapshots_count_against_their_user(shared_memory: bool, tmp_path: pathlib.Path) -> None:
    """Those of all sessions together, and while the next one is written both."""
    cluster = Cluster(1, seed=1, backend="numpy", snapshots=None if shared_memory else tmp_path / "snapshots")
    sessions = [cluster.add_client() for _ in range(2)]
    for client in cluster.dispatcher.clients.values():
        client.identity = PeerIdentity("alice", "client", Quota(snapshots=10_000))
    with connect.use(sessions[0]):
        gt.recovery("replay")
        x = gt.zeros(1000)  # 4,000 bytes
        assert gt.snapshot().wait()
        assert gt.snapshot().wait()
    with connect.use(sessions[1]):
        connect.recover_later_sessions(None)
        gt.recovery("replay")
        y = gt.zeros(1000)
        assert gt.snapshot().wait()
        with pytest.raises(ClusterError, match="4000 bytes are more than what is left of the quota of snapshots, 2000"):
            gt.snapshot().wait()
        kill_home(cluster)
        cluster.add_worker()
        assert y.sum().item() == 0
    cluster.kill_client(sessions[0])
    cluster.settle()
    with connect.use(sessions[1]):
        assert gt.snapshot().wait()
    sessions[1].close()
    cluster.settle()
    assert not len(cluster.storage)
    del x, y


def test_parts_of_all_workers_count_together(cluster: Cluster) -> None:
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with cluster.client() as session:
        cluster.dispatcher.clients[session.id].identity = PeerIdentity("alice", "client", Quota(snapshots=5000))
        gt.recovery("replay")
        with gt.signal.context("dp"):
            x = gt.zeros(2000)  # 4,000 bytes on each worker
        with pytest.raises(ClusterError, match="the parts of all workers together exceed the quota of snapshots, 5000"):
            gt.snapshot().wait()
        assert not len(cluster.storage)
        assert x.sum().item() == 0


# -- the folder --------------------------------------------------------------------------


def test_folders_that_cannot_be_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SnapshotFolder(tmp_path / "a")
    with pytest.raises(ConfigError, match="a: another server that runs uses this folder"):
        SnapshotFolder(tmp_path / "a")
    folder.close(keep=False)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["lock"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--snapshots .*file: (File exists|Not a directory)"):
        SnapshotFolder(tmp_path / "file")

    def refuse(path: pathlib.Path, *arguments: Any, **more: Any) -> None:
        if "snapshots-" in path.name:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match="No space left on device"):
        SnapshotFolder(tmp_path / "a")


def test_a_thread_removes_what_is_not_needed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.dispatcher.recovery.snapshot_folder.CLEAN_S", 0.01)
    folder = SnapshotFolder(tmp_path / "snapshots")
    needed, unneeded = (folder.new_file(1, number, 0) for number in (1, 2))
    assert folder._thread is None, "while a journal is read, the files of its state are not known yet"
    folder.begin([needed, unneeded])
    for path in (needed, unneeded):
        pathlib.Path(path).write_bytes(b"x")
    folder.release(SavedPart(None, unneeded))
    wait_until(lambda: not os.path.exists(unneeded))
    assert os.path.exists(needed)
    folder.close(keep=True)
    assert os.path.exists(needed)
