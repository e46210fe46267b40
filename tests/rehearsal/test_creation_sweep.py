"""Machines whose creation is killed at every step boundary, one machine a boundary, several at the same time.

The unit test of the same name kills before every single effect, with recorded commands; here systemd, the mounts and
the daemons are real.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import boto3
import pytest
from driver import CONFIG, Driver, wait_until

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import load
from hyperpod_kit.config.settings.settings import ListedScript
from hyperpod_kit.model.cluster import InstanceGroup
from hyperpod_kit.model.scripts import PLACES, CustomScript
from hyperpod_kit.node.creation.plan import plan
from hyperpod_kit.node.creation.steps import STEPS

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
NEVER = 999
AT_ONCE = 8
"""Machines: two dozen do not boot in the two minutes that a machine has, on two cores."""
BUCKET = "sagemaker-hyperpod-kit-demo"

LOOK = r"""
# What a timer has started just now is waited for: it is no difference between two machines.
for timer in $(systemctl list-units --no-legend --plain 'hyperpod-kit*.timer' | cut -d' ' -f1); do
  for _ in $(seq 60); do
    [ "$(systemctl show -p SubState --value "${timer%.timer}.service")" = start ] || break
    sleep 0.5
  done
done
systemctl list-unit-files --no-legend 'hyperpod-kit*' | awk '{print "file", $1, $2}' | sort
systemctl list-units --all --no-legend --plain 'hyperpod-kit*' | awk '{print "unit", $1, $2, $3, $4}' | sort
(cd /etc/systemd/system && sha256sum hyperpod-kit*)
awk '$5 ~ "^/(efs|mnt|fsx|home|mount)" {print "mount", $5, $6}' /proc/self/mountinfo | sort
cat /etc/own-scripts; getent passwd trainer; getent group trainer; cat /etc/fuse.conf
readlink /opt/hyperpod-kit/current /usr/local/bin/hyperpod-kit; ls -A /opt/hyperpod-kit | sort
find /etc /opt/hyperpod-kit /var/lib/hyperpod-kit -xdev -name '*.partial'
find /var/lib/hyperpod-kit -type f ! -path '*/health/*' | sort
cat /var/lib/hyperpod-kit/mounts.json
"""


def test_killed_at_every_step_boundary(endpoint: Driver, tmp_path: Path) -> None:
    settings = replace(load(CONFIG), directory=tmp_path, scripts=tuple(own_scripts(tmp_path)))
    mounts = [mount for mount in settings.mounts if "compute" in mount.roles]
    steps = len(plan(STEPS, settings.node_config(), "compute", "", "on_init_complete"))
    groups = {f"after-{number}": number for number in [*range(steps + 1), NEVER]}
    cluster = replace(
        settings.cluster, groups=tuple(InstanceGroup(name, "ml.m5.large", 1, "compute", "dev") for name in groups)
    )
    bundle = render(replace(settings, cluster=cluster, failure_pause=0.0))
    s3 = boto3.client("s3", endpoint_url=endpoint.environment["AWS_ENDPOINT_URL"])
    files = {
        "swept.sh": (HERE / "swept_node.sh").read_bytes(),
        "killer.py": (HERE / "swept_killer.py").read_bytes(),
        **{f"bundle/{place}": data for place, data in bundle.files.items()},
        **{
            f"{name}.sh": f'#!/bin/bash\nKILL_AFTER={number} exec /bin/bash "$(dirname "$0")/swept.sh"\n'.encode()
            for name, number in groups.items()
        },
    }
    for place, data in files.items():
        s3.put_object(Bucket=BUCKET, Key=f"swept/{place}", Body=data)
    seen: Dict[str, Dict[str, Any]] = {}
    for first in range(0, len(groups), AT_ONCE):
        seen.update(swept(endpoint, list(groups)[first : first + AT_ONCE]))
    undisturbed = seen[f"after-{NEVER}"]
    assert undisturbed["first"] == "0" and "changed=0" in undisturbed["second"]
    for name, number in groups.items():
        if number != NEVER:
            assert seen[name]["first"] == "137", f"{name} was not killed"
            assert seen[name]["state"] == undisturbed["state"], name
        assert seen[name]["mounts"] == {mount.name: "ok" for mount in mounts}, name
        assert seen[name]["plan"] == 0, name


def swept(endpoint: Driver, groups: List[str]) -> Dict[str, Dict[str, Any]]:
    """What a machine of each of these groups is like once it is in service."""
    sagemaker = boto3.client("sagemaker", endpoint_url=endpoint.environment["AWS_ENDPOINT_URL"])
    sagemaker.create_cluster(
        ClusterName="swept",
        InstanceGroups=[
            {
                "InstanceGroupName": name,
                "InstanceType": "ml.m5.large",
                "InstanceCount": 1,
                "ThreadsPerCore": 1,
                "ExecutionRole": "arn:aws:iam::111122223333:role/Swept",
                "LifeCycleConfig": {"SourceS3Uri": f"s3://{BUCKET}/swept/", "OnCreate": f"{name}.sh"},
            }
            for name in groups
        ],
    )
    try:
        wait_until("swept in service", lambda: in_service(sagemaker), timeout=420)
        nodes = {
            node["InstanceGroupName"]: node["InstanceId"]
            for node in sagemaker.list_cluster_nodes(ClusterName="swept", MaxResults=100)["ClusterNodeSummaries"]
        }
        with ThreadPoolExecutor(3) as pool:
            return dict(zip(nodes, pool.map(lambda node: look(endpoint, node), nodes.values())))
    finally:
        sagemaker.delete_cluster(ClusterName="swept")
        wait_until(
            "end of swept",
            lambda: not any(found["ClusterName"] == "swept" for found in sagemaker.list_clusters()["ClusterSummaries"]),
            timeout=180,
        )


def own_scripts(directory: Path) -> Iterator[ListedScript]:
    """A script at each place among the steps, which leaves a file."""
    for when in PLACES:
        path = directory / f"{when}.sh"
        path.write_text(f"#!/bin/bash\nset -e\necho {when} >>/etc/own-scripts\n")
        yield ListedScript(CustomScript(when, path.name, when=when), path.name)


def in_service(sagemaker: Any) -> bool:
    answer: Dict[str, Any] = sagemaker.describe_cluster(ClusterName="swept")
    assert answer["ClusterStatus"] != "Failed", answer.get("FailureMessage")
    return bool(answer["ClusterStatus"] == "InService")


def look(driver: Driver, node: str) -> Dict[str, Any]:
    """What a node is like: its units, files and mounts as text, and what it says about itself."""
    mark = "-----"
    commands: List[str] = [
        "cat /root/first-run",
        "cat /root/second-run",
        LOOK,
        "hyperpod-kit node mounts --json",
        "hyperpod-kit node plan --mode on_init_complete --json",
    ]
    said = driver.on(node, f"; echo {mark}; ".join(command.strip() for command in commands), timeout=180)
    first, second, state, mounts, planned = said.split(mark + "\n")
    return {
        "first": first.strip(),
        "second": second,
        "state": state.splitlines(),
        "mounts": {mount["name"]: mount["state"] for mount in json.loads(mounts)["mounts"]},
        "plan": json.loads(planned)["changed"],
    }
