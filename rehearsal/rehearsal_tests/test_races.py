"""Two operations that meet on the same cluster."""

from __future__ import annotations

from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster
from hyperpod_rehearsal.platform.scaling import apply_cluster_update

GROUP = {"InstanceGroupName": "gpu", "InstanceType": "ml.m5.large", "InstanceCount": 2}


def new_cluster(operations):
    cluster = RehearsedCluster("demo", "abc", {"ClusterName": "demo", "InstanceGroups": [GROUP]})
    operations.clusters["demo"] = cluster
    return cluster


def test_a_cluster_that_is_deleted_before_its_creation_began_gets_no_machine(operations):
    cluster = new_cluster(operations)
    cluster.status = "Deleting"
    operations.delete_cluster(cluster)
    operations.bring_up_cluster(cluster)  # its thread was slower
    assert operations.fleet.machines.started == [] and cluster.nodes == {} and operations.clusters == {}


def test_a_cluster_that_is_deleted_before_its_update_began_gets_no_machine(operations):
    cluster = new_cluster(operations)
    operations.bring_up_cluster(cluster)
    cluster.status = "Deleting"
    operations.delete_cluster(cluster)
    apply_cluster_update(operations, cluster, {"InstanceGroups": [{**GROUP, "InstanceCount": 5}]})
    assert len(operations.fleet.machines.started) == 2
