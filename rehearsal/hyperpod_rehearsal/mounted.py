"""Run a command with a bucket mounted by the stand-in of Mountpoint for S3: real FUSE, a real endpoint, no account.

    python -m hyperpod_rehearsal.mounted [OPTION…] -- COMMAND…     {} in COMMAND is the mount point

OPTIONs go to mount-s3 (`--allow-delete`). Root only. Exit code: the command's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hyperpod_kit import ending
from hyperpod_kit.errors import RehearsalError
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.credentials.keys import Keys
from hyperpod_rehearsal.platform.node_files import aws_environment
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
from hyperpod_rehearsal.standins.install import LIBRARY, install_standins

BUCKET = "mounted"
_PYTHON = "/usr/bin/python3"
_SECONDS = 60.0


def run_with_bucket_mounted(options: Sequence[str], command: Sequence[str]) -> int:
    """Run a command with a bucket mounted and return its exit code.

    Raises RehearsalError when nothing can be mounted here.
    """
    with tempfile.TemporaryDirectory(prefix="hpk-mounted-") as temporary_directory:
        directory, point = Path(temporary_directory), Path(temporary_directory, "mount")
        by_descriptor.make_directory(point)
        install_standins(directory / "root")
        store = StoredBuckets(directory / "s3")
        store.create_bucket(BUCKET)
        key = Keys.generate().admin
        server = serve([("127.0.0.1", 0)], store, keys={key.id: key})
        try:
            environment = {
                **os.environ,
                **aws_environment(server.url, key),
                "AWS_CONFIG_FILE": "/nonexistent",
                "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            }
            mount_run = subprocess.run(
                [_PYTHON, "-I", "-S", str(directory / "root" / LIBRARY), "mount-s3", *options, BUCKET, str(point)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
            if mount_run.returncode:
                raise RehearsalError(f"mount-s3: {mount_run.stderr.strip()}", hint="root, and a kernel with FUSE")
            try:
                return subprocess.run([word.replace("{}", str(point)) for word in command]).returncode
            finally:
                subprocess.run(["umount", "-l", str(point)], capture_output=True, timeout=_SECONDS)
        finally:
            server.close()


def main(argv: Sequence[str]) -> int:
    """Exit codes: the command's, 2 usage, 1 nothing could be mounted."""
    if "--" not in argv or argv[-1] == "--":
        print(__doc__, file=sys.stderr)
        return 2
    at = list(argv).index("--")
    try:
        return run_with_bucket_mounted(argv[:at], argv[at + 1 :])
    except RehearsalError as err:
        print(f"error: {err}\nhint: {err.hint}", file=sys.stderr)
        return err.exit_code


if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: main(sys.argv[1:])))
