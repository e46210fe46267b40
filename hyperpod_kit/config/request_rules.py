"""What CreateCluster of the installed botocore would refuse, at the places of the configuration that it comes from.

The rules speak in the words of the configuration and know what belongs together; the service model knows every limit,
pattern and list of values of the API, and newer ones with every botocore.
"""

from __future__ import annotations

import itertools
import re
from difflib import get_close_matches
from typing import Any, Iterator

from hyperpod_kit.aws import regions, request_shape, service_contract
from hyperpod_kit.config.emit import build_create_cluster_request
from hyperpod_kit.config.fields.fields import fits_field_pattern_if_any
from hyperpod_kit.config.settings.findings import INFO, WARNING, Finding, is_key_path_at_or_inside
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.extras import requirements_install_command

AT = "hyperpod_kit.cluster"
CODE = "HPK-R004"
STRUCTURES = {"InstanceGroups": "instance_groups", "Orchestrator": "lifecycle_mode"}
"""Members of the request that no single key says -> the key that a person looks at."""


def find_create_cluster_refusals(settings: Settings) -> Iterator[Finding]:
    """Report every problem that botocore's model finds in the request; without botocore, that this was
    not checked."""
    # As long as the real one: a bundle's id has sixteen digits.
    source = f"s3://{settings.bundle.bucket}/{settings.bundle.prefix}{settings.cluster.name}/{'0' * 16}/"
    request = build_create_cluster_request(settings, source)
    try:
        problems = request_shape.find_request_problems("sagemaker", "CreateCluster", request)
    except ImportError:
        yield Finding(
            "HPK-R005",
            AT,
            "not checked: the limits, patterns and values of CreateCluster, for botocore is not installed",
            requirements_install_command("admin"),
            INFO,
        )
        return
    region = settings.cluster.region
    if fits_field_pattern_if_any(f"{AT}.region", region) and region not in regions.region_names():
        near = get_close_matches(region, regions.region_names(), 1, 0.8)
        nearest = ""
        if near:
            nearest = near[0]
        region_problem = request_shape.Problem(f"{AT}.region", "", newer=True, near=nearest)
        yield Finding(
            CODE, region_problem.path, f"botocore knows no region `{region}`", _remedy(region_problem), WARNING
        )
    for problem in problems:
        path = configuration_path_of(settings, request, problem.path)
        yield Finding(CODE, path, f"CreateCluster would refuse {problem}", _remedy(problem))


def _remedy(problem: request_shape.Problem) -> str:
    near = ""
    if problem.near:
        near = f"Did you mean `{problem.near}`? "
    if problem.newer:
        return f"{near}If AWS has it, this botocore is too old: pip install -U boto3"
    return "Correct the value"


def configuration_path_of(settings: Settings, request: dict[str, Any], request_path: str) -> str:
    """Return the configuration path that a field of the request comes from."""
    group = re.match(r"InstanceGroups\[(\d+)\]\.?", request_path)
    if group is None:
        top = re.split(r"[.\[]", request_path)[0]
        if top in settings.cluster.api:
            return f"{AT}.api.{request_path}"
        return _configuration_path_of_field(request_path, AT)
    index = int(group.group(1))
    at, rest = f"{AT}.instance_groups[{index}]", request_path[group.end() :]
    if re.split(r"[.\[]", rest)[0] in settings.cluster.groups[index].api:
        return f"{at}.api.{rest}"
    if rest.startswith("ExecutionRole") and settings.cluster.groups[index].execution_role is None:
        return f"{AT}.execution_role"
    if rest.startswith("LifeCycleConfig"):
        if not rest.endswith("SourceS3Uri"):
            return f"{AT}.lifecycle_mode"
        return "hyperpod_kit.bundle"
    storage = re.match(r"InstanceStorageConfigs\[(\d+)\]", rest)
    if storage is not None:
        entry = request["InstanceGroups"][index]["InstanceStorageConfigs"][int(storage.group(1))]
        if "EbsVolumeConfig" in entry:
            return _configuration_path_of_volume_key(entry, rest, at)
        return _configuration_path_of_mount(settings, entry, at)
    if rest.startswith("SlurmConfig"):
        return _configuration_path_of_partition(settings, settings.cluster.groups[index].name, at)
    return _configuration_path_of_field(request_path, at).replace("instance_groups[]", f"instance_groups[{index}]")


def _configuration_path_of_partition(settings: Settings, group: str, otherwise: str) -> str:
    """Return the path of a group's partition; `otherwise` where it is not written."""
    for index, worker in enumerate(settings.parameters.worker_groups):
        if worker.instance_group_name == group:
            return f"worker_groups[{index}].partition_name"
    return f"{otherwise}.name"


def _configuration_path_of_field(path: str, otherwise: str) -> str:
    """Return the key that says a field, or that all keys have in common which say what lies in it."""
    if path in STRUCTURES:
        return f"{AT}.{STRUCTURES[path]}"
    plain = re.sub(r"\[\d+\]", "[]", path)
    keys = [
        key.split(".")
        for field, key in service_contract.request_keys().items()
        if key.startswith(f"{AT}.")
        and (is_key_path_at_or_inside(field, plain) or is_key_path_at_or_inside(plain, field))
    ]
    if not keys:
        return otherwise
    common = ".".join(steps[0] for steps in itertools.takewhile(lambda steps: len(set(steps)) == 1, zip(*keys)))
    item = re.search(r"\[\d+\]$", path)
    if item is not None and plain.removesuffix("[]") in service_contract.request_keys():
        return common + item.group()
    return common


def _configuration_path_of_volume_key(entry: dict[str, Any], field: str, at: str) -> str:
    if entry["EbsVolumeConfig"].get("RootVolume"):
        return f"{at}.root_kms_key"
    if field.endswith("VolumeKmsKeyId"):
        return f"{at}.ebs_kms_key"
    return f"{at}.ebs_gib"


def _configuration_path_of_mount(settings: Settings, entry: dict[str, Any], otherwise: str) -> str:
    """Return the path of the mount that became this entry; `otherwise` without one."""
    mount_path = next(iter(entry.values()))["MountPath"]
    for mount, at in settings.sourced_mounts:
        if mount.path == mount_path and mount.traits.storage_config in entry:
            return at
    return otherwise
