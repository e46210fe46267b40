"""A node's own Python, without a package, and a root in S3: with the role that the metadata service gives it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest

from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.faults import S3Fault
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
from tests.support.http import Responder, served

REPOSITORY = Path(__file__).resolve().parents[3]
BUCKET = "sagemaker-test"
ROOT = f"s3://{BUCKET}/run"
ROLE = Key("ROLE", "secret", "token")
PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from hyperpod_kit.checkpoint.commands.cli import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def buckets(tmp_path: Path) -> StoredBuckets:
    made = StoredBuckets(tmp_path / "s3")
    made.create_bucket(BUCKET)
    return made


@pytest.fixture
def node(
    buckets: StoredBuckets, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Dict[str, str]]:
    """The environment of a process of a node: where services are, no credentials."""

    class Metadata(Responder):
        def do_PUT(self) -> None:
            self.answer(200, b"t")

        def do_GET(self) -> None:
            if self.path.endswith("/region"):
                return self.answer(200, b"us-east-1")
            if self.path.endswith("/security-credentials/"):
                return self.answer(200, b"role")
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            said = {"AccessKeyId": ROLE.id, "SecretAccessKey": ROLE.secret, "Token": ROLE.token, "Expiration": moment}
            self.answer(200, json.dumps(said).encode())

    server = serve([("127.0.0.1", 0)], buckets, keys={ROLE.id: ROLE})
    with served(Metadata) as metadata:
        environment = {
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "HPK_SHM_DIR": str(shm),
            "AWS_ENDPOINT_URL": server.url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
        }
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment
    server.close()


def run(environment: Dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    python = shutil.which("python3", path="/usr/bin:/bin") or "python3"
    return subprocess.run(
        [python, "-I", "-S", "-c", PROGRAM, str(REPOSITORY), *words],
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=120,
    )


def test_what_a_dead_job_left_is_saved_listed_and_verified(node: Dict[str, str], capture: Any, shm: Path) -> None:
    for rank in (0, 1):
        capture(rank=rank, world=2, seq=5, step=50, elsewhere=ROOT)
    flushed = run(node, "flush", "--job", "7", "--json")
    assert flushed.returncode == 0, flushed.stderr
    assert os.listdir(shm) == []
    listed = run(node, "ls", ROOT, "--json")
    assert listed.returncode == 0, listed.stderr
    assert '"step": 50' in listed.stdout
    verified = run(node, "verify", ROOT)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_what_s3_does_not_take_stays_in_memory_with_the_reason(
    node: Dict[str, str], capture: Any, shm: Path, buckets: StoredBuckets
) -> None:
    capture(seq=5, step=50, elsewhere=ROOT)
    buckets.faults.add(S3Fault(status=403, code="ExpiredToken"))
    refused = run(node, "flush", "--job", "7", "--json")
    assert "ExpiredToken" in refused.stdout and os.listdir(shm) != []
    buckets.faults.clear()
    saved = run(node, "flush", "--job", "7", "--json")
    assert saved.returncode == 0 and "committed seq-000005" in saved.stdout and os.listdir(shm) == []
