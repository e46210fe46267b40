"""The directory laid over the node image: the agent and its unit, and the stand-ins of AWS's mount programs.

Kept apart from the image so that a newer hyperpod-kit needs no new image. What a team's own AMI has besides comes in
here too (`rehearse up --tree`), so that a node which takes another's place has it as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import hyperpod_kit
import hyperpod_rehearsal
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_rehearsal.agent.config_agent import RENDERED
from hyperpod_rehearsal.machines.image_root import put
from hyperpod_rehearsal.records.profiles import STOCK, Profile

AGENT_DIRECTORY = "/usr/lib/hyperpod-kit-rehearsal/agent"
AGENT_UNIT = f"""\
[Unit]
Description=Rehearsal of HyperPod's agent: fetch the lifecycle scripts and run them once
Wants=network-online.target
After=network-online.target ssh.service dbus.service systemd-user-sessions.service

[Service]
Type=exec
# What a script leaves running belongs to this unit, as on a real node, and must outlive the agent's own run.
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I -S {AGENT_DIRECTORY}

[Install]
WantedBy=multi-user.target
"""


def _agent_unit(description: str, command: str, name: str, condition: str = "") -> str:
    """Return the unit of a program of the platform that runs for as long as its node. `condition`: a line of [Unit]."""
    return f"""\
[Unit]
Description=Rehearsal of HyperPod's {description}
{condition}After=network-online.target munge.service

[Service]
ExecStart=/usr/bin/python3 -u -I -S {command}
StandardOutput=append:/var/log/aws/clusters/sagemaker-{name}.log
StandardError=inherit
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""


CLUSTER_AGENT_UNIT = _agent_unit(
    "cluster agent: diagnoses and exchanges the nodes of a job whose step failed",
    "/usr/lib/hyperpod-kit-rehearsal cluster-agent",
    "cluster-agent",
)
CONFIG_AGENT, HANG_AGENT = "sagemaker-config-agent.service", "sagemaker-hang-agent.service"
CONFIG_AGENT_UNIT = _agent_unit(
    "agent of Slurm's configuration: topology files, and slurm.conf rewritten",
    f"{AGENT_DIRECTORY} config-agent",
    "config-agent",
    f"ConditionPathExists={RENDERED}\n",
)
HANG_AGENT_UNIT = _agent_unit(
    "hung job detection", f"{AGENT_DIRECTORY} hang-agent", "hang-agent", f"ConditionPathExists=!{RENDERED}\n"
)
START = """\
import sys
from importlib import import_module

module, arguments = "main", sys.argv[1:]
if arguments[:1] in (["config-agent"], ["hang-agent"]):
    module, arguments = arguments[0].replace("-", "_"), arguments[1:]
sys.exit(import_module(f"hyperpod_rehearsal.agent.{module}").main(arguments))
"""


def write_agent_and_standins_into_layer(layer: Path, profile: Profile = STOCK) -> None:
    """Write the agent, its units and the stand-ins into an empty directory, and what the profile has besides. Raises
    OSError."""
    from hyperpod_rehearsal.standins.install import install_standins

    by_descriptor.make_directories(layer, shared=True)
    by_descriptor.set_mode(layer, 0o755)
    package = Path(hyperpod_rehearsal.__file__).parent
    kit = Path(hyperpod_kit.__file__).parent
    for source in [
        package / "__init__.py",
        *sorted((package / "agent").glob("*.py")),
        package / "standins/__init__.py",
        package / "standins/mountpoint_s3/sigv4.py",
        kit / "__init__.py",
        *(kit / name for name in ("errors.py", "exit_codes.py", "system/__init__.py", "system/atomic_file.py")),
        *sorted((kit / "untrusted").glob("*.py")),
    ]:
        if package in source.parents:
            root = package
        else:
            root = kit
        put(layer, f"{AGENT_DIRECTORY}/{root.name}/{source.relative_to(root)}", source.read_text())
    put(layer, f"{AGENT_DIRECTORY}/__main__.py", START)
    put(layer, "/etc/systemd/system/hyperpod-agent.service", AGENT_UNIT)
    wants = layer / "etc/systemd/system/multi-user.target.wants"
    by_descriptor.make_directories(wants, shared=True)
    by_descriptor.symlink("/etc/systemd/system/hyperpod-agent.service", wants / "hyperpod-agent.service")
    if profile.agents:
        for name, unit in ((CONFIG_AGENT, CONFIG_AGENT_UNIT), (HANG_AGENT, HANG_AGENT_UNIT)):
            put(layer, f"/etc/systemd/system/{name}", unit)
            by_descriptor.symlink(f"/etc/systemd/system/{name}", wants / name)
    if profile.step_retry:
        put(layer, "/etc/systemd/system/sagemaker-cluster-agent.service", CLUSTER_AGENT_UNIT)
        for path in ("opt/sagemaker_cluster", "var/log/aws/clusters"):
            by_descriptor.make_directories(layer / path, shared=True)
    install_standins(layer)


def rebuild_layer(layer: Path, trees_to_copy_in: Sequence[str] = (), profile: Profile = STOCK) -> None:
    """Remove the layer and build it anew; only while no machine runs on it.

    `trees`: directories whose content is copied on top.
    """
    by_descriptor.remove_tree(layer, ignore_errors=True)
    write_agent_and_standins_into_layer(layer, profile)
    for tree in trees_to_copy_in:
        by_descriptor.copy_tree(tree, layer, symlinks=True, exist_ok=True)
    by_descriptor.set_mode(layer, 0o755)
