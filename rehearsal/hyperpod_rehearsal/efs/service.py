"""Access points and policies of the rehearsal's EFS file systems. They outlive clusters, as EFS does.

State is registry.json of the directory, which mount.efs reads in the nodes: a change counts from the next mount on.
"""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path
from typing import Any, Callable, Mapping

from hyperpod_rehearsal.records import state
from hyperpod_rehearsal.standins import file_system_policy

OWNER = file_system_policy.ARN.rpartition(":")[2]
PAGE = 100
POLICY_LIMIT = 20_000
CREATED = 1_767_225_600.0

Operation = Callable[[Mapping[str, Any]], dict[str, Any]]


class EfsError(Exception):
    """An error answer. `code` as in the service model; `more`: further members of the answer."""

    def __init__(self, status: int, code: str, message: str, **more: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message, self.more = status, code, message, more


class EfsService:
    """`directory` holds registry.json. Methods may be called from many threads at once."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "registry.json"
        self._lock = threading.Lock()
        self._operations: dict[str, Operation] = {
            "CreateAccessPoint": self._create_access_point,
            "DescribeAccessPoints": self._describe_access_points,
            "DeleteAccessPoint": self._delete_access_point,
            "DescribeFileSystems": self._describe_file_systems,
            "DescribeFileSystemPolicy": self._describe_policy,
            "PutFileSystemPolicy": self._put_policy,
            "DeleteFileSystemPolicy": self._delete_policy,
        }

    def execute_operation(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Execute an operation whose request has passed the service model and return its response. Raises EfsError."""
        with self._lock:
            return self._operations[operation](request)

    def _read_registry(self) -> dict[str, Any]:
        return {"access_points": {}, "policies": {}, **(state.read_own_json_object_or_none(self._path) or {})}

    def _write_registry(self, registry: Mapping[str, Any]) -> None:
        state.write_json(self._path, registry, 0o644)

    def _registry_for_existing_file_system(self, file_system: str) -> dict[str, Any]:
        """Return the registry. Raises EfsError when the file system is not in it."""
        registry = self._read_registry()
        if file_system not in registry["file_systems"]:
            raise EfsError(404, "FileSystemNotFound", f"File system '{file_system}' does not exist.")
        return registry

    def _create_access_point(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registry = self._registry_for_existing_file_system(request["FileSystemId"])
        for name, point in registry["access_points"].items():
            if point.get("ClientToken") == request["ClientToken"]:
                raise EfsError(
                    409,
                    "AccessPointAlreadyExists",
                    f"Access point {name} has this client token already",
                    AccessPointId=name,
                )
        name = f"fsap-{secrets.token_hex(9)[:17]}"
        registry["access_points"][name] = {"RootDirectory": {"Path": "/"}, **request}
        self._write_registry(registry)
        return _describe_access_point(name, registry["access_points"][name])

    def _describe_access_points(self, request: Mapping[str, Any]) -> dict[str, Any]:
        points = self._read_registry()["access_points"]
        requested = request.get("AccessPointId")
        if requested is not None and requested not in points:
            raise EfsError(404, "AccessPointNotFound", f"Access point {requested} does not exist.")
        if "FileSystemId" in request:
            self._registry_for_existing_file_system(request["FileSystemId"])
        names = [
            name
            for name in sorted(points)
            if requested in (None, name) and request.get("FileSystemId") in (None, points[name]["FileSystemId"])
        ]
        start = int(request.get("NextToken") or 0)
        end = start + request.get("MaxResults", PAGE)
        response: dict[str, Any] = {
            "AccessPoints": [_describe_access_point(name, points[name]) for name in names[start:end]]
        }
        if end < len(names):
            return {**response, "NextToken": str(end)}
        return response

    def _delete_access_point(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registry = self._read_registry()
        if registry["access_points"].pop(request["AccessPointId"], None) is None:
            raise EfsError(404, "AccessPointNotFound", f"Access point {request['AccessPointId']} does not exist.")
        self._write_registry(registry)
        return {}

    def _describe_file_systems(self, request: Mapping[str, Any]) -> dict[str, Any]:
        requested = request.get("FileSystemId")
        if requested:
            registry = self._registry_for_existing_file_system(requested)
        else:
            registry = self._read_registry()
        return {
            "FileSystems": [
                {
                    "OwnerId": OWNER,
                    "CreationToken": name,
                    "FileSystemId": name,
                    "CreationTime": CREATED,
                    "FileSystemArn": f"{file_system_policy.ARN}:file-system/{name}",
                    "LifeCycleState": "available",
                    "NumberOfMountTargets": 1,
                    "SizeInBytes": {"Value": 0},
                    "PerformanceMode": "generalPurpose",
                    "Encrypted": True,
                    "Tags": [],
                }
                for name in registry["file_systems"]
                if requested in (None, name)
            ]
        }

    def _describe_policy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = request["FileSystemId"]
        policy = self._registry_for_existing_file_system(name)["policies"].get(name)
        if policy is None:
            raise EfsError(404, "PolicyNotFound", f"File system {name} has no policy: EFS's default is in force.")
        return {"FileSystemId": name, "Policy": json.dumps(policy)}

    def _put_policy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registry = self._registry_for_existing_file_system(request["FileSystemId"])
        try:
            policy = json.loads(request["Policy"])
            file_system_policy.require_supported_policy(policy)
        except (ValueError, AttributeError, TypeError) as err:
            raise EfsError(400, "InvalidPolicyException", str(err)) from None
        if len(request["Policy"]) > POLICY_LIMIT:
            raise EfsError(400, "InvalidPolicyException", f"longer than {POLICY_LIMIT} characters")
        registry["policies"][request["FileSystemId"]] = policy
        self._write_registry(registry)
        return {"FileSystemId": request["FileSystemId"], "Policy": request["Policy"]}

    def _delete_policy(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registry = self._registry_for_existing_file_system(request["FileSystemId"])
        registry["policies"].pop(request["FileSystemId"], None)
        self._write_registry(registry)
        return {}


def _describe_access_point(access_point_id: str, point: Mapping[str, Any]) -> dict[str, Any]:
    named = next((tag["Value"] for tag in point.get("Tags", []) if tag["Key"] == "Name"), None)
    return {
        **point,
        **({"Name": named} if named else {}),
        "AccessPointId": access_point_id,
        "OwnerId": OWNER,
        "AccessPointArn": f"{file_system_policy.ARN}:access-point/{access_point_id}",
        "LifeCycleState": "available",
    }
