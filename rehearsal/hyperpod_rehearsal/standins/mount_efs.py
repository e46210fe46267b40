"""mount.efs of a rehearsal: mount -t efs -o tls,accesspoint=fsap-... fs-...:/ /efs/alice

Checks what efs-utils and the EFS service check, with their words and exit codes. registry.json in the data
directory says which file systems and access points exist:
{"file_systems": [ID...], "access_points": {ID: {"FileSystemId", "PosixUser", "RootDirectory"}}, "policies": {ID: …}}
as in the API. An access point's root directory is made on first use when it has CreationInfo, and every operation is
done as its PosixUser. A file system's policy decides who may mount, write and be root; without one everyone may.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Optional, Sequence

from hyperpod_rehearsal.standins import file_system_policy
from hyperpod_rehearsal.standins.access_point import SHOWN, mount_denied_error, prepare_access_point
from hyperpod_rehearsal.standins.fuse.arguments import (
    data_directory,
    parse_efs_arguments,
    read_file_system_registry,
    run_mount_helper,
    unknown_options,
)
from hyperpod_rehearsal.standins.fuse.background import StartFailed
from hyperpod_rehearsal.standins.passthrough.identity import PosixIdentity
from hyperpod_rehearsal.standins.passthrough.proxy_state import ProxyState
from hyperpod_rehearsal.standins.passthrough.start import serve_directory_as_fuse_mount

VERSION = "mount.efs Version: 2.0.0+standin (hyperpod-kit rehearsal stand-in, not amazon-efs-utils)"
SUPPORTED_OPTIONS = (
    "tls",
    "notls",
    "accesspoint",
    "iam",
    "awsprofile",
    "awscredsuri",
    "cafile",
    "az",
    "region",
    "ocsp",
    "noocsp",
    "tlsport",
    "netns",
    "mounttargetip",
    "ro",
    "noresvport",
    "noatime",
    "hard",
    "soft",
    "crossaccount",
    "verify",
    "stunnel",
    "rolearn",
    "jwtpath",
    "nfsvers",
    "rsize",
    "wsize",
    "timeo",
    "retrans",
    "port",
)
SOURCE = re.compile(r"(?:[a-z0-9-]+\.)?(fs-[0-9a-f]{8,17})(?:\.efs\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?)?(?::(/.*)?)?")


def main(argv: Sequence[str]) -> int:
    """Run mount.efs and return its exit code."""
    return run_mount_helper(argv, VERSION, _mount_from_arguments)


def _mount_from_arguments(argv: Sequence[str]) -> int:
    file_system, path, target, options = parse_efs_arguments(argv, "mount.efs", SOURCE)
    _check_options(options, path)
    registry = read_file_system_registry("efs")
    if file_system not in registry["file_systems"]:
        raise StartFailed(
            f'Failed to resolve "{file_system}.efs.{options.get("region", "us-east-1")}.amazonaws.com" - '
            f"check that your file system ID is correct, and ensure that the VPC has an EFS mount target "
            f"for this file system ID."
        )
    if not os.path.isdir(target):
        raise StartFailed(f"mount.nfs4: mount point {target} does not exist", 32)
    granted = _require_mount_grant(registry, file_system, options)
    base = os.path.join(data_directory("efs"), file_system)
    squash: Optional[PosixIdentity] = None
    if "accesspoint" in options:
        directory, squash = prepare_access_point(registry["access_points"], options["accesspoint"], file_system, base)
    else:
        directory = os.path.join(base, path.strip("/"))
    if not os.path.isdir(directory):
        raise StartFailed(
            f"mount.nfs4: mounting 127.0.0.1:{path} failed, reason given by server: No such file or directory", 32
        )
    details = {"fsId": file_system, "useIam": "iam" in options, "accessPoint": options.get("accesspoint")}
    state = ProxyState(file_system, target, details if "tls" in options else {})
    return serve_directory_as_fuse_mount(
        directory,
        target,
        program="mount.efs",
        source=SHOWN,
        subtype="efs",
        squash=squash,
        read_only="ro" in options or not granted.write,
        root_squash=not granted.root,
        no_atime="noatime" in options,
        state=state,
    )


def _require_mount_grant(
    registry: Dict[str, Any], file_system: str, options: Dict[str, str]
) -> file_system_policy.Granted:
    """What the file system's policy lets this client do. Raises StartFailed when that is not even a mount.

    How EFS refuses writes to a client without ClientWrite is not documented; here the mount is read-only.
    """
    role = ""
    if "iam" in options:
        role = file_system_policy.read_node_role_arn()
    if "iam" in options and not role:
        raise StartFailed(
            "AWS Access Key ID and Secret Access Key are not found in AWS credentials file (~/.aws/"
            "credentials), config file (~/.aws/config), from ECS credentials relative uri, or from the "
            "instance security credentials service"
        )
    client = file_system_policy.Client(role, "tls" in options, options.get("accesspoint", ""))
    try:
        granted = file_system_policy.evaluate_policy(registry.get("policies", {}).get(file_system), file_system, client)
    except file_system_policy.UnsupportedPolicy as err:
        raise StartFailed(f"mount.efs: the rehearsal cannot evaluate the policy of {file_system}: {err}") from err
    if not granted.mount:
        raise mount_denied_error()
    return granted


def _check_options(options: Dict[str, str], path: str) -> None:
    unsupported = unknown_options(options, SUPPORTED_OPTIONS)
    if unsupported:
        raise StartFailed(f"mount.nfs4: an incorrect mount option was specified ({unsupported[0]})", 32)
    if "accesspoint" in options and "tls" not in options:
        raise StartFailed('The "tls" option is required when mounting via "accesspoint"')
    if "accesspoint" in options and path != "/":
        raise StartFailed('Cannot mount a sub-path via "accesspoint": the path must be "/"')
    if "iam" in options and "tls" not in options:
        raise StartFailed('The "tls" option is required when mounting via "iam"')
