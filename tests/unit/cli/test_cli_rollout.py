"""rollout as a user types it: S3 and SageMaker behind HTTP, Slurm and the nodes answered by the test."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Sequence

import pytest

from hyperpod_kit.bundle.render import render
from hyperpod_kit.config.load import load
from hyperpod_kit.errors import ClusterError, Unreachable
from hyperpod_kit.model.mount_status import MountStatus
from hyperpod_kit.model.states import MountState
from hyperpod_kit.remote.diagnosis import installed_bundles
from hyperpod_kit.remote.draining import vacate
from hyperpod_kit.remote.rollout import mount_check, node_switch
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.remote.transports import transport_choice
from hyperpod_kit.run import Completed
from tests.unit.cli.conftest import put_bundle, put_cluster
from tests.unit.cli.slurm_queue import QueuedJob, SlurmQueue, reach

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cloud, Outcome

    Hk = Callable[..., Outcome]

OLD = "0" * 16
HEAD, *WORKERS = "ip-10-0-0-1", "ip-10-0-1-1", "ip-10-0-1-2", "ip-10-0-1-3"


@dataclass
class Machine:
    """`ends`: how the unit ends that switches it, `done` by itself; `unsound`: bundles with which its mounts are not
    healthy; `silent`: why it cannot be reached."""

    name: str
    fleet: Fleet
    current: str = OLD
    ends: Dict[str, str] = field(default_factory=dict)
    unsound: Sequence[str] = ()
    silent: str = ""
    note: str = ""
    target: str = "node"

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        if self.silent:
            raise Unreachable(self.silent)
        return Completed(tuple(argv), 0, self._answer(list(argv)), "")

    def _answer(self, argv: List[str]) -> str:
        if "systemd-run" in argv:
            run, bundle_id = argv[-4], argv[-3]
            self.fleet.switched.append((self.name, bundle_id))
            self.fleet.on_switch(self)
            state = self.ends.get(bundle_id, "done")
            reason = "" if state == "done" else '{"step": "mount:fsx", "error": "no route", "hint": "look at fsx"}'
            self.note = json.dumps({"run": run, "bundle": bundle_id, "state": state}) + f"\n{reason}\n"
            if state == "done":
                self.current = bundle_id
            return ""
        if node_switch.LOOK in argv:
            return f"== looked\n{self.current}\ninactive\n{self.note}"
        if argv[-1] == installed_bundles.SCRIPT:
            status = json.dumps({"bundle_id": self.current, "ok": True})
            sums = f"== identity\n{self.current}\n== sums\n== damaged\n== files\n== end\n"
            return f"== current\n{self.current}\n== status\n{status}\n{sums}"
        bad = self.current in self.unsound
        state = MountState.HUNG if bad else MountState.OK
        mounts = [asdict(MountStatus(m.name, m.kind, m.path, state, "")) for m in self.fleet.mounts(self.name)]
        return json.dumps({"node": self.name, "checked_at": 0, "mounts": mounts, "bundle_id": self.current})


class Fleet:
    """A controller and three workers. `on_switch` is called when a node begins."""

    def __init__(self) -> None:
        self.machines = {name: Machine(name, self) for name in (HEAD, *WORKERS)}
        self.switched: List[tuple[str, str]] = []
        self.on_switch: Callable[[Machine], object] = lambda machine: None

    def mounts(self, name: str) -> Sequence[Any]:
        config = load(Path("provisioning_parameters.json")).node_config()
        group = "controller-machine" if name == HEAD else "worker-group"
        return config.mounts_for(config.roles[group], group)

    def connect(self, target: NodeTarget) -> Machine:
        return self.machines[f"ip-{target.address.replace('.', '-')}"]

    def running(self, bundle_id: str) -> List[str]:
        return [name for name, machine in self.machines.items() if machine.current == bundle_id]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    made = Fleet()

    @contextlib.contextmanager
    def opened(*_: Any) -> Iterator[Callable[[NodeTarget], Machine]]:
        yield made.connect

    monkeypatch.setattr(transport_choice, "open_ssh_or_ssm_connector", opened)
    monkeypatch.setattr(mount_check, "WITHIN", 0.0)
    pace = node_switch.SwitchPace
    monkeypatch.setattr(node_switch, "SwitchPace", lambda: pace(interval=0.0))
    return made


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> SlurmQueue:
    found = SlurmQueue(dict.fromkeys(WORKERS, ""), [QueuedJob("7", [WORKERS[0]]), QueuedJob("8", [WORKERS[1]])])
    reach(monkeypatch, found)
    patience = vacate.WaitLimit
    monkeypatch.setattr(vacate, "WaitLimit", lambda seconds: patience(seconds, interval=0.01))
    return found


@pytest.fixture
def new(cloud: Cloud, project: Path, hk: Hk, fleet: Fleet, queue: SlurmQueue) -> str:
    """The bundle that was uploaded."""
    put_bundle(cloud.store)
    put_cluster(cloud.control, hk)
    return render(load(Path("provisioning_parameters.json"))).bundle_id


def stored(cloud: Cloud, name: str = "rollout.json") -> Any:
    from hyperpod_kit.aws.s3 import Bucket

    data = Bucket("sagemaker-hyperpod-kit-demo", "us-east-1").get(f"hyperpod-kit/demo/{name}")
    return None if data is None else json.loads(data)


def test_a_dry_run_shows_batches_and_jobs_and_changes_nothing(new: str, hk: Hk, fleet: Fleet, cloud: Cloud) -> None:
    shown = hk("rollout", "start", "--batch", "2", "--dry-run", "--json")
    answer = json.loads(shown.out)
    assert shown.code == 0 and [len(batch) for batch in answer["batches"]] == [2, 1, 1]
    assert [job["id"] for job in answer["jobs"]] == ["7", "8"]
    assert answer["batches"][0][0]["from"] == OLD and answer["batches"][2][0]["group"] == "controller-machine"
    assert fleet.switched == [] and stored(cloud) is None


def test_workers_go_first_and_jobs_go_on(new: str, hk: Hk, fleet: Fleet, queue: SlurmQueue, cloud: Cloud) -> None:
    done = hk("rollout", "start", "--batch", "2", "--yes")
    assert done.code == 0, done.err
    assert sorted(name for name, _ in fleet.switched[:2]) == WORKERS[:2]
    assert [name for name, _ in fleet.switched[2:]] == [WORKERS[2], HEAD] and fleet.running(new) == [HEAD, *WORKERS]
    assert queue.orders == [] and "4 of 4 nodes" in done.err
    record = stored(cloud)
    assert record["format"] == "hpk-rollout/1"
    assert record["state"] == "done" and set(record["previous"].values()) == {OLD} and record["at_work"] == []
    again = hk("rollout", "start", "--yes")
    assert again.code == 0 and len(fleet.switched) == 4 and "cluster demo: 4 nodes have the bundle" in again.err


def test_the_question_says_what_becomes_of_jobs(
    new: str, hk: Hk, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = hk("rollout", "start")
    assert asked.code == 130 and fleet.switched == []
    assert "Jobs on these nodes: 2 (7, 8); they continue with the bundle that they started with" in asked.err


@pytest.mark.parametrize("option", ["--when-idle", "--drain"])
def test_a_batch_waits_for_its_own_jobs(new: str, hk: Hk, fleet: Fleet, queue: SlurmQueue, option: str) -> None:
    def begin(machine: Machine) -> None:
        if machine.name in WORKERS:
            assert queue.nodes[machine.name] == "hyperpod-kit:leaving:rollout"
            assert all(machine.name not in job.nodes for job in queue.jobs)
        assert [name for name, reason in queue.nodes.items() if reason] in ([machine.name], [])

    fleet.on_switch = begin
    looks: List[int] = []

    def ended() -> None:
        looks.append(1)
        if len(looks) % 5 == 0 and queue.jobs:
            queue.jobs.pop(0)

    queue.before = ended
    done = hk("rollout", "start", "--batch", "1", option, "--yes")
    assert done.code == 0, done.err
    assert set(queue.nodes.values()) == {""} and fleet.running(new) == [HEAD, *WORKERS]


def test_jobs_of_job_run_are_asked_to_save_and_others_queued_again(
    new: str, hk: Hk, fleet: Fleet, queue: SlurmQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacate, "SAVED_WITHIN", 0.1)
    queue.jobs[0].step = "hpk.01234567.attempt-1"
    queue.jobs[1].step = "of-the-user"
    queue.jobs.append(QueuedJob("9", [WORKERS[2]], step="hpk.89abcdef.attempt-1"))
    queue.deaf = ["9"]
    done = hk("rollout", "start", "--batch", "3", "--requeue", "--yes")
    assert done.code == 0, done.err
    orders = [order for order in queue.orders if order.startswith(("save", "requeue"))]
    assert orders == ["save 7", "save 9", "requeue 8", "requeue 9"] and fleet.running(new) == [HEAD, *WORKERS]
    assert hk("rollout", "start", "--requeue", "--drain", "--yes").code == 2


def test_jobs_that_do_not_end_leave_everything_as_it_was(
    new: str, hk: Hk, fleet: Fleet, queue: SlurmQueue, cloud: Cloud
) -> None:
    late = hk("rollout", "start", "--batch", "1", "--when-idle", "--drain-timeout", "1", "--yes")
    assert late.code == 3 and "hyperpod-kit rollout start continues" in late.err
    assert fleet.switched == [] and set(queue.nodes.values()) == {""} and stored(cloud)["state"] == "stopped"


def test_a_node_that_fails_stops_the_rollout_and_is_named(
    new: str, hk: Hk, fleet: Fleet, queue: SlurmQueue, cloud: Cloud
) -> None:
    queue.jobs.clear()
    fleet.machines[WORKERS[1]].ends[new] = "back"
    failed = hk("rollout", "start", "--batch", "1", "--when-idle", "--yes", "--json")
    assert failed.code == 1 and fleet.running(new) == [WORKERS[0]] and len(fleet.switched) == 2
    assert f"{WORKERS[1]} failed: mount:fsx: no route; it was put back to {OLD}" in failed.err
    assert "next: look at fsx" in failed.err and set(queue.nodes.values()) == {""}
    answer = json.loads(failed.out)
    assert answer["state"] == "stopped" and [row["state"] for row in answer["switched"]] == ["done", "back"]
    shown = hk("rollout", "status")
    assert shown.code == 1 and "1 of 4 nodes run" in shown.err and "mount:fsx: no route (back)" in shown.out
    fleet.machines[WORKERS[1]].ends.clear()
    went_on = hk("rollout", "start", "--yes")
    assert went_on.code == 0 and len(fleet.switched) == 5 and stored(cloud)["failed"] == {}


def test_a_broken_node_stays_drained(new: str, hk: Hk, fleet: Fleet, queue: SlurmQueue) -> None:
    queue.jobs.clear()
    fleet.machines[WORKERS[0]].ends[new] = "broken"
    failed = hk("rollout", "start", "--batch", "2", "--when-idle", "--yes")
    assert failed.code == 1 and "it could not be put back" in failed.err
    assert queue.nodes == {WORKERS[0]: "hyperpod-kit:leaving:rollout", WORKERS[1]: "", WORKERS[2]: ""}


def test_a_node_whose_mounts_do_not_serve_is_put_back(new: str, hk: Hk, fleet: Fleet) -> None:
    fleet.machines[WORKERS[0]].unsound = [new]
    failed = hk("rollout", "start", "--batch", "1", "--yes")
    assert failed.code == 1 and fleet.switched == [(WORKERS[0], new), (WORKERS[0], OLD)]
    assert "validate-mounts: mount" in failed.err and f"it was put back to {OLD}" in failed.err


def test_a_pause_ends_it_after_the_batch_and_resume_goes_on(new: str, hk: Hk, fleet: Fleet, cloud: Cloud) -> None:
    fleet.on_switch = lambda machine: hk("rollout", "pause")
    paused = hk("rollout", "start", "--batch", "2", "--yes")
    assert paused.code == 1 and fleet.running(new) == WORKERS[:2] and stored(cloud)["state"] == "paused"
    fleet.on_switch = lambda machine: None
    refused = hk("rollout", "start", "--yes")
    assert refused.code == 1 and "hyperpod-kit rollout resume" in refused.err and len(fleet.switched) == 2
    assert "a pause is requested" in hk("rollout", "status").err
    resumed = hk("rollout", "resume", "--yes")
    assert resumed.code == 0, resumed.err
    assert fleet.running(new) == [HEAD, *WORKERS] and stored(cloud, "rollout-pause.json") == {"paused": False}


def test_undo_takes_back_what_was_switched_controllers_first(new: str, hk: Hk, fleet: Fleet, cloud: Cloud) -> None:
    nothing = hk("rollout", "undo", "--yes")
    assert nothing.code == 3 and "no rollout of cluster demo has switched a node" in nothing.err
    hk("rollout", "start", "--node", "worker-group/0", "--node", "controller-machine/0", "--yes")
    assert fleet.running(new) == [HEAD, WORKERS[0]]
    fleet.switched.clear()
    undone = hk("rollout", "undo", "--yes")
    assert undone.code == 0, undone.err
    assert fleet.switched == [(HEAD, OLD), (WORKERS[0], OLD)] and stored(cloud)["state"] == "undone"


def test_a_run_that_was_taken_over_ends_and_leaves_the_record_alone(
    new: str, hk: Hk, fleet: Fleet, cloud: Cloud
) -> None:
    def take_over(machine: Machine) -> None:
        fleet.on_switch = lambda machine: None
        refused = hk("rollout", "undo", "--yes")
        assert refused.code == 1 and "on cluster demo is running, by" in refused.err and "--take-over" in refused.err
        assert hk("rollout", "undo", "--take-over", "--yes").code == 0

    fleet.on_switch = take_over
    ended = hk("rollout", "start", "--batch", "1", "--yes")
    assert ended.code == 1 and "has begun another rollout" in ended.err
    # The node that was at work then is among those that are taken back.
    assert fleet.switched[:2] == [(WORKERS[0], new), (WORKERS[0], OLD)] and stored(cloud)["state"] == "undone"


def test_of_two_that_begin_at_once_one_writes_the_record(new: str, hk: Hk, fleet: Fleet) -> None:
    from hyperpod_kit.aws.s3 import Bucket
    from hyperpod_kit.remote.rollout.record import RolloutRecord, RolloutRecords, RolloutState

    both = [RolloutRecords(Bucket("sagemaker-hyperpod-kit-demo", "us-east-1"), "hyperpod-kit/demo/") for _ in range(2)]
    assert [records.read() for records in both] == [None, None]
    first, second = (
        RolloutRecord(new, RolloutState.RUNNING, run, by, 0.0) for run, by in (("1", "ann on a"), ("2", "bob on b"))
    )
    written = both[0].write(first)
    with pytest.raises(ClusterError, match="ann on a has begun another rollout of this cluster, of bundle"):
        both[1].write(second)
    assert both[0].write(written).run == "1"


def test_ctrl_c_finishes_the_batch(new: str, hk: Hk, fleet: Fleet, queue: SlurmQueue, cloud: Cloud) -> None:
    queue.jobs.clear()
    pressed: List[int] = []

    def press(machine: Machine) -> None:
        if not pressed:
            pressed.append(1)
            raise KeyboardInterrupt

    fleet.on_switch = press
    stopped = hk("rollout", "start", "--batch", "1", "--when-idle", "--yes")
    assert stopped.code == 130 and fleet.running(new) == [WORKERS[0]] and set(queue.nodes.values()) == {""}
    assert "hyperpod-kit rollout start continues from here" in stopped.err and stored(cloud)["state"] == "stopped"


def test_nodes_that_do_not_answer_are_named_and_left_out(new: str, hk: Hk, fleet: Fleet) -> None:
    fleet.machines[WORKERS[2]].silent = "no route to it"
    done = hk("rollout", "start", "--yes")
    assert done.code == 3 and "is left out: no route to it" in done.err and len(fleet.switched) == 3
    assert hk("rollout", "status").code == 3


def test_what_was_not_uploaded_goes_nowhere(new: str, hk: Hk, fleet: Fleet, project: Path) -> None:
    path = project / "provisioning_parameters.json"
    values = json.loads(path.read_text())
    values["hyperpod_kit"]["failure_pause"] = 1
    path.write_text(json.dumps(values))
    refused = hk("rollout", "start", "--yes")
    assert refused.code == 1 and "hyperpod-kit upload" in refused.err and fleet.switched == []
    other = hk("rollout", "resume", "--yes")
    assert other.code == 1


@pytest.mark.parametrize("text", ["{", '{"format": "hpk-rollout/9"}', '{"format": "hpk-rollout/1"}'])
def test_a_record_that_is_none_is_refused(new: str, hk: Hk, fleet: Fleet, cloud: Cloud, text: str) -> None:
    from hyperpod_kit.aws.s3 import Bucket

    Bucket("sagemaker-hyperpod-kit-demo", "us-east-1").put("hyperpod-kit/demo/rollout.json", text.encode())
    refused = hk("rollout", "start", "--yes")
    assert refused.code == 1 and "is not a record of a rollout" in refused.err and fleet.switched == []
