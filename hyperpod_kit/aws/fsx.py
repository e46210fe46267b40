"""FSx file systems as they are, and the tasks that bring files of theirs to S3 and free their room; errors are ours."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError


class Fsx:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("fsx", region, connections=connections)

    def file_system(self, file_system_id: str) -> Optional[dict[str, Any]]:
        """Describe one file system, None when there is no such one."""
        try:
            with translate_aws_errors("DescribeFileSystems", file_system_id):
                systems = self._client.describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"]
        except AwsError as err:
            if err.code == "FileSystemNotFound":
                return None
            raise
        if systems:
            return dict(systems[0])
        return None

    def volume_paths(self, file_system_id: str) -> list[str]:
        """Return the paths of the volumes of an OpenZFS file system, `/fsx/data`, all pages."""
        with translate_aws_errors("DescribeVolumes", file_system_id):
            pages = responses.paginate(
                self._client, "describe_volumes", Filters=[{"Name": "file-system-id", "Values": [file_system_id]}]
            )
            volumes = [volume for page in pages for volume in page.get("Volumes", [])]
        return [volume["OpenZFSConfiguration"]["VolumePath"] for volume in volumes if "OpenZFSConfiguration" in volume]

    def data_repository_associations(self, file_system_id: str) -> list[dict[str, Any]]:
        """List which directories of a Lustre file system are linked to which prefixes of S3; it has at most eight."""
        with translate_aws_errors("DescribeDataRepositoryAssociations", file_system_id):
            response = self._client.describe_data_repository_associations(
                Filters=[{"Name": "file-system-id", "Values": [file_system_id]}]
            )
            return list(response["Associations"])

    def create_data_repository_task(
        self, file_system_id: str, kind: str, paths: Sequence[str], report_s3_path: str
    ) -> str:
        """Start a data repository task and return its id.

        `kind`: EXPORT_TO_REPOSITORY or RELEASE_DATA_FROM_FILESYSTEM; `paths`: 1 to 100, from the root of the file
        system; `report`: a prefix of S3 that is linked to it.

        Raises ValueError without a path, or with "/": FSx would take all files that there are.
        """
        if not paths or not all(path.strip("/.") for path in paths):
            raise ValueError(f"{kind} of {list(paths)!r} would be of the whole file system")
        more: dict[str, Any] = {}
        if kind == "RELEASE_DATA_FROM_FILESYSTEM":
            more = {"ReleaseConfiguration": {"DurationSinceLastAccess": {"Unit": "DAYS", "Value": 0}}}
        with translate_aws_errors("CreateDataRepositoryTask", file_system_id):
            made = self._client.create_data_repository_task(
                FileSystemId=file_system_id,
                Type=kind,
                Paths=list(paths),
                Report={
                    "Enabled": True,
                    "Path": report_s3_path,
                    "Format": "REPORT_CSV_20191124",
                    "Scope": "FAILED_FILES_ONLY",
                },
                **more,
            )
            return str(made["DataRepositoryTask"]["TaskId"])

    def describe_data_repository_task(self, task_id: str) -> dict[str, Any]:
        """Describe one data repository task."""
        with translate_aws_errors("DescribeDataRepositoryTasks", task_id):
            return dict(self._client.describe_data_repository_tasks(TaskIds=[task_id])["DataRepositoryTasks"][0])
