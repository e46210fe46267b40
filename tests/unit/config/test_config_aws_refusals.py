"""Each validation error that AWS's pages list for Slurm clusters: found offline, or impossible to write.

Source: "Getting started with SageMaker HyperPod using the AWS CLI" and "Migrating to API-driven Slurm configuration".
docs/configuration.md has the same table for people.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Callable

import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.emit import build_create_cluster_request
from hyperpod_kit.config.load import check, load
from hyperpod_kit.config.settings.findings import ERROR, WARNING
from hyperpod_kit.config.validate import validate
from hyperpod_kit.model.states import LIFECYCLE_MODES

ROOT = Path(__file__).parents[3]
EXAMPLE = json.loads((ROOT / "provisioning_parameters.example.json").read_text())
PAGE = (ROOT / "docs/configuration.md").read_text()
C = "hyperpod_kit.cluster"
DNS = "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"


def example(mode: str = "on_init_complete") -> dict[str, Any]:
    values = copy.deepcopy(EXAMPLE)
    values["hyperpod_kit"]["cluster"]["lifecycle_mode"] = mode
    return values


def no_controller(values: dict[str, Any]) -> None:
    values["controller_group"] = "controler-machine"


def two_controllers(values: dict[str, Any]) -> None:
    groups = values["hyperpod_kit"]["cluster"]["instance_groups"]
    groups.append(dict(groups[0]))


def two_controller_nodes(values: dict[str, Any]) -> None:
    values["hyperpod_kit"]["cluster"]["instance_groups"][0]["count"] = 2


def partition_of_the_controller(values: dict[str, Any]) -> None:
    values["worker_groups"].append({"instance_group_name": "controller-machine", "partition_name": "train"})


def fsx_without_a_vpc(values: dict[str, Any]) -> None:
    values["hyperpod_kit"]["mounts"] = []
    del values["hyperpod_kit"]["cluster"]["vpc"]


def zfs_without_a_vpc(values: dict[str, Any]) -> None:
    fsx_without_a_vpc(values)
    del values["fsx_dns_name"], values["fsx_mountname"]
    values["fsx_openzfs_dns_name"] = DNS


def both_hooks(values: dict[str, Any]) -> None:
    group = values["hyperpod_kit"]["cluster"]["instance_groups"][1]
    group["api"] = {"LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x/", "OnCreate": "a", "OnInitComplete": "b"}}


def no_source(values: dict[str, Any]) -> None:
    del values["hyperpod_kit"]["bundle"]


def empty_source(values: dict[str, Any]) -> None:
    values["hyperpod_kit"]["bundle"]["bucket"] = ""


def an_old_image(values: dict[str, Any]) -> None:
    values["hyperpod_kit"]["cluster"]["instance_groups"][1]["api"] = {"ImageId": "ami-0123456789abcdef0"}


def managed(values: dict[str, Any]) -> None:
    values["hyperpod_kit"]["cluster"]["slurm_config_strategy"] = "Managed"


def legacy_settings(values: dict[str, Any]) -> None:
    values["slurm_configurations"] = {"slurm_database_endpoint": "db.example.com"}


def strategy_of_a_continuous_cluster(values: dict[str, Any]) -> None:
    values["hyperpod_kit"]["cluster"].update(node_provisioning_mode="Continuous", slurm_config_strategy="Merge")


def worker_as_a_role(values: dict[str, Any]) -> None:
    values["hyperpod_kit"]["cluster"]["instance_groups"][1]["api"] = {"SlurmConfig": {"NodeType": "Worker"}}


TABLE: list[tuple[str, Callable[[dict[str, Any]], None], str, str, str]] = [
    ("has no InstanceGroup with Controller node type", no_controller, "HPK-G001", "controller_group", ERROR),
    ("Controller Groups found", two_controllers, "HPK-G002", f"{C}.instance_groups[2].name", ERROR),
    ("exactly one InstanceGroup with Controller node type", two_controller_nodes, "HPK-G020",
     f"{C}.instance_groups[0].count", ERROR),
    ("Partitions can only be assigned to Compute node types", partition_of_the_controller, "HPK-G012",
     "worker_groups[1].instance_group_name", ERROR),
    ("FSx configurations are only supported for Custom VPC", fsx_without_a_vpc, "HPK-K006", f"{C}.vpc", ERROR),
    ("FSx configurations are only supported for Custom VPC", zfs_without_a_vpc, "HPK-K006", f"{C}.vpc", ERROR),
    ("OnCreate and OnInitComplete in LifeCycleConfig are mutually exclusive", both_hooks, "HPK-R001",
     f"{C}.instance_groups[1].api.LifeCycleConfig", ERROR),
    ("LifeCycleConfig for instance group is incomplete", no_source, "HPK-C002", "hyperpod_kit.bundle", ERROR),
    ("is provided but contains no configuration", empty_source, "HPK-B001", "hyperpod_kit.bundle.bucket", ERROR),
    ("LifeCycleConfig is optional but requires a compatible AMI", an_old_image, "HPK-R003",
     f"{C}.instance_groups[1].api.ImageId", WARNING),
    ("Update required to use SlurmConfig in InstanceGroups", an_old_image, "HPK-R003",
     f"{C}.instance_groups[1].api.ImageId", WARNING),
    ("cannot include both a SLURM Orchestrator Config and a provisioning_parameters.json", legacy_settings, "HPK-L007",
     "slurm_configurations", WARNING),
    ("Configuration drift detected", managed, "HPK-L006", f"{C}.slurm_config_strategy", ERROR),
    ("Partition configuration drift detected", managed, "HPK-L006", f"{C}.slurm_config_strategy", ERROR),
    ("Continuous", strategy_of_a_continuous_cluster, "HPK-L010", f"{C}.slurm_config_strategy", ERROR),
    ("Worker", worker_as_a_role, "HPK-R001", f"{C}.instance_groups[1].api.SlurmConfig", ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("said_by_aws", "change", "code", "path", "severity"), TABLE)
def test_what_aws_would_say_is_said_before_any_call(
    said_by_aws: str, change: Callable[[dict[str, Any]], None], code: str, path: str, severity: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    values = example()
    decoded, found = decode_settings(values)
    assert [*found, *validate(decoded)] == []
    change(values)
    # Nothing may be asked: there is nobody to ask, and no credentials to ask with.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    file = tmp_path / "c.json"
    file.write_text(json.dumps(values, indent=2))
    findings = {(finding.code, finding.path): finding for finding in check(file).findings}
    assert findings[code, path].severity == severity
    assert findings[code, path].line > 1 and findings[code, path].hint
    assert f"`{code}`" in PAGE and said_by_aws in PAGE


@pytest.mark.parametrize("mode", LIFECYCLE_MODES)
def test_a_lifecycle_config_is_whole_and_the_legacy_file_never_beside_slurm_config(mode: str, tmp_path: Path) -> None:
    """Incomplete, empty or double LifeCycleConfigs cannot be written at all."""
    values = example(mode)
    if mode == "ami_only":
        values["hyperpod_kit"]["mounts"] = []
    file = tmp_path / "c.json"
    file.write_text(json.dumps(values))
    settings = load(file)
    bundle = render(settings) if settings.entry_script else None
    request = build_create_cluster_request(settings, bundle.source_s3_uri if bundle else "")
    for group in request["InstanceGroups"]:
        hooks = set(group.get("LifeCycleConfig", {})) - {"SourceS3Uri"}
        assert len(hooks) == (mode != "ami_only") and ("SlurmConfig" in group) == (mode != "on_create")
        if bundle is not None:
            assert group["LifeCycleConfig"][hooks.pop()] in bundle.files
    assert bundle is None or ("provisioning_parameters.json" in bundle.files) == (mode == "on_create")
