"""Stand-ins as a node has them: installed under a root, started by the system's Python, mounted for real."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
from hyperpod_rehearsal.standins.install import LIBRARY, install_standins

PYTHON = os.environ.get("HPK_STANDIN_PYTHON", "/usr/bin/python3")
"""What runs the stand-ins: set the variable to try another version, 3.8 above all."""
SYSTEM_PYTHON = "/usr/bin/python3"
BUCKET = "sagemaker-test"
EFS = "fs-0123456789abcdef0"
POINT = "fsap-0123456789abcdef0"
S3FILES = "fs-0aaaabbbbccccdddd"
S3FILES_POINT = "fsap-0aaaabbbbccccdddd"
OPENZFS_DNS = "fs-0123456789fedcba0.fsx.us-east-1.amazonaws.com"
LUSTRE_DNS = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
USER = 2001
OTHER_USER = 3001


needs_mounts = [pytest.mark.rehearsal, pytest.mark.needs("fuse", "system-python")]


def refused(number, call, *arguments, **named):
    with pytest.raises(OSError) as caught:
        call(*arguments, **named)
    assert caught.value.errno is not None
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number]


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A root with the stand-ins; readable by everyone, as tests act as other users too."""
    root = tmp_path_factory.mktemp("root")
    install_standins(root)
    return root


class Node:
    """Runs stand-ins with a data directory and an endpoint, and takes back every mount that they made."""

    def __init__(self, root: Path, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self._library = root / LIBRARY
        self._environment = {**os.environ, **environment}
        self._mounted: list[Path] = []
        self._processes: list[subprocess.Popen[str]] = []

    def mount_point(self, name: str) -> Path:
        """A fresh directory to mount on."""
        made = self.directory / name
        made.mkdir()
        return made

    def command(self, *argv: str) -> list[str]:
        """The command line that a launcher executes."""
        return [PYTHON, "-I", "-S", str(self._library), *argv]

    def run(self, *argv: str | Path, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a stand-in by name; what it mounts on any of its arguments is unmounted at the end."""
        self._mounted += [item for item in argv if isinstance(item, Path)]
        return subprocess.run(
            self.command(*map(str, argv)), env=self._environment, capture_output=True, text=True, timeout=timeout
        )

    def mount(self, *argv: str | Path) -> None:
        """Run a stand-in that must succeed."""
        done = self.run(*argv)
        assert done.returncode == 0, done.stderr

    def start(self, *argv: str | Path) -> subprocess.Popen[str]:
        """Start a stand-in in the foreground; it has mounted once it has printed a line."""
        self._mounted += [item for item in argv if isinstance(item, Path)]
        process = subprocess.Popen(
            self.command(*map(str, argv)),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def close(self) -> None:
        """Unmount by path, end by process id."""
        for path in self._mounted:
            subprocess.run(["umount", "-l", str(path)], capture_output=True, timeout=60)
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        mounted = [path for path in self._mounted if mount_line(path)]
        assert not mounted


def mount_line(path: Path) -> list[str]:
    """The fields of /proc/mounts for a mount point, source first; empty when there is none."""
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.split()[1] == str(path):
            return line.split()
    return []


@pytest.fixture
def open_path():
    """A directory that other users can reach; pytest's own is private."""
    with tempfile.TemporaryDirectory(prefix="standins-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.fixture
def node(installed, open_path):
    """A node with an EFS file system, an access point and a Lustre file system."""
    data = open_path / "data"
    (data / "efs" / EFS).mkdir(parents=True)
    (data / "efs" / "registry.json").write_text(
        json.dumps(
            {
                "file_systems": [EFS],
                "access_points": {
                    POINT: {
                        "FileSystemId": EFS,
                        "PosixUser": {"Uid": USER, "Gid": USER, "SecondaryGids": [2100]},
                        "RootDirectory": {
                            "Path": "/home/trainer",
                            "CreationInfo": {"OwnerUid": USER, "OwnerGid": USER, "Permissions": "0750"},
                        },
                    },
                    "fsap-00000000000000001": {"FileSystemId": EFS, "RootDirectory": {"Path": "/absent"}},
                    "fsap-00000000000000002": {"FileSystemId": "fs-11111111", "RootDirectory": {"Path": "/"}},
                },
            }
        )
    )
    (data / "fsx" / "abcdefgh").mkdir(parents=True)
    (data / "fsx" / "abcdefgh").chmod(0o1777)
    (data / "fsx" / "registry.json").write_text(json.dumps({"abcdefgh": {"dns": LUSTRE_DNS, "ip": "10.1.0.1"}}))
    (data / "s3files" / S3FILES).mkdir(parents=True)
    (data / "s3files" / "registry.json").write_text(
        json.dumps(
            {
                "file_systems": [S3FILES],
                "access_points": {
                    S3FILES_POINT: {
                        "FileSystemId": S3FILES,
                        "PosixUser": {"Uid": USER, "Gid": USER},
                        "RootDirectory": {
                            "Path": "/trainer",
                            "CreationInfo": {"OwnerUid": USER, "OwnerGid": USER, "Permissions": "0750"},
                        },
                    }
                },
            }
        )
    )
    (data / "openzfs" / OPENZFS_DNS.split(".")[0] / "fsx").mkdir(parents=True)
    (data / "openzfs" / "registry.json").write_text(json.dumps({OPENZFS_DNS: {"exports": ["/fsx"]}}))
    made = Node(installed, open_path, {"HPK_STANDIN_DATA": str(data), "HPK_STANDIN_STATE": str(open_path / "run-efs")})
    yield made
    made.close()


@pytest.fixture
def store(tmp_path):
    made = StoredBuckets(tmp_path / "s3")
    made.create_bucket(BUCKET)
    return made


@pytest.fixture
def s3_node(installed, open_path, store):
    """A node that reaches the store's endpoint."""
    server = serve([("127.0.0.1", 0)], store, keys={"test": Key("test", "secret")})
    made = Node(
        installed,
        open_path,
        {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        },
    )
    try:
        yield made
    finally:
        made.close()
        server.close()


@pytest.fixture
def efs(node):
    target = node.mount_point("efs")
    node.mount("mount.efs", f"{EFS}:/", target, "-o", f"rw,tls,accesspoint={POINT}")
    return target


@pytest.fixture
def efs_elsewhere(node):
    target = node.mount_point("efs2")
    node.mount("mount.efs", f"{EFS}:/", target, "-o", f"tls,accesspoint={POINT}")
    return target


def mount_lustre(node, name):
    target = node.mount_point(name)
    node.mount("mount.lustre", f"{LUSTRE_DNS}@tcp:/abcdefgh", target, "-o", "noatime,flock")
    return target


@pytest.fixture
def lustre(node):
    return mount_lustre(node, "fsx")


@pytest.fixture
def lustre_elsewhere(node):
    return mount_lustre(node, "fsx2")
