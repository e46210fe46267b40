"""The agent's one run at creation: fetch the bundle, set up what the mode asks for, run the entry script, report.

At a reboot it runs nothing again, as HyperPod's does: whatever must last is an enabled unit of the bundle's own.
Standard library only, Python 3.8: this file runs in a node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List

from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.agent import managed_slurm, managed_storage, step_retry
from hyperpod_rehearsal.agent.s3_client import S3ClientError, access_key_from_environment, download_prefix, split_uri

CONFIG = "/etc/hyperpod-rehearsal/node.json"
STATUS = "/var/lib/hyperpod-rehearsal/agent.json"
LOG = "/var/log/hyperpod-rehearsal/lifecycle.log"
PROVISION_LOG = "/var/log/provision/provisioning.log"
ML_CONFIG = "/opt/ml/config"
STAGING = "/tmp"
TAIL_LINES = 20


class Failed(Exception):
    """The node cannot be created; the text becomes part of the cluster's FailureMessage."""


def write_status(state: str, message: str = "") -> None:
    """Write the node's state (Pending, Running or Failed) to the status file that the control plane reads."""
    by_descriptor.make_directories(os.path.dirname(STATUS))
    content = json.dumps({"state": state, "message": message, "at": time.time()})
    atomic_file.write_atomically(STATUS, content.encode())


def is_already_created() -> bool:
    """Whether an earlier boot of this instance has finished creating it."""
    try:
        with open(STATUS) as file:
            return bool(json.load(file)["state"] == "Running")
    except (OSError, ValueError, KeyError):
        return False


def read_log_tail(path: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, "" when there is none."""
    try:
        with open(path, errors="replace") as file:
            return "".join(file.readlines()[-lines:]).strip()
    except OSError:
        return ""


def read_tails_of_script_and_provisioning_logs() -> str:
    """Return the last lines of the script's log, followed by those of the provisioning log that are not in it."""
    printed = set(read_log_tail(LOG, 50 * TAIL_LINES).splitlines())
    noted = [line for line in read_log_tail(PROVISION_LOG).splitlines() if line not in printed]
    return "\n".join([*read_log_tail(LOG).splitlines(), *noted])


def download_scripts_and_install_provisioning_parameters(endpoint: str, uri: str, entry_script: str) -> str:
    """Download the bundle to /tmp/<bucket>/<prefix>/ and return that directory. Raises Failed."""
    bucket, prefix = split_uri(uri)
    target = os.path.join(STAGING, bucket, prefix)
    by_descriptor.make_directories(target)
    try:
        count = download_prefix(access_key_from_environment(os.environ), endpoint, uri, target)
    except S3ClientError as err:
        raise Failed(f"cannot download the lifecycle scripts from {uri}: {err}") from err
    if not os.path.isfile(os.path.join(target, entry_script)):
        raise Failed(f"{entry_script} was not found under {uri} ({count} objects there)")
    parameters = os.path.join(target, "provisioning_parameters.json")
    if os.path.isfile(parameters):
        by_descriptor.make_directories(ML_CONFIG)
        by_descriptor.copy_file(parameters, os.path.join(ML_CONFIG, "provisioning_parameters.json"))
    return target


def run_lifecycle_script(directory: str, entry_script: str, timeout: float) -> None:
    """Run the entry script as root in its directory. Raises Failed when it does not exit 0 in time."""
    by_descriptor.set_mode(os.path.join(directory, entry_script), 0o755)
    for log_file in (LOG, PROVISION_LOG):
        by_descriptor.make_directories(os.path.dirname(log_file))
    environment = dict(os.environ, HOME="/root", SAGEMAKER_RESOURCE_CONFIG_PATH=ML_CONFIG + "/resource_config.json")
    with by_descriptor.open_stream_for_writing(LOG, "ab") as log:
        try:
            code = subprocess.run(
                ["/bin/bash", os.path.join(directory, entry_script)],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            ).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"{entry_script} did not end within {timeout:.0f} s\n{read_log_tail(LOG)}") from None
    if code != 0:
        raise Failed(
            f"{entry_script} exited {code}; the end of its "
            f"log:\n{read_tails_of_script_and_provisioning_logs() or '(nothing)'}"
        )


def provision_this_node(config: Dict[str, Any]) -> None:
    """Do what the node's lifecycle configuration asks for. Raises Failed."""
    lifecycle = config.get("lifecycle") or {}
    if config.get("step_retry") and config.get("slurm_role"):
        try:
            step_retry.compile_retry_plugin_and_set_up_controller(config["slurm_role"] == "Controller")
        except (OSError, subprocess.SubprocessError) as err:
            raise Failed(f"the plugin that retries steps was not installed: {err}") from err
    if lifecycle.get("OnCreate"):
        directory = download_scripts_and_install_provisioning_parameters(
            config["endpoint"], lifecycle["SourceS3Uri"], lifecycle["OnCreate"]
        )
        run_lifecycle_script(directory, lifecycle["OnCreate"], config["timeout"])
        return
    try:
        managed_storage.mount_fsx_and_record_in_fstab(config.get("storage") or [])
    except (OSError, subprocess.SubprocessError) as err:
        raise Failed(f"FSx was not mounted: {err}") from err
    if config.get("slurm_role"):
        try:
            managed_slurm.start_slurm_daemons(config["slurm_role"], config["controller_ip"])
        except subprocess.SubprocessError as err:
            raise Failed(f"Slurm did not start: {err}") from err
    if lifecycle.get("OnInitComplete"):
        directory = download_scripts_and_install_provisioning_parameters(
            config["endpoint"], lifecycle["SourceS3Uri"], lifecycle["OnInitComplete"]
        )
        run_lifecycle_script(directory, lifecycle["OnInitComplete"], config["timeout"])


def main(argv: List[str]) -> int:
    """Create this node once and report; exit code 1 when it failed."""
    with open(argv[0] if argv else CONFIG) as file:
        config = json.load(file)
    if is_already_created():
        write_status("Running")
        return 0
    write_status("Pending")
    try:
        provision_this_node(config)
    except Failed as err:
        write_status("Failed", str(err))
        return 1
    except Exception as err:  # the control plane waits for a report, whatever happened here
        write_status("Failed", f"agent: {err!r}")
        raise
    write_status("Running")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
