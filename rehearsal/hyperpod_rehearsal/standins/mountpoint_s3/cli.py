"""mount-s3: check as the real one does, mount, serve in the foreground or leave a daemon."""

from __future__ import annotations

import os
import sys
import syslog
from concurrent.futures import ThreadPoolExecutor
from typing import Sequence

from hyperpod_rehearsal.standins.fuse.background import StartFailed, fork_and_serve_mount
from hyperpod_rehearsal.standins.fuse.session import (
    MS_NOATIME,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    FuseSession,
    Refusal,
    mount_and_return_fuse_descriptor,
    set_process_name,
)
from hyperpod_rehearsal.standins.mountpoint_s3.client import S3Client, S3Failure
from hyperpod_rehearsal.standins.mountpoint_s3.files import Files
from hyperpod_rehearsal.standins.mountpoint_s3.filesystem import NameOperations
from hyperpod_rehearsal.standins.mountpoint_s3.options import (
    MountOptions,
    arguments_from_mount_helper_argv,
    parse_options,
)
from hyperpod_rehearsal.standins.mountpoint_s3.settings import load_settings
from hyperpod_rehearsal.standins.mountpoint_s3.tree import Tree

SOURCE = "mountpoint-s3"
"""What the real client leaves in /proc/mounts; it says neither the bucket nor the prefix."""


def main(argv: Sequence[str], *, fstab: bool = False) -> int:
    """Exit code of the command. fstab: the arguments are those that mount(8) passes."""
    if fstab or "-o" in argv:
        argv = arguments_from_mount_helper_argv(argv)
    options = parse_options(argv)
    prefix = ""
    if options.prefix:
        prefix = f"prefix {options.prefix} of "
    done = f"{prefix}bucket {options.bucket} is mounted at {options.mount_point}"
    try:
        _require_unmounted_directory(options.mount_point)
        if not options.foreground:
            code = fork_and_serve_mount(lambda: _mount_and_start_session(options), options.mount_point)
            if code == 0:
                print(done)
            return code
        session = _mount_and_start_session(options)
        print(done, flush=True)
        session.wait_until_unmounted()
        return 0
    except StartFailed as err:
        print(err.message, file=sys.stderr)
        return err.code


def _require_unmounted_directory(path: str) -> None:
    try:
        os.stat(path)  # raises where isdir is only False
        directory = os.path.isdir(path)
    except OSError as err:
        # A dead mount (ENOTCONN) lands here too, as with the real client.
        raise StartFailed(f"Error: mount point {path} does not exist") from err
    if not directory:
        raise StartFailed(f"Error: mount point {path} is not a directory")
    real = os.path.realpath(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            if line.split()[4].replace("\\040", " ") == real and " - autofs " not in line:
                raise StartFailed(f"Error: mount point {path} is already mounted")


def _mount_and_start_session(options: MountOptions) -> FuseSession:
    """Reach the bucket and mount. Raises StartFailed."""
    settings = load_settings(os.environ, options.profile, options.endpoint_url, options.region)
    failed = f"initial ListObjectsV2 failed for bucket {options.bucket} in region {settings.region}"
    if not settings.endpoint:
        raise _start_failure(
            "Failed to create S3 client",
            "this is the stand-in of a rehearsal and has no AWS: set "
            "AWS_ENDPOINT_URL, --endpoint-url, or endpoint_url in ~/.aws/config",
        )
    if settings.credentials is None and not options.no_sign_request:
        raise _start_failure("Failed to create S3 client", failed, "Client error", "No signing credentials available")
    credentials = settings.credentials
    if options.no_sign_request:
        credentials = None
    client = S3Client(settings.endpoint, settings.region, options.bucket, credentials)
    try:
        client.list_page(options.prefix or "", delimiter="", limit=1)
    except S3Failure as err:
        raise _start_failure("Failed to create S3 client", failed, str(err)) from err
    rules = options.mount_rules()
    pool = ThreadPoolExecutor(8)
    tree = Tree(client, pool, options.prefix or "", rules.ttl)
    names = NameOperations(tree, client, rules)
    files = Files(tree, names, client, pool, rules)
    flags = MS_NOSUID | MS_NODEV | MS_NOATIME
    if options.read_only:
        flags |= MS_RDONLY
    shared = ""
    if options.allow_other or options.allow_root:
        shared = ",allow_other"
    try:
        descriptor = mount_and_return_fuse_descriptor(
            SOURCE, options.mount_point, "fuse", options=f"default_permissions{shared}", flags=flags
        )
    except OSError as err:
        raise _start_failure("Failed to create FUSE session", str(err)) from err
    set_process_name("mount-s3")
    syslog.openlog("mount-s3", syslog.LOG_PID, syslog.LOG_DAEMON)
    session = FuseSession(
        descriptor,
        options.mount_point,
        {**names.handlers(), **files.handlers()},
        tree.forget,
        report=_log_failed_request if not options.foreground else _log_and_print_failed_request,
    )
    session.start()
    return session


def _start_failure(message: str, *causes: str) -> StartFailed:
    lines = "\n".join(f"    {number}: {cause}" for number, cause in enumerate(causes))
    return StartFailed(f"Error: {message}\n\nCaused by:\n{lines}")


def _log_failed_request(opcode: int, error: BaseException) -> None:
    if isinstance(error, Refusal):
        syslog.syslog(syslog.LOG_WARNING, f"request {opcode} failed with errno {error.errno}: {error.strerror}")
    elif not isinstance(error, OSError):
        syslog.syslog(syslog.LOG_ERR, f"request {opcode} failed: {error!r}")


def _log_and_print_failed_request(opcode: int, error: BaseException) -> None:
    _log_failed_request(opcode, error)
    if isinstance(error, Refusal) or not isinstance(error, OSError):
        print(f"request {opcode} failed: {error!r}", file=sys.stderr, flush=True)
