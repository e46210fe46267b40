"""The EFS calls of home directories and of the preflight; errors are ours."""

from __future__ import annotations

import json
from typing import Any, Optional

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError


class Efs:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("efs", region, connections=connections)

    def file_system(self, file_system_id: str) -> dict[str, Any]:
        """Describe one file system: FileSystemArn and LifeCycleState above all."""
        with translate_aws_errors("DescribeFileSystems", file_system_id):
            return dict(self._client.describe_file_systems(FileSystemId=file_system_id)["FileSystems"][0])

    def mount_targets(self, file_system_id: str) -> list[dict[str, Any]]:
        """Every mount target of a file system, all pages; without its security groups."""
        with translate_aws_errors("DescribeMountTargets", file_system_id):
            pages = responses.paginate(self._client, "describe_mount_targets", FileSystemId=file_system_id)
            return [dict(target) for page in pages for target in page["MountTargets"]]

    def mount_target_security_group_ids(self, mount_target_id: str) -> list[str]:
        """List the security groups of one mount target."""
        with translate_aws_errors("DescribeMountTargetSecurityGroups", mount_target_id):
            response = self._client.describe_mount_target_security_groups(MountTargetId=mount_target_id)
            return list(response["SecurityGroups"])

    def access_point(self, access_point_id: str) -> Optional[dict[str, Any]]:
        """Describe one access point of any file system, None when there is no such one."""
        try:
            with translate_aws_errors("DescribeAccessPoints", access_point_id):
                matches = self._client.describe_access_points(AccessPointId=access_point_id)["AccessPoints"]
        except AwsError as err:
            if err.code == "AccessPointNotFound":
                return None
            raise
        if matches:
            return dict(matches[0])
        return None

    def access_points(self, file_system_id: str) -> list[dict[str, Any]]:
        """Describe every access point of a file system, all pages."""
        with translate_aws_errors("DescribeAccessPoints", file_system_id):
            pages = responses.paginate(self._client, "describe_access_points", FileSystemId=file_system_id)
            return [dict(point) for page in pages for point in page["AccessPoints"]]

    def create_or_find_access_point(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create an access point, or return the one that exists already for the ClientToken of this request.

        AWS remembers the ClientToken, so that of two admins at the same moment one creates it and both get it.
        """
        try:
            with translate_aws_errors("CreateAccessPoint", request["FileSystemId"]):
                return dict(self._client.create_access_point(**request))
        except AwsError as err:
            if err.code != "AccessPointAlreadyExists":
                raise
            for point in self.access_points(request["FileSystemId"]):
                if point.get("ClientToken") == request["ClientToken"]:
                    return point
            raise

    def policy(self, file_system_id: str) -> Optional[dict[str, Any]]:
        """The file system's own policy; None where AWS's default is in force, which lets everyone in."""
        try:
            with translate_aws_errors("DescribeFileSystemPolicy", file_system_id):
                response = self._client.describe_file_system_policy(FileSystemId=file_system_id)
        except AwsError as err:
            if err.code == "PolicyNotFound":
                return None
            raise
        return dict(json.loads(response["Policy"]))

    def put_policy(self, file_system_id: str, policy: str) -> None:
        """Replace the file system's policy. AWS refuses one that would lock the caller out of the next change."""
        with translate_aws_errors("PutFileSystemPolicy", file_system_id):
            self._client.put_file_system_policy(FileSystemId=file_system_id, Policy=policy)
