"""A legal configuration in which every field that takes text is written, and the places of those texts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Iterator, List, Tuple, Union

from hyperpod_kit.config.settings.access_points import AccessPoint

Place = Tuple[Union[str, int], ...]
"""Keys and indexes that lead to a value."""

BESIDE = Path(__file__).parent / "beside"
"""Files that the configuration names lie there."""

FS = "fs-0123456789abcdef0"
HOMES = "fs-0123456789abcdef9"
SQL = "arn:aws:secretsmanager:us-east-1:111122223333:secret:sql-a1b2c3"
READER = "arn:aws:secretsmanager:us-east-1:111122223333:secret:reader-a1b2c3"
DOCUMENT: dict[str, Any] = {
    "$schema": "./schema.json",
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller-machine",
    "login_group": "login-group",
    "worker_groups": [{"instance_group_name": "worker-group", "partition_name": "train"}],
    "fsx_dns_name": "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com",
    "fsx_mountname": "abcdefgh",
    "bucketname": "sagemaker-short-form",
    "slurm_configurations": {"slurm_database_endpoint": "db.example.com", "slurm_shared_directory": "/fsx"},
    "fsx_openzfs_dns_name": "fs-0fedcba9876543211.fsx.us-east-1.amazonaws.com",
    "hyperpod_kit": {
        "cluster": {
            "name": "demo",
            "region": "us-east-1",
            "lifecycle_mode": "on_create",
            "node_recovery": "Automatic",
            "execution_role": "arn:aws:iam::111122223333:role/HyperPodKitDemo",
            "vpc": {"security_group_ids": ["sg-0123456789abcdef0"], "subnet_ids": ["subnet-0123456789abcdef0"]},
            "instance_groups": [
                {"name": "controller-machine", "instance_type": "ml.c5.xlarge", "count": 1},
                {"name": "login-group", "instance_type": "ml.c5.xlarge", "count": 1},
                {
                    "name": "worker-group",
                    "instance_type": "ml.p5.48xlarge",
                    "count": 3,
                    "ebs_gib": 500,
                    "execution_role": "arn:aws:iam::111122223333:role/Workers",
                    "ebs_kms_key": "alias/mine",
                    "root_kms_key": "1234abcd-12ab-34cd-56ef-1234567890ab",
                    "deep_health_checks": ["InstanceStress"],
                    "training_plan_arn": "arn:aws:sagemaker:us-east-1:111122223333:training-plan/mine",
                    "vpc": {"security_group_ids": ["sg-0123456789abcdef1"], "subnet_ids": ["subnet-0123456789abcdef1"]},
                },
            ],
            "tags": {"team": "research"},
        },
        "bundle": {"bucket": "sagemaker-hyperpod-kit-demo", "prefix": "hyperpod-kit/"},
        "mounts": [
            {
                "kind": "efs",
                "name": "shared",
                "path": "/efs/shared",
                "file_system_id": FS,
                "region": "us-east-1",
                "access_point_id": "fsap-0123456789abcdef0",
                "roles": ["compute"],
                "groups": ["worker-group"],
            },
            {
                "kind": "s3files",
                "name": "files",
                "path": "/files",
                "file_system_id": FS,
                "region": "us-east-1",
                "access_point_id": "fsap-0123456789abcdef1",
            },
            {
                "kind": "lustre",
                "name": "scratch",
                "path": "/scratch",
                "dns_name": "fs-0fedcba9876543212.fsx.us-east-1.amazonaws.com",
                "mount_name": "ijklmnop",
            },
            {
                "kind": "openzfs",
                "name": "zfs",
                "path": "/zfs",
                "export": "/fsx/data",
                "dns_name": "fs-0fedcba9876543213.fsx.us-east-1.amazonaws.com",
            },
            {
                "kind": "mountpoint-s3",
                "name": "data",
                "path": "/mnt/data",
                "bucket": "sagemaker-hyperpod-kit-data",
                "prefix": "corpus/",
                "dir_mode": "0750",
                "file_mode": "0640",
                "cache_dir": "/opt/dlami/nvme/cache",
                "metadata_ttl": "60",
                "region": "us-east-1",
                "endpoint_url": "https://s3.us-east-1.amazonaws.com",
                "expected_bucket_owner": "111122223333",
                "read_only": False,
                "storage_class": "STANDARD_IA",
                "sse": "aws:kms",
                "sse_kms_key_id": "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
            },
            {"kind": "nvme", "name": "local", "path": "/local", "mode": "0750"},
        ],
        "users": [{"name": "trainer", "uid": 2001, "gid": 2001}],
        "groups": [{"name": "vision", "gid": 3001, "members": ["trainer"], "mounts": ["scratch"]}],
        "homes": {"file_system_id": HOMES, "path": "/homes", "directory": "/home", "roles": ["compute"]},
        "health": {
            "textfile_directory": "/var/lib/node_exporter/textfile_collector",
            "interval": 30,
            "deadline": 5,
            "degraded_after": 5,
        },
        "failure_pause": 60,
        "secrets": [
            {
                "name": "db",
                "arn": "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3",
                "owner": "slurm",
                "roles": ["controller"],
            },
            {
                "name": "sql",
                "arn": SQL,
                "roles": ["controller"],
            },
            {"name": "reader", "arn": READER},
        ],
        "scripts": [
            {
                "name": "docker",
                "path": "own/docker",
                "run": "install.sh",
                "arguments": ["--quiet"],
                "when": "before-mounts",
                "roles": ["compute"],
                "groups": ["worker-group"],
            },
        ],
        "steps": {
            "accounting": {
                "database": {"host": "db.example.com", "secret_arn": SQL, "user": "slurm", "name": "slurm_acct_db"},
                "accounts": [{"name": "research", "users": ["trainer"], "parent": "root", "qos": ["normal", "high"]}],
                "qos": [
                    {"name": "high", "priority": 100, "preempts": ["normal"], "limits": {"max_wall": "1-00:00:00"}}
                ],
                "enforce": ["associations", "limits", "qos"],
                "preempt_mode": "requeue",
            },
            "log_rotation": {"size": "50M", "keep": 4},
            "login_message": {"text": "Ask the team in #cluster."},
            "ssh_between_nodes": {"mount": "fsx"},
            "node_exporter": {"listen": ":9100"},
            "docker": {"users": ["ubuntu"]},
            "podman": {},
            "enroot": {},
            "pyxis": {},
            "pam_slurm_adopt": {"users": ["ubuntu"], "groups": ["admins"]},
            "sssd": {
                "uri": "ldaps://ldap.example.com",
                "search_base": "dc=example,dc=com",
                "schema": "rfc2307bis",
                "bind_dn": "cn=reader,dc=example,dc=com",
                "secret_arn": READER,
                "ca_file": "/etc/ldap/ca.pem",
                "home": "/home/%u",
                "allow": ["researchers"],
                "sudo": ["admins"],
            },
            "device_checks": {"action": "replace", "gate": True, "dcgm": True, "efa": True},
            "training_environment": {
                "path": "/var/lib/environments",
                "requirements": {"x86_64": "requirements.lock"},
                "name": "training",
                "python": "/usr/bin/python3.12",
                "owner": "trainer",
                "timeout": 600,
            },
        },
        "clients": [
            {
                "client": "mount-s3",
                "name": "mount-s3",
                "version": "1.23.0",
                "arch": "x86_64",
                "sha256": "0" * 64,
                "url": "https://s3.amazonaws.com/mountpoint-s3-release/1.23.0/x86_64/mount-s3.deb",
            },
        ],
    },
}


def document() -> dict[str, Any]:
    """A fresh copy."""
    return copy.deepcopy(DOCUMENT)


def places(kind: Tuple[type, ...], value: Any = None, at: Place = ()) -> Iterator[Place]:
    """The place of every value of a kind in the document; true and false are no numbers."""
    value = DOCUMENT if value is None else value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, kind) and not isinstance(item, bool):
            yield (*at, key)
        elif isinstance(item, (dict, list)):
            yield from places(kind, item, (*at, key))


def written(place: Place) -> str:
    """The place as findings write it: `hyperpod_kit.mounts[1].bucket`."""
    text = ""
    for key in place:
        text += f"[{key}]" if isinstance(key, int) else f".{key}"
    return text[1:]


def replaced(place: Place, value: Any) -> dict[str, Any]:
    """A fresh document with another value at one place."""
    data: Any = document()
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return dict(data)


ACCESS_POINTS = {"trainer": AccessPoint("trainer", HOMES, 2001, 2001, "/home/trainer", "fsap-0123456789abcdef9")}
"""What AWS has made for the homes."""

PLACES: List[Place] = list(places((str,)))
NUMBERS: List[Place] = list(places((int, float)))
