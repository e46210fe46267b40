"""Every combination of lifecycle mode, provisioning mode, strategy, recovery, network and storage."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.settings.findings import Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.config.validate import validate
from hyperpod_kit.model.states import LIFECYCLE_MODES

EXAMPLE = json.loads((Path(__file__).parents[3] / "provisioning_parameters.example.json").read_text())
URI = "s3://sagemaker-hyperpod-kit-demo/hyperpod-kit/demo/0123456789abcdef/"
DNS = "fs-0fedcba9876543210.fsx.us-east-1.amazonaws.com"
LUSTRE = {"kind": "lustre", "name": "fsx", "path": "/fsx", "dns_name": DNS, "mount_name": "abcdefgh"}
ZFS = {"kind": "openzfs", "name": "zfs", "path": "/home", "dns_name": DNS}
KEY = "1234abcd-12ab-34cd-56ef-1234567890ab"
STORAGE: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "none": ([], {}),
    "lustre": ([LUSTRE], {}),
    "openzfs": ([ZFS], {}),
    "volume": ([], {"ebs_gib": 500}),
    "encrypted": ([], {"ebs_gib": 500, "ebs_kms_key": KEY, "root_kms_key": KEY}),
    "all": ([LUSTRE, {**ZFS, "groups": ["worker-group"]}], {"ebs_gib": 1, "root_kms_key": KEY}),
}
"""name -> (mounts, volumes of the compute group)"""
AXES = {
    "mode": LIFECYCLE_MODES,
    "provisioning": (None, "Continuous"),
    "strategy": (None, "Merge", "Managed", "Overwrite"),
    "recovery": ("Automatic", "None"),
    "storage": tuple(STORAGE),
    "vpc": (True, False),
    "extras": (False, True),
}
COMBINATIONS = [dict(zip(AXES, values)) for values in itertools.product(*AXES.values())]


def settings_of(chosen: dict[str, Any]) -> tuple[Settings, list[Finding]]:
    values = json.loads(json.dumps(EXAMPLE))
    del values["fsx_dns_name"], values["fsx_mountname"]
    kit = values["hyperpod_kit"]
    kit["mounts"], volumes = json.loads(json.dumps(STORAGE[chosen["storage"]]))
    cluster = kit["cluster"]
    cluster.update(
        lifecycle_mode=chosen["mode"],
        node_provisioning_mode=chosen["provisioning"],
        slurm_config_strategy=chosen["strategy"],
        node_recovery=chosen["recovery"],
    )
    worker = cluster["instance_groups"][1]
    worker.update(volumes)
    if not chosen["vpc"]:
        del cluster["vpc"]
    if chosen["extras"]:
        values["login_group"] = "login"
        cluster["instance_groups"].append({"name": "login", "instance_type": "ml.c5.large", "count": 1})
        cluster.update(tags={"team": "größe"}, tiered_storage={"mode": "Disable"})
        worker.update(
            min_count=1,
            threads_per_core=1,
            execution_role="arn:aws:iam::111122223333:role/Other",
            deep_health_checks=["InstanceStress", "InstanceConnectivity"],
            training_plan_arn="arn:aws:sagemaker:us-east-1:111122223333:training-plan/mine",
            vpc={"security_group_ids": ["sg-0123456789abcdef1"], "subnet_ids": ["subnet-0123456789abcdef1"]},
            auto_patch={"strategy": "WhenIdle", "rollout": {"batch": "10%"}},
            network_interface="efa-only",
            capacity="OnDemand",
        )
        if chosen["provisioning"]:
            secret = "arn:aws:secretsmanager:us-east-1:111122223333:secret:db-a1b2c3"
            cluster["accounting_database"] = {"endpoint": "db.example.com", "secret_arn": secret, "port": 3306}
    settings, found = decode_settings(values)
    return settings, [*found, *validate(settings)]


def allowed(chosen: dict[str, Any]) -> bool:
    """What AWS's pages say goes together."""
    slurm_by_hyperpod = chosen["mode"] != "on_create"
    if chosen["provisioning"] and (not slurm_by_hyperpod or chosen["strategy"]):
        return False
    if chosen["strategy"] and not slurm_by_hyperpod:
        return False
    if chosen["strategy"] in ("Managed", "Overwrite") and chosen["mode"] == "on_init_complete":
        return False  # it would undo what our script adds
    return bool(chosen["vpc"]) or not STORAGE[chosen["storage"]][0]
