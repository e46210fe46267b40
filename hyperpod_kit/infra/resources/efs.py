"""EFS: a file system for each that the configuration names, mount targets, access points and the policy."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Sequence

from hyperpod_kit.aws.policies import MOUNT, ROOT, SID_PREFIX, VERSION, WRITE
from hyperpod_kit.config.settings.homes import HOMES_PATH, NO_ACCESS_POINT
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.infra.part import KEPT, TemplatePart, get_att, logical_id_part, name_tags, ref, resource
from hyperpod_kit.infra.resources.groups import STORAGE
from hyperpod_kit.infra.resources.network import configured_subnet_ids
from hyperpod_kit.infra.resources.roles import role_logical_ids
from hyperpod_kit.model.mounts.base import Mount
from hyperpod_kit.preflight.mounts.shared_file_systems import FileSystemQuery


def file_system_part(settings: Settings, requested: FileSystemQuery, number: int) -> TemplatePart:
    """Return one file system with a mount target in each subnet and an access point for each mount that asks for
    one.

    Access points of homes and shares are not here: `users apply` makes these, and puts into the policy who
    may use them.
    """
    name = f"Efs{number}"
    system: dict[str, Any] = {
        "Encrypted": True,
        "PerformanceMode": "generalPurpose",
        "ThroughputMode": "elastic",
        "FileSystemTags": name_tags(f"{settings.cluster.name} {name}"),
    }
    policy = _file_system_policy(settings, requested.mounts)
    if policy is not None:
        system["FileSystemPolicy"] = policy
    resources: dict[str, Any] = {name: resource("AWS::EFS::FileSystem", system, **KEPT)}
    for index, _ in enumerate(configured_subnet_ids(settings), 1):
        resources[f"{name}Target{index}"] = resource(
            "AWS::EFS::MountTarget",
            {"FileSystemId": ref(name), "SubnetId": ref(f"Subnet{index}"), "SecurityGroups": [ref(STORAGE)]},
        )
    ids: dict[str, Any] = {}
    for mount, at in settings.sourced_mounts:
        if mount not in requested.mounts or at == HOMES_PATH:
            continue
        ids[f"{at}.file_system_id"] = ref(name)
        if mount.access_point_id not in (None, NO_ACCESS_POINT):
            point = f"{name}{logical_id_part(mount.name)}"
            resources[point] = resource("AWS::EFS::AccessPoint", _access_point_properties(settings, name, mount))
            ids[f"{at}.access_point_id"] = ref(point)
    if any(mount.owner is not None for mount in requested.mounts):
        ids["hyperpod_kit.homes.file_system_id"] = ref(name)
    paths = tuple(dict.fromkeys(path.rpartition(".")[0] for path in ids))
    return TemplatePart(f"EFS {requested.id}", paths, resources, {}, ids)


def ids_with_logical_ids(settings: Settings, requested: FileSystemQuery, number: int) -> Iterator[tuple[str, str]]:
    """Yield each id of the configuration with the logical id of the resource that takes its place in other
    resources."""
    yield requested.id, f"Efs{number}"
    for mount, at in settings.sourced_mounts:
        if mount in requested.mounts and at != HOMES_PATH and mount.access_point_id not in (None, NO_ACCESS_POINT):
            yield str(mount.access_point_id), f"Efs{number}{logical_id_part(mount.name)}"


def _access_point_properties(settings: Settings, file_system_logical_id: str, mount: Mount) -> dict[str, Any]:
    """Return the properties of an access point that acts as one user: the one that the last part of the mount's
    path names, or the only one of the configuration. Without such a user the directory is root's, and clients
    act as themselves."""
    last = mount.path.rpartition("/")[2]
    named = [user for user in settings.users if user.name == last] or list(settings.users)
    user = None
    if len(named) == 1:
        user = named[0]
    uid, gid, permissions = 0, 0, "0755"
    if user is not None:
        uid, gid, permissions = user.uid, user.gid, "0700"
    made: dict[str, Any] = {
        "FileSystemId": ref(file_system_logical_id),
        "RootDirectory": {
            "Path": f"/{mount.name}",
            "CreationInfo": {
                "OwnerUid": str(uid),
                "OwnerGid": str(gid),
                "Permissions": permissions,
            },
        },
        "AccessPointTags": name_tags(f"{settings.cluster.name} {mount.name}"),
    }
    if user is not None:
        made["PosixUser"] = {"Uid": str(uid), "Gid": str(gid)}
    return made


def _file_system_policy(settings: Settings, mounts: Sequence[Any]) -> Optional[dict[str, Any]]:
    """Return the policy with which the nodes' roles alone mount and write, with TLS, and through access points
    where all mounts have one.

    None where a mount shows no identity: any policy would shut it out, or let everybody in.
    """
    if not all(mount.iam for mount in mounts):
        return None
    homes = any(mount.owner is not None for mount in mounts)
    denied = {"NeedsTls": {"Bool": {"aws:SecureTransport": "false"}}}
    if all(mount.access_point_id is not None for mount in mounts):
        denied["NeedsAccessPoint"] = {"Null": {"elasticfilesystem:AccessPointArn": "true"}}
    statements: list[dict[str, Any]] = [
        {
            "Sid": f"{SID_PREFIX}{name}",
            "Effect": "Deny",
            "Principal": {"AWS": "*"},
            "Action": [MOUNT, WRITE, ROOT],
            "Condition": condition,
        }
        for name, condition in denied.items()
    ]
    if not homes:
        statements.insert(0, _allow_nodes_statement(settings))
    return {"Version": VERSION, "Statement": statements}


def _allow_nodes_statement(settings: Settings) -> dict[str, Any]:
    return {
        "Sid": "Nodes",
        "Effect": "Allow",
        "Principal": {"AWS": [get_att("Arn", name) for name in role_logical_ids(settings).values()]},
        "Action": [MOUNT, WRITE],
    }
