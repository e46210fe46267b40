"""The EFS calls that home directories need; errors are ours."""

from __future__ import annotations

import json
from typing import Any, Optional

from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError


class Efs:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None) -> None:
        self._client = client("efs", region)

    def file_system(self, file_system_id: str) -> dict[str, Any]:
        """The description of one file system: FileSystemArn and LifeCycleState above all."""
        with translated("DescribeFileSystems", file_system_id):
            return dict(self._client.describe_file_systems(FileSystemId=file_system_id)["FileSystems"][0])

    def access_points(self, file_system_id: str) -> list[dict[str, Any]]:
        """Every access point of a file system, all pages."""
        with translated("DescribeAccessPoints", file_system_id):
            pages = self._client.get_paginator("describe_access_points").paginate(FileSystemId=file_system_id)
            return [dict(point) for page in pages for point in page["AccessPoints"]]

    def create_access_point(self, request: dict[str, Any]) -> dict[str, Any]:
        """Create an access point; the one that is there when this very request was sent before.

        AWS remembers the ClientToken, so that of two admins at the same moment one creates it and both get it.
        """
        try:
            with translated("CreateAccessPoint", request["FileSystemId"]):
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
            with translated("DescribeFileSystemPolicy", file_system_id):
                answer = self._client.describe_file_system_policy(FileSystemId=file_system_id)
        except AwsError as err:
            if err.code == "PolicyNotFound":
                return None
            raise
        return dict(json.loads(answer["Policy"]))

    def put_policy(self, file_system_id: str, policy: str) -> None:
        """Replace the file system's policy. AWS refuses one that would lock the caller out of the next change."""
        with translated("PutFileSystemPolicy", file_system_id):
            self._client.put_file_system_policy(FileSystemId=file_system_id, Policy=policy)
