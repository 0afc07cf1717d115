"""A small version whose contents are a function of a seed, a check that a version is whole, and small
disks.
"""

import os
import shutil
import subprocess

import numpy as np
import pytest

from omstore.format.cold import ColdArray
from omstore.format.hot import map_hot
from omstore.format.manifest import Counts, Manifest, read_manifest
from omstore.format.states import StateCodec
from omstore.format.verify import find_damage
from omstore.publish.staging import stage


class Small:
    """Publishes, and recognizes, versions of 40 nodes x 2 joint actions."""

    @staticmethod
    def manifest(seed):
        return Manifest(
            Counts(40, 2, 80, 80, 300),
            ("a", "b"),
            (1, 2),
            StateCodec(8, 1),
            {"encoding": "csr", "seed": seed},
        )

    @staticmethod
    def arrays(seed):
        rng = np.random.default_rng(seed)
        return {
            "nodes/state": rng.integers(0, 256, (40, 1)).astype(np.uint8),
            "rows/next_node": rng.integers(0, 40, 80).astype(np.uint32),
            "replay/reward": rng.integers(0, 9, (300, 2)).astype(np.float64),
            "nodes/legacy_id": rng.permutation(40),
        }

    def fill(self, staging, seed):
        arrays = self.arrays(seed)
        (staging.scratch / "spool").write_bytes(b"temporary")
        staging.write_hot("nodes/state", arrays["nodes/state"])
        with staging.hot("rows/next_node", np.uint32) as writer:
            writer.append(arrays["rows/next_node"][:30])
            writer.append(arrays["rows/next_node"][30:])
        staging.cold("replay/reward", np.float64, (2,), chunk_rows=64).append(arrays["replay/reward"])
        staging.create_hot("nodes/legacy_id", np.int64, (40,))[:] = arrays["nodes/legacy_id"]

    def publish(self, export, seed):
        with stage(export) as staging:
            self.fill(staging, seed)
            return staging.publish(self.manifest(seed))

    def check(self, folder):
        """Check that a version is whole and its contents those of its seed; gives the seed."""
        manifest = read_manifest(folder)
        assert list(find_damage(folder, manifest)) == []
        seed = manifest.rows["seed"]
        for name, array in self.arrays(seed).items():
            if name == "replay/reward":
                np.testing.assert_array_equal(ColdArray(folder / name)[:], array)
            else:
                np.testing.assert_array_equal(map_hot(folder / name), array)
        return seed

    @staticmethod
    def contents(folder):
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def small():
    return Small()


@pytest.fixture
def small_disk(tmp_path):
    """Give a function that mounts an empty disk of so many bytes, or mounts it anew with other options."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk takes root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False

    def mount(options):
        nonlocal mounted
        remount = ["remount"] if mounted else []
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*remount, options]), "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("mounting isn't allowed here")
        mounted = True
        return folder

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
