"""A bundle that owes us nothing and starts Slurm as AWS's own base-config does, on two machines."""

from __future__ import annotations

import json
from typing import Iterator

import boto3
import pytest
from driver import Driver, wait_until

pytestmark = pytest.mark.full  # two machines of its own

PARAMETERS = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "foreign-head",
    "worker_groups": [{"instance_group_name": "foreign-gpu", "partition_name": "gpu"}],
}
# The commands of AWS's start_slurm.sh and of its motd.sh, which has no time limit: nothing of munge in either.
START = """#!/bin/bash
set -ex
address=$(hostname -I | cut -d' ' -f1)
controller=$(jq -r '.InstanceGroups[] | select(.Name == "foreign-head").Instances[0].CustomerIpAddress' \\
    "$SAGEMAKER_RESOURCE_CONFIG_PATH")
token=$(curl -X PUT http://169.254.169.254/latest/api/token -H "X-aws-ec2-metadata-token-ttl-seconds: 21600")
curl -H "X-aws-ec2-metadata-token: $token" http://169.254.169.254/latest/meta-data/instance-type > /etc/motd
if [[ $address == "$controller" ]]; then
    systemctl enable --now slurmctld
    mv /etc/systemd/system/slurmd{,_DO_NOT_START_ON_CONTROLLER}.service
else
    SLURMD_OPTIONS="--conf-server $controller" envsubst < /etc/systemd/system/slurmd.service > slurmd.service
    mv slurmd.service /etc/systemd/system/
    systemctl daemon-reload
    systemctl enable --now slurmd
    mv /etc/systemd/system/slurmctld{,_DO_NOT_START_ON_CONTROLLER}.service
fi
"""
ROLE = "arn:aws:iam::111122223333:role/Foreign"


@pytest.fixture(scope="module")
def foreign(endpoint: Driver) -> Iterator[dict[str, str]]:
    """Instance group -> instance id of a cluster that the foreign bundle has made."""
    address = endpoint.environment["AWS_ENDPOINT_URL"]
    bucket, prefix = "sagemaker-hyperpod-kit-demo", "foreign"
    for name, text in (("on_create.sh", START), ("provisioning_parameters.json", json.dumps(PARAMETERS))):
        boto3.client("s3", endpoint_url=address).put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=text.encode())
    lifecycle = {"SourceS3Uri": f"s3://{bucket}/{prefix}/", "OnCreate": "on_create.sh"}
    sagemaker = boto3.client("sagemaker", endpoint_url=address)
    sagemaker.create_cluster(
        ClusterName="foreign",
        InstanceGroups=[
            {
                "InstanceGroupName": group,
                "InstanceType": kind,
                "InstanceCount": 1,
                "ExecutionRole": ROLE,
                "ThreadsPerCore": 1,
                "LifeCycleConfig": lifecycle,
            }
            for group, kind in (("foreign-head", "ml.m5.large"), ("foreign-gpu", "ml.g5.8xlarge"))
        ],
    )
    try:

        def settled() -> bool:
            found = sagemaker.describe_cluster(ClusterName="foreign")
            assert found["ClusterStatus"] != "Failed", found.get("FailureMessage")
            return found["ClusterStatus"] == "InService"

        wait_until("foreign in service", settled, timeout=180)
        nodes = sagemaker.list_cluster_nodes(ClusterName="foreign")["ClusterNodeSummaries"]
        yield {node["InstanceGroupName"]: node["InstanceId"] for node in nodes}
    finally:
        sagemaker.delete_cluster(ClusterName="foreign")
        wait_until(
            "end of cluster foreign",
            lambda: not sagemaker.list_clusters(NameContains="foreign")["ClusterSummaries"],
            timeout=180,
        )


def test_slurm_works_though_the_bundle_never_heard_of_munge(endpoint: Driver, foreign: dict[str, str]) -> None:
    head = foreign["foreign-head"]

    def idle() -> bool:
        return endpoint.on(head, "sinfo --noheader --partition gpu --format %T", check=False).strip() == "idle"

    wait_until("a node that Slurm can use", idle, timeout=180)
    said = endpoint.on(head, "srun --partition gpu hostname", timeout=180).strip()
    assert said == endpoint.on(foreign["foreign-gpu"], "hostname").strip()


def test_the_metadata_service_tells_each_node_of_itself(endpoint: Driver, foreign: dict[str, str]) -> None:
    for group, kind in (("foreign-head", "m5.large"), ("foreign-gpu", "g5.8xlarge")):
        assert endpoint.on(foreign[group], "cat /etc/motd") == kind
        ask = (
            "base=http://169.254.169.254/latest; "
            "token=$(curl -s -X PUT $base/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 60'); "
            'curl -s -H "X-aws-ec2-metadata-token: $token" $base/meta-data/instance-id; '
            "curl -s -o /dev/null -w ' %{http_code}' $base/meta-data/instance-id"
        )
        assert endpoint.on(foreign[group], ask) == f"{foreign[group]} 401"
