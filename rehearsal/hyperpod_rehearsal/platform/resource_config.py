"""/opt/ml/config/resource_config.json: who is in the cluster, as HyperPod tells every node."""

from __future__ import annotations

import json
from typing import Any, Dict

from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster


def render_resource_config_json(cluster: RehearsedCluster) -> str:
    """The file's text for a cluster. The shape follows AWS's readers of it; there is no published schema."""
    groups = []
    for group in cluster.groups:
        name = group["InstanceGroupName"]
        groups.append(
            {
                "Name": name,
                "InstanceType": group.get("InstanceType", ""),
                "Instances": [
                    {
                        "InstanceName": f"{name}-{node.index + 1}",
                        "InstanceId": node.instance_id,
                        "AgentIpAddress": node.ip,
                        "CustomerIpAddress": node.ip,
                    }
                    for node in cluster.nodes_in_group(name)
                ],
            }
        )
    data: Dict[str, Any] = {
        "ClusterType": "Slurm",
        "ClusterConfig": {"ClusterArn": cluster.arn, "ClusterName": cluster.name},
        "InstanceGroups": groups,
    }
    if cluster.controllers:
        primary, *secondary = [node.ip for node in cluster.controllers]
        data["SlurmConfig"] = {"PrimaryControllerIp": primary, "SecondaryControllerIps": secondary}
    return json.dumps(data, indent=1) + "\n"
