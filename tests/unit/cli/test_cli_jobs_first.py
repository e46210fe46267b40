"""Commands that take nodes away say which jobs run there, and wait for them where they are asked to."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List

import pytest

from hyperpod_kit.cli.cluster import jobs_first
from hyperpod_kit.errors import Unreachable
from hyperpod_kit.remote.draining import vacate
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.slurm import node_jobs, records
from tests.support.rows import full, share
from tests.unit.cli.conftest import put_bundle, put_cluster
from tests.unit.cli.slurm_queue import QueuedJob, SlurmQueue, reach

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

WORKERS = [f"ip-10-0-1-{number}" for number in (1, 2, 3)]
ONE_NODE = [
    ("replace-node", "worker-group/0"),
    ("reboot-node", "worker-group/0"),
    ("delete-node", "worker-group/0"),
    ("update-software", "--group", "worker-group"),
]
NAMED = [pytest.param(line, id=line[0]) for line in ONE_NODE]
ALTERNATING = [
    pytest.param(line, option, id=f"{line[0]}-{option}", marks=[pytest.mark.full] if (row + column) % 2 else [])
    for row, line in enumerate(ONE_NODE)
    for column, option in enumerate(("--when-idle", "--drain"))
]
"""The gate has each line with one of the options, and each option with two lines."""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> SlurmQueue:
    """Three workers; one job on the first, one on the second, none on the third."""
    found = SlurmQueue(
        dict.fromkeys(WORKERS, ""),
        [
            QueuedJob("7", [WORKERS[0]], comment="hpk:auto-resume=1", name="llama\x1b[31m"),
            QueuedJob("8", [WORKERS[1]], user="bob", requeue="0"),
            QueuedJob("9", [], state="PENDING"),
            QueuedJob("6", [WORKERS[0]], state="COMPLETED"),
        ],
    )
    reach(monkeypatch, found)
    return found


@pytest.fixture
def cluster(cloud: Cloud, project: Path, hk: Hk, queue: SlurmQueue, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    put_bundle(cloud.store)
    put_cluster(cloud.control, hk)
    # Looks follow each other at once.
    patience = vacate.WaitLimit

    def hurried(seconds: float) -> vacate.WaitLimit:
        return patience(seconds, interval=0.01)

    monkeypatch.setattr(vacate, "WaitLimit", hurried)
    return cloud


def sent(cloud: Cloud) -> List[Any]:
    control = cloud.control
    return [*control.replaced, *control.rebooted, *control.deleted, *control.software, *control.updates]


def fewer(project: Path, count: int = 2) -> None:
    path = project / "provisioning_parameters.json"
    values = json.loads(path.read_text())
    for group in values["hyperpod_kit"]["cluster"]["instance_groups"]:
        if group["name"] == "worker-group":
            group["count"] = count
    path.write_text(json.dumps(values))


def restarted(queue: SlurmQueue, cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes come back as soon as AWS was asked."""
    orders = node_jobs.query_slurmd_start_times_of_up_nodes

    def looked(*given: Any) -> Any:
        if sent(cloud):
            queue.served_since = "2026-11-26T23:00:00"
        return orders(*given)

    monkeypatch.setattr(node_jobs, "query_slurmd_start_times_of_up_nodes", looked)
    update = cloud.control.update_cluster_software

    def updated(request: Any) -> str:
        cloud.control.updated["worker-group"] = 1767229200.0
        return update(request)

    monkeypatch.setattr(cloud.control, "update_cluster_software", updated)


@pytest.mark.parametrize("line", share(NAMED, 2))
def test_the_question_names_the_jobs(
    cluster: Cloud, hk: Hk, line: Any, monkeypatch: pytest.MonkeyPatch, queue: SlurmQueue
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = hk(*line)
    assert asked.code == 130 and sent(cluster) == [] and queue.orders == []
    assert "job 7 of alice, llama" in asked.err and "RUNNING since 2026-11-26T22:00:00 on ip-10-0-1-1" in asked.err
    assert "it resumes by itself (auto-resume)" in asked.err and "\x1b[31m" not in asked.err
    assert "these nodes and will be ended (--when-idle or --drain waits)" in asked.err
    assert "job 6" not in asked.err and "job 9" not in asked.err
    shown = json.loads(hk(*line, "--dry-run", "--json").out)
    first = shown["jobs"][0]
    assert (first["id"], first["user"], first["auto_resume"], first["nodes"]) == ("7", "alice", True, [WORKERS[0]])
    assert shown["jobs_unknown"] == "" and sent(cluster) == []


@pytest.mark.parametrize("line", share(NAMED, 2))
def test_a_slurm_that_does_not_answer_is_told_and_keeps_nobody_from_an_emergency(
    cluster: Cloud, hk: Hk, line: Any, queue: SlurmQueue
) -> None:
    queue.silent = "cannot query Slurm: no way"
    for option in ("--when-idle", "--drain"):
        refused = hk(*line, "--yes", option)
        assert refused.code == 3 and "cannot wait for the jobs on these nodes: cannot query Slurm" in refused.err
    assert sent(cluster) == []
    done = hk(*line, "--yes", "--json")
    assert done.code == 0 and "could not be listed: cannot query Slurm: no way" in done.err and sent(cluster)
    told = json.loads(done.out)
    assert told["jobs"] is None and told["jobs_unknown"] == "cannot query Slurm: no way"


@pytest.mark.parametrize(("line", "option"), ALTERNATING)
def test_jobs_are_waited_for_with_the_nodes_drained(
    cluster: Cloud, hk: Hk, line: Any, queue: SlurmQueue, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted(queue, cluster, monkeypatch)
    looks: List[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            return
        assert sent(cluster) == [], "AWS is asked once the nodes are empty"
        assert queue.nodes[WORKERS[0]] == f"hyperpod-kit:leaving:{line[0]}"
        if len(looks) == 6:
            queue.jobs.clear()

    queue.before = look
    waiting = ("--interval", "0.2") if line[0] == "update-software" else ()
    done = hk(*line, "--yes", option, *waiting)
    assert done.code == 0, done.err
    requeued = [order for order in queue.orders if order.startswith("requeue")]
    assert requeued == (["requeue 7"] if option == "--drain" else [])
    stays = line[0] in ("reboot-node", "update-software")
    assert (queue.nodes[WORKERS[0]] == "") == stays, "what comes back takes jobs again"


@pytest.mark.parametrize("line", share(NAMED, 2))
def test_time_that_is_over_leaves_everything_as_it_was(cluster: Cloud, hk: Hk, line: Any, queue: SlurmQueue) -> None:
    queue.nodes[WORKERS[2]] = "somebody's own"
    late = hk(*line, "--yes", "--when-idle", "--drain-timeout", "1")
    assert late.code == 3 and "are still running; nothing was sent to AWS" in late.err
    assert sent(cluster) == [] and queue.nodes == {**dict.fromkeys(WORKERS, ""), WORKERS[2]: "somebody's own"}


def test_a_drain_that_slurm_refuses_ends_it(cluster: Cloud, hk: Hk, queue: SlurmQueue) -> None:
    queue.refuses = "Invalid user id"
    refused = hk("replace-node", "worker-group/0", "--yes", "--drain")
    assert refused.code == 1 and "Invalid user id" in refused.err and sent(cluster) == []


def test_nodes_that_aws_refuses_take_jobs_again(cluster: Cloud, hk: Hk, queue: SlurmQueue) -> None:
    queue.jobs.clear()
    nodes = json.loads(hk("list-cluster-nodes", "--json").out)["nodes"]
    cluster.control.busy = {nodes[1]["instance_id"]}
    part = hk("replace-node", "worker-group/0", "worker-group/1", "--yes", "--when-idle")
    assert part.code == 1 and queue.nodes[WORKERS[0]] == "" and queue.nodes[WORKERS[1]].startswith("hyperpod-kit")


def test_both_options_contradict_each_other(cluster: Cloud, hk: Hk) -> None:
    assert hk("replace-node", "worker-group/0", "--yes", "--when-idle", "--drain").code == 2


def test_fewer_nodes_without_a_wish_list_the_jobs_of_the_group(
    cluster: Cloud, project: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer(project)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = hk("update-cluster")
    assert asked.code == 130 and sent(cluster) == []
    assert "job 7 of alice" in asked.err and "job 8 of bob" in asked.err
    assert "2 jobs run on nodes of which AWS deletes some (--when-idle or --drain deletes idle ones first" in asked.err
    assert "1 node and everything on its own disks will be deleted. Continue?" in asked.err
    shown = json.loads(hk("update-cluster", "--dry-run", "--json").out)
    assert [job["id"] for job in shown["jobs"]] == ["7", "8"] and shown["leaving"] == []


def test_fewer_nodes_when_idle_are_those_without_a_job(
    cluster: Cloud, project: Path, hk: Hk, queue: SlurmQueue
) -> None:
    nodes = json.loads(hk("list-cluster-nodes", "--json").out)["nodes"]
    fewer(project)
    shown = json.loads(hk("update-cluster", "--dry-run", "--json", "--when-idle").out)
    assert shown["leaving"] == [nodes[3]["instance_id"]] and shown["jobs"] == []
    done = hk("update-cluster", "--yes", "--when-idle")
    assert done.code == 0, done.err
    assert cluster.control.deleted == [nodes[3]["instance_id"]] and cluster.control.updates == []
    assert queue.orders == [f"drain {WORKERS[2]}"] and len(queue.jobs) == 4, "no job was touched"


def test_fewer_nodes_than_idle_ones_are_waited_for(cluster: Cloud, project: Path, hk: Hk, queue: SlurmQueue) -> None:
    fewer(project, 1)
    late = hk("update-cluster", "--yes", "--when-idle", "--drain-timeout", "1")
    assert late.code == 3 and sent(cluster) == [] and set(queue.nodes.values()) == {""}
    queue.before = lambda: queue.nodes[WORKERS[2]] and queue.jobs.clear()
    assert hk("update-cluster", "--yes", "--when-idle").code == 0
    assert len(cluster.control.deleted) == 2 and cluster.control.updates == []


@pytest.mark.parametrize("option", ["--drain", *full("--when-idle")])
def test_nodes_whose_memory_holds_captures_are_waited_for(
    cluster: Cloud, project: Path, hk: Hk, queue: SlurmQueue, option: str
) -> None:
    """For Slurm the job is over; a unit of the node still writes what the job left."""
    queue.jobs.clear()
    queue.captures = {WORKERS[2]: 3}
    fewer(project)
    late = hk("update-cluster", "--yes", option, "--drain-timeout", "1")
    assert late.code == 3 and sent(cluster) == [] and set(queue.nodes.values()) == {""}
    assert f"the memory of {WORKERS[2]} still holds snapshots" in late.err and "checkpoint flush" in late.err
    looks = iter([3, 1, 0])
    queue.before_count = lambda: queue.captures.update({WORKERS[2]: next(looks, 0)})
    done = hk("update-cluster", "--yes", option)
    assert done.code == 0, done.err
    assert f"{WORKERS[2]} (3)" in done.err and f"{WORKERS[2]} (1)" in done.err
    assert next(looks, None) is None and len(cluster.control.deleted) == 1


def test_a_node_that_does_not_answer_is_named_and_not_waited_for(
    cluster: Cloud, project: Path, hk: Hk, queue: SlurmQueue
) -> None:
    queue.jobs.clear()
    queue.captures = {WORKERS[2]: None}
    fewer(project)
    done = hk("update-cluster", "--yes", "--drain")
    assert done.code == 0 and done.err.count(f"cannot check whether the memory of {WORKERS[2]}") == 1, done.err


def test_what_else_changes_is_sent_when_the_nodes_have_gone(
    cluster: Cloud, project: Path, hk: Hk, queue: SlurmQueue
) -> None:
    queue.jobs.clear()
    fewer(project)
    path = project / "provisioning_parameters.json"
    values = json.loads(path.read_text())
    values["hyperpod_kit"]["cluster"]["node_recovery"] = "None"
    path.write_text(json.dumps(values))
    delete = cluster.control.batch_delete_cluster_nodes

    def shrunk(request: Any) -> Any:
        group = next(g for g in cluster.control.clusters["demo"]["InstanceGroups"] if g["InstanceCount"] == 3)
        group["InstanceCount"] = 2
        cluster.control.script = [("InService", {"controller-machine": 1, "worker-group": 2}, "")]
        return delete(request)

    cluster.control.batch_delete_cluster_nodes = shrunk  # type: ignore[method-assign]
    done = hk("update-cluster", "--yes", "--when-idle", "--interval", "0.2")
    assert done.code == 0, done.err
    assert len(cluster.control.deleted) == 1 and cluster.control.updates[0]["NodeRecovery"] == "None"


def test_a_change_does_not_wait_for_a_slurm_that_hangs(
    cluster: Cloud, project: Path, hk: Hk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its commands connect and hear nothing: each is given up after its deadline, and nothing is sent."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("squeue", "scontrol"):
        (programs / name).write_text("#!/bin/sh\nexec sleep 3600\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(jobs_first, "open_runner_for_slurm", lambda *_: contextlib.nullcontext(LocalRunner()))
    monkeypatch.setattr(records, "DEADLINE", 1.0)
    fewer(project)
    for option in ("--drain", "--when-idle"):
        refused = hk("update-cluster", "--yes", option)
        assert refused.code == 3 and "cannot wait for the jobs on these nodes" in refused.err, refused
        assert "leave out --when-idle and --drain" in refused.err and sent(cluster) == []
    done = hk("update-cluster", "--yes")
    assert done.code == 0 and "could not be listed" in done.err and len(cluster.control.updates) == 1


@pytest.mark.parametrize("line", [("update-cluster",), ("delete-cluster",)], ids=["update-cluster", "delete-cluster"])
def test_a_slurm_that_falls_silent_ends_the_wait_and_nothing_is_sent(
    cluster: Cloud, project: Path, hk: Hk, queue: SlurmQueue, line: Any
) -> None:
    fewer(project, 1)

    def silent() -> None:
        if any(queue.nodes.values()):
            raise Unreachable("slurm_load_jobs error: Unable to contact slurm controller")

    queue.before = silent
    ended = hk(*line, "--yes", "--drain")
    assert ended.code == 3 and "cannot query Slurm for the running jobs" in ended.err, ended
    assert sent(cluster) == [] and list(cluster.control.clusters) == ["demo"]
    assert set(queue.nodes.values()) == {""}, "the nodes take jobs again"


def test_a_cluster_is_deleted_when_its_jobs_have_ended(
    cluster: Cloud, hk: Hk, queue: SlurmQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = hk("delete-cluster")
    assert asked.code == 130 and "job 7 of alice" in asked.err and "job 8 of bob" in asked.err
    question = "2 jobs run on these nodes and will be ended (--when-idle or --drain waits). Delete cluster demo"
    assert question in asked.err
    late = hk("delete-cluster", "--yes", "--when-idle", "--drain-timeout", "1")
    assert late.code == 3 and list(cluster.control.clusters) == ["demo"] and set(queue.nodes.values()) == {""}
    queue.before = lambda: all(queue.nodes.values()) and queue.jobs.clear()
    assert hk("delete-cluster", "--yes", "--when-idle", "--json").code == 0
    assert cluster.control.clusters == {}
