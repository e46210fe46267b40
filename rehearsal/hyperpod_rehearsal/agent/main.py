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
from hyperpod_rehearsal.agent.s3_client import S3ClientError, credentials_of, download_prefix, split_uri

CONFIG = "/etc/hyperpod-rehearsal/node.json"
STATUS = "/var/lib/hyperpod-rehearsal/agent.json"
LOG = "/var/log/hyperpod-rehearsal/lifecycle.log"
PROVISION_LOG = "/var/log/provision/provisioning.log"
ML_CONFIG = "/opt/ml/config"
STAGING = "/tmp"
TAIL_LINES = 20


class Failed(Exception):
    """The node cannot be created; the text becomes part of the cluster's FailureMessage."""


def report(state: str, message: str = "") -> None:
    """Tell the control plane, which reads this file, how far the node is: Pending, Running or Failed."""
    by_descriptor.make_directories(os.path.dirname(STATUS))
    content = json.dumps({"state": state, "message": message, "at": time.time()})
    atomic_file.replace(STATUS, content.encode())


def already_created() -> bool:
    """Whether an earlier boot of this instance has finished creating it."""
    try:
        with open(STATUS) as file:
            return bool(json.load(file)["state"] == "Running")
    except (OSError, ValueError, KeyError):
        return False


def tail(path: str, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, "" when there is none."""
    try:
        with open(path, errors="replace") as file:
            return "".join(file.readlines()[-lines:]).strip()
    except OSError:
        return ""


def last_words() -> str:
    """The end of what the script printed, and of the provisioning log what it did not print as well, through `tee`."""
    printed = set(tail(LOG, 50 * TAIL_LINES).splitlines())
    noted = [line for line in tail(PROVISION_LOG).splitlines() if line not in printed]
    return "\n".join([*tail(LOG).splitlines(), *noted])


def fetch(endpoint: str, uri: str, script: str) -> str:
    """Download the bundle to /tmp/<bucket>/<prefix>/ and return that directory. Raises Failed."""
    bucket, prefix = split_uri(uri)
    target = os.path.join(STAGING, bucket, prefix)
    by_descriptor.make_directories(target)
    try:
        count = download_prefix(credentials_of(os.environ), endpoint, uri, target)
    except S3ClientError as err:
        raise Failed(f"cannot download the lifecycle scripts from {uri}: {err}") from err
    if not os.path.isfile(os.path.join(target, script)):
        raise Failed(f"{script} was not found under {uri} ({count} objects there)")
    parameters = os.path.join(target, "provisioning_parameters.json")
    if os.path.isfile(parameters):
        by_descriptor.make_directories(ML_CONFIG)
        by_descriptor.copy_file(parameters, os.path.join(ML_CONFIG, "provisioning_parameters.json"))
    return target


def run_script(directory: str, script: str, timeout: float) -> None:
    """Run the entry script as root in its directory. Raises Failed when it does not exit 0 in time."""
    by_descriptor.set_mode(os.path.join(directory, script), 0o755)
    for log_file in (LOG, PROVISION_LOG):
        by_descriptor.make_directories(os.path.dirname(log_file))
    environment = dict(os.environ, HOME="/root", SAGEMAKER_RESOURCE_CONFIG_PATH=ML_CONFIG + "/resource_config.json")
    with by_descriptor.stream(LOG, "ab") as log:
        try:
            code = subprocess.run(
                ["/bin/bash", os.path.join(directory, script)],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            ).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"{script} did not end within {timeout:.0f} s\n{tail(LOG)}") from None
    if code != 0:
        raise Failed(f"{script} exited {code}; the end of its log:\n{last_words() or '(nothing)'}")


def create(config: Dict[str, Any]) -> None:
    """Do what the node's lifecycle configuration asks for. Raises Failed."""
    lifecycle = config.get("lifecycle") or {}
    if config.get("step_retry") and config.get("slurm_role"):
        try:
            step_retry.install(config["slurm_role"] == "Controller")
        except (OSError, subprocess.SubprocessError) as err:
            raise Failed(f"the plugin that retries steps was not installed: {err}") from err
    if lifecycle.get("OnCreate"):
        directory = fetch(config["endpoint"], lifecycle["SourceS3Uri"], lifecycle["OnCreate"])
        run_script(directory, lifecycle["OnCreate"], config["timeout"])
        return
    try:
        managed_storage.mount(config.get("storage") or [])
    except (OSError, subprocess.SubprocessError) as err:
        raise Failed(f"FSx was not mounted: {err}") from err
    if config.get("slurm_role"):
        try:
            managed_slurm.start(config["slurm_role"], config["controller_ip"])
        except subprocess.SubprocessError as err:
            raise Failed(f"Slurm did not start: {err}") from err
    if lifecycle.get("OnInitComplete"):
        directory = fetch(config["endpoint"], lifecycle["SourceS3Uri"], lifecycle["OnInitComplete"])
        run_script(directory, lifecycle["OnInitComplete"], config["timeout"])


def main(argv: List[str]) -> int:
    """Create this node once and report; exit code 1 when it failed."""
    with open(argv[0] if argv else CONFIG) as file:
        config = json.load(file)
    if already_created():
        report("Running")
        return 0
    report("Pending")
    try:
        create(config)
    except Failed as err:
        report("Failed", str(err))
        return 1
    except Exception as err:  # the control plane waits for a report, whatever happened here
        report("Failed", f"agent: {err!r}")
        raise
    report("Running")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
