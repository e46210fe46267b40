"""The file that `hyperpod-kit init` writes: what flags, questions and AWS's own files say, nothing made up."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hyperpod_kit.config.decoding.decode import decode_settings
from hyperpod_kit.config.effective import render_yaml_marking_defaults
from hyperpod_kit.config.importing.legacy_scripts import LegacyScripts
from hyperpod_kit.config.reading.document import YAML
from hyperpod_kit.config.settings.findings import select_errors
from hyperpod_kit.config.starting.init_answers import CONTROLLER_TYPE, WORKER_TYPE, Answers, default_bucket
from hyperpod_kit.config.validate import validate
from hyperpod_kit.errors import Absent, UsageError
from hyperpod_kit.model.mounts.efs import EfsMount
from hyperpod_kit.model.mounts.mountpoint_s3 import S3Mount
from hyperpod_kit.model.states import LifecycleMode
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor

CONTROLLER, LOGIN, WORKERS, PARTITION = "controller-machine", "login-group", "worker-group", "train"
"""Names for what has none yet."""

HOME = "/home"


def copy_with_answers_and_defaults(base: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """Return a copy of `base` (of config/importing/from_aws.py, or empty) with these answers, and defaults where
    nothing is given."""
    data: dict[str, Any] = {"version": "1.0.0", "workload_manager": "slurm", **copy.deepcopy(base)}
    kit = data.pop("hyperpod_kit", {})
    cluster = kit.setdefault("cluster", {})
    for key, value in (
        ("name", answers.name),
        ("region", answers.region),
        ("lifecycle_mode", answers.lifecycle_mode),
        ("execution_role", answers.execution_role),
    ):
        if value is not None:
            cluster[key] = value
    cluster.setdefault("lifecycle_mode", LifecycleMode.ON_INIT_COMPLETE.value)
    if answers.continuous is not None:
        cluster.pop("node_provisioning_mode", None)
        if answers.continuous:
            cluster["node_provisioning_mode"] = "Continuous"
            cluster.pop("slurm_config_strategy", None)
    vpc = cluster.get("vpc", {})
    if answers.security_groups:
        vpc["security_group_ids"] = list(answers.security_groups)
    if answers.subnets:
        vpc["subnet_ids"] = list(answers.subnets)
    if vpc:
        cluster["vpc"] = vpc
    _fill_instance_groups(data, cluster, answers)
    bundle = kit.setdefault("bundle", {})
    if answers.bucket is not None:
        bundle["bucket"] = answers.bucket
    elif not str(bundle.get("bucket", "")).startswith("sagemaker-"):
        bundle["bucket"] = default_bucket(cluster.get("region", ""), cluster.get("execution_role", ""))
    _fill_storage(data, kit, answers)
    if answers.users or "users" not in kit:
        kit["users"] = [{"name": name, "uid": uid, "gid": uid} for name, uid in answers.users]
    data["hyperpod_kit"] = {"cluster": cluster, "bundle": bundle, **kit}
    return data


def add_legacy_scripts_users_and_steps(values: dict[str, Any], earlier: LegacyScripts) -> list[str]:
    """Put what is kept of earlier lifecycle scripts into a configuration; users that it names already stay as named.

    Returns what could not be put there, in words: a step that this cluster cannot have, a script that would fail.
    """
    kit = values["hyperpod_kit"]
    if earlier.scripts:
        kit["scripts"] = [*kit.get("scripts", ()), *earlier.scripts]
    kit["steps"] = {**earlier.steps, **kit.get("steps", {})}
    named = {user["name"] for user in kit.get("users", ())}
    kit["users"] = [*kit.get("users", ()), *(user for user in earlier.users if user["name"] not in named)]
    settings, _ = decode_settings(values)
    omitted = _remove_scripts_without_mount(kit, earlier, {mount.path for mount in settings.mounts})
    for finding in select_errors(validate(settings)):
        key = finding.path.partition("hyperpod_kit.steps.")[2].partition(".")[0]
        if key in earlier.steps and kit["steps"].pop(key, None) is not None:
            omitted.append(f"hyperpod_kit.steps.{key}: {finding.message}")
    if not kit["steps"]:
        del kit["steps"]
    return omitted


def _remove_scripts_without_mount(kit: dict[str, Any], earlier: LegacyScripts, mount_paths: set[str]) -> list[str]:
    """Remove each script that is of no use without its mount, and return why: AWS's own do not start it
    there either."""
    omitted = []
    for name, path in earlier.below.items():
        added = [script for script in kit.get("scripts", ()) if script in earlier.scripts and script["name"] == name]
        homes = ""
        if HOME in mount_paths and path != HOME:
            homes = HOME
        if not added or (path in mount_paths and not homes):
            continue
        kit["scripts"].remove(added[0])
        if homes:
            reason = f"homes lie on the mount at {homes}"
        else:
            reason = f"nothing is mounted at {path}"
        omitted.append(f"your script `{name}`: {reason}")
    return omitted


def _fill_instance_groups(data: dict[str, Any], cluster: dict[str, Any], answers: Answers) -> None:
    """Fill in the groups, one for each name when there are none, and the types and counts that are
    missing."""
    controller = data.setdefault("controller_group", CONTROLLER)
    if answers.login_type is not None:
        data.setdefault("login_group", LOGIN)
    login = data.get("login_group")
    workers = data.setdefault("worker_groups", [{"instance_group_name": WORKERS, "partition_name": PARTITION}])
    if "instance_groups" not in cluster:
        names = [controller, *([login] if login else []), *(worker["instance_group_name"] for worker in workers)]
        cluster["instance_groups"] = [{"name": name} for name in dict.fromkeys(names)]
    elif answers.login_type is not None and login not in {group["name"] for group in cluster["instance_groups"]}:
        cluster["instance_groups"].append({"name": login})
    for group in cluster["instance_groups"]:
        if group["name"] in (controller, login):
            chosen, usual, count = answers.controller_type, CONTROLLER_TYPE, 1
            if group["name"] == controller and data.get("slurm_configurations"):
                count = 2  # AWS's settings of several controllers, and the number that its pages show
            if group["name"] == login and answers.login_type is not None:
                chosen = answers.login_type
        else:
            chosen, usual, count = answers.worker_type, WORKER_TYPE, 1
            if answers.workers is not None:
                group["count"] = answers.workers
        if chosen is not None:
            group["instance_type"] = chosen
        for key, value in (("instance_type", usual), ("count", count)):
            if group.get(key) is None:
                group[key] = value


def _fill_storage(data: dict[str, Any], kit: dict[str, Any], answers: Answers) -> None:
    mounts = kit.setdefault("mounts", [])
    if answers.efs is not None:
        efs = {"kind": EfsMount.kind, "name": "home", "path": "/efs", "file_system_id": answers.efs, "tls": True}
        if answers.efs_access_point is not None:
            efs["access_point_id"] = answers.efs_access_point
        mounts.append(efs)
    if answers.data_bucket is not None:
        mounts.append(
            {"kind": S3Mount.kind, "name": "data", "path": "/mnt/data", "bucket": answers.data_bucket,
             "prefix": answers.data_prefix or "", "read_only": True}
        )  # fmt: skip
    for key, value in (("fsx_dns_name", answers.fsx_dns_name), ("fsx_mountname", answers.fsx_mountname)):
        if value is not None:
            data[key] = value
    if answers.homes is not None:
        kit["homes"] = {"file_system_id": answers.homes}


def write_configuration(path: Path, data: dict[str, Any], *, force: bool) -> None:
    """Write the file, whole or not at all. Raises UsageError when it exists and `force` is not given."""
    if path.suffix.lower() in YAML:
        text = render_yaml_marking_defaults(data, set())
    else:
        text = json.dumps(data, indent=2) + "\n"
    try:
        if force:
            atomic_file.write_atomically(path, text.encode())
        else:
            # Unlike a look before, this fails if somebody else was faster. No link: not every file system has them.
            with by_descriptor.open_stream_for_writing(path, "x", encoding="utf-8") as file:
                try:
                    file.write(text)
                    file.flush()
                except BaseException:
                    by_descriptor.unlink(path, missing_ok=True)
                    raise
    except FileExistsError:
        raise file_exists_error(path) from None
    except FileNotFoundError:
        raise Absent(f"cannot write {path}: {path.parent} is not there", hint=f"mkdir -p {path.parent}") from None
    except (OSError, ValueError) as err:
        raise UsageError(f"cannot write {path}: {getattr(err, 'strerror', None) or err}") from err


def file_exists_error(path: Path) -> UsageError:
    """Return the error for a file that exists already."""
    return UsageError(f"{path} exists", hint=f"hyperpod-kit validate {path}, or --force to write over it")
