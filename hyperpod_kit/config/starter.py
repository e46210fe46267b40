"""The file that `hyperpod-kit init` writes: the example's shape with the values of one's own account."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from hyperpod_kit.errors import UsageError


@dataclass(frozen=True)
class Answers:
    """What the flags of `init` say. Mounts that nobody asked for are left out."""

    name: str
    region: str
    execution_role: str
    security_groups: tuple[str, ...]
    subnets: tuple[str, ...]
    bucket: Optional[str] = None
    lifecycle_mode: str = "on_init_complete"
    controller_type: str = "ml.c5.xlarge"
    worker_type: str = "ml.p5.48xlarge"
    workers: int = 1
    efs: Optional[str] = None
    efs_access_point: Optional[str] = None
    data_bucket: Optional[str] = None
    data_prefix: str = ""
    fsx_dns_name: Optional[str] = None
    fsx_mountname: Optional[str] = None
    users: tuple[tuple[str, int], ...] = ()
    homes: Optional[str] = None


def default_bucket(region: str, execution_role: str) -> str:
    """SageMaker's own default bucket of the account that the role belongs to."""
    parts = execution_role.split(":")
    return f"sagemaker-{region}-{parts[4]}" if len(parts) > 4 else f"sagemaker-{region}"


def fill(example: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """The example with these answers in it. Does not change `example`."""
    data = copy.deepcopy(example)
    kit = data["hyperpod_kit"]
    kit["cluster"] |= {
        "name": answers.name,
        "region": answers.region,
        "lifecycle_mode": answers.lifecycle_mode,
        "execution_role": answers.execution_role,
        "vpc": {"security_group_ids": list(answers.security_groups), "subnet_ids": list(answers.subnets)},
    }
    controller, workers = kit["cluster"]["instance_groups"]
    controller["instance_type"] = answers.controller_type
    workers |= {"instance_type": answers.worker_type, "count": answers.workers}
    kit["bundle"]["bucket"] = answers.bucket or default_bucket(answers.region, answers.execution_role)
    efs, s3 = kit["mounts"]
    kit["mounts"] = []
    if answers.efs:
        efs["file_system_id"] = answers.efs
        efs["path"] = "/efs"
        efs.pop("access_point_id")
        if answers.efs_access_point:
            efs["access_point_id"] = answers.efs_access_point
        kit["mounts"].append(efs)
    if answers.data_bucket:
        s3 |= {"bucket": answers.data_bucket, "prefix": answers.data_prefix}
        kit["mounts"].append(s3)
    for key, value in (("fsx_dns_name", answers.fsx_dns_name), ("fsx_mountname", answers.fsx_mountname)):
        data.pop(key)
        if value:
            data[key] = value
    kit["users"] = [{"name": name, "uid": uid, "gid": uid} for name, uid in answers.users]
    if answers.homes:
        kit["homes"] = {"file_system_id": answers.homes}
    data["hyperpod_kit"] = data.pop("hyperpod_kit")
    return data


def write(path: Path, data: dict[str, Any], *, force: bool) -> None:
    """Write the file. Raises UsageError when it exists and `force` is not given."""
    text = json.dumps(data, indent=2) + "\n"
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists", hint=f"hyperpod-kit validate {path}, or --force to write over it") from None
    except OSError as err:
        raise UsageError(f"cannot write {path}: {err.strerror}") from err
