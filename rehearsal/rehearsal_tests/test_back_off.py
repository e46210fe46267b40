"""A place whose machines die at every boot is not given new ones in a hot loop."""

from __future__ import annotations

from hyperpod_rehearsal.machines.machine import REBOOT_EXIT
from hyperpod_rehearsal.platform.back_off import PAUSES, STEADY, NodeBackOff
from hyperpod_rehearsal.platform.cluster_state import RehearsedCluster
from hyperpod_rehearsal.platform.recovery import Recovery
from tests.support.wait import until


def test_pauses_double_up_to_the_longest():
    back_off, now, pauses = NodeBackOff(), 0.0, []
    for _ in range(10):
        due = back_off.next_try_at("c/gpu/0", was_steady=False)
        pauses.append(max(0.0, due - now))
        now = max(now, due)
        back_off.record_try("c/gpu/0", now, was_steady=False)
    assert pauses[:4] == [0.0, PAUSES.first, 2 * PAUSES.first, 4 * PAUSES.first]
    assert pauses[-1] == PAUSES.longest


def test_a_machine_that_ran_for_a_while_starts_afresh_and_places_do_not_share():
    back_off = NodeBackOff()
    for _ in range(5):
        back_off.record_try("c/gpu/0", 100.0, was_steady=False)
    assert back_off.next_try_at("c/gpu/1", was_steady=False) == 0.0
    assert back_off.next_try_at("c/gpu/0", was_steady=back_off.is_steady(STEADY)) == 0.0
    back_off.record_try("c/gpu/0", 200.0, was_steady=True)
    assert back_off.next_try_at("c/gpu/0", was_steady=False) == 200.0 + PAUSES.first


class Time:
    def __init__(self):
        self.now = 1e6

    def __call__(self):
        return self.now


def dying_cluster(operations, code):
    """A cluster of one node that ran, and whose machine has ended with `code`, as all after it will."""
    machines = operations.fleet.machines
    cluster = RehearsedCluster(
        "demo",
        "abc",
        {
            "ClusterName": "demo",
            "InstanceGroups": [{"InstanceGroupName": "gpu", "InstanceType": "ml.m5.large", "InstanceCount": 1}],
        },
    )
    operations.clusters["demo"] = cluster
    operations.bring_up_cluster(cluster)
    assert cluster.status == "InService"
    start = machines.start

    def start_and_die(instance_id, host_name, instance_store=False):
        process = start(instance_id, host_name)
        machines.exit_codes[instance_id] = code
        (machines.root(instance_id) / "var/lib/hyperpod-rehearsal/agent.json").unlink()
        return process

    machines.start = start_and_die
    machines.exit_codes[cluster.nodes_in_group("gpu")[0].instance_id] = code
    return cluster


def let_it_run(operations, cluster, seconds):
    """Rounds of the loop once a second of a clock of our own; returns when machines were started."""
    clock = Time()
    recovery = Recovery(operations, operations.fleet.stopping, clock)
    starts = []
    for second in range(seconds):
        clock.now += 1.0
        started = len(operations.fleet.machines.started)
        recovery.recover_cluster_nodes(cluster)
        until(lambda: not operations.claimed_ids)
        starts += [second] * (len(operations.fleet.machines.started) - started)
    return starts


def test_a_node_that_dies_at_every_boot_is_replaced_later_and_later(operations):
    cluster = dying_cluster(operations, 137)
    starts = let_it_run(operations, cluster, 120)
    assert starts[0] == 0 and 4 <= len(starts) <= 6, starts
    assert [later - earlier for earlier, later in zip(starts, starts[1:])][:3] == [5, 10, 20], starts
    node = cluster.nodes_in_group("gpu")[0]
    assert node.status == "Failure" and "in a row; next try at" in node.message and "code 137" in node.message


def test_a_node_that_reboots_itself_for_ever_is_slowed_too(operations):
    cluster = dying_cluster(operations, REBOOT_EXIT)
    before = cluster.nodes_in_group("gpu")[0].instance_id
    starts = let_it_run(operations, cluster, 60)
    assert 3 <= len(starts) <= 5, starts
    assert cluster.nodes_in_group("gpu")[0].instance_id == before
