"""FSx file systems as they are: read-only calls; errors are ours."""

from __future__ import annotations

from typing import Any, Optional

from hyperpod_kit.aws import answers
from hyperpod_kit.aws.errors import translated
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError


class Fsx:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("fsx", region, connections=connections)

    def file_system(self, file_system_id: str) -> Optional[dict[str, Any]]:
        """The description of one file system, None when there is no such one."""
        try:
            with translated("DescribeFileSystems", file_system_id):
                found = self._client.describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"]
        except AwsError as err:
            if err.code == "FileSystemNotFound":
                return None
            raise
        return dict(found[0]) if found else None

    def volume_paths(self, file_system_id: str) -> list[str]:
        """Paths of the volumes of an OpenZFS file system, `/fsx/data`, all pages."""
        with translated("DescribeVolumes", file_system_id):
            pages = answers.paginate(
                self._client, "describe_volumes", Filters=[{"Name": "file-system-id", "Values": [file_system_id]}]
            )
            volumes = [volume for page in pages for volume in page.get("Volumes", [])]
        return [volume["OpenZFSConfiguration"]["VolumePath"] for volume in volumes if "OpenZFSConfiguration" in volume]
