"""S3 Files: file systems, mount targets and access points; read-only calls, errors are ours."""

from __future__ import annotations

from typing import Any, Optional

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import NOT_FOUND, translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError


class S3Files:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("s3files", region, connections=connections)

    def file_system(self, file_system_id: str) -> Optional[dict[str, Any]]:
        """The description of one file system, None when there is no such one."""
        try:
            with translate_aws_errors("GetFileSystem", file_system_id):
                return dict(self._client.get_file_system(fileSystemId=file_system_id))
        except AwsError as err:
            if err.code in NOT_FOUND:
                return None
            raise

    def mount_targets(self, file_system_id: str) -> list[dict[str, Any]]:
        """Every mount target, all pages; without its security groups."""
        with translate_aws_errors("ListMountTargets", file_system_id):
            pages = responses.paginate(self._client, "list_mount_targets", fileSystemId=file_system_id)
            return [dict(target) for page in pages for target in page["mountTargets"]]

    def mount_target_security_group_ids(self, mount_target_id: str) -> list[str]:
        """List the security groups of one mount target."""
        with translate_aws_errors("GetMountTarget", mount_target_id):
            return list(self._client.get_mount_target(mountTargetId=mount_target_id).get("securityGroups", []))

    def access_point(self, access_point_id: str) -> Optional[dict[str, Any]]:
        """The description of one access point, None when there is no such one."""
        try:
            with translate_aws_errors("GetAccessPoint", access_point_id):
                return dict(self._client.get_access_point(accessPointId=access_point_id))
        except AwsError as err:
            if err.code in NOT_FOUND:
                return None
            raise
