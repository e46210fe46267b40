"""A rollout: one batch of nodes after the other is emptied if that is wanted, switched, looked at, and let go.

It stops after a batch in which a node failed, when somebody wants a pause, when another run has taken it over, and
after Ctrl-C; each time with every node of the batch on a whole bundle, or named. A later run goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Mapping, Optional, Protocol, Sequence

from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.model.states import Role
from hyperpod_kit.remote.draining.vacate import Vacated
from hyperpod_kit.remote.rollout.batches import RolloutPlan
from hyperpod_kit.remote.rollout.node_switch import NodeSwitch, NodeSwitcher, SwitchState, TargetBundle
from hyperpod_kit.remote.rollout.record import BUNDLE_ID, RolloutRecord, RolloutRecords, RolloutState
from hyperpod_kit.remote.target import NodeTarget

Batch = Mapping[NodeTarget, TargetBundle]


class JobsOnNodes(Protocol):
    """What keeps jobs from the nodes of a batch: `cli.cluster.jobs_first.JobsFirst`."""

    def vacate_if_requested(self, node_names: Sequence[str], command_name: str) -> Optional[Vacated]:
        """Wait until no job has these nodes, where that is wanted."""

    def undrain_nodes(self, vacated: Optional[Vacated], node_names: Optional[Sequence[str]] = None) -> None:
        """Let jobs in again."""


class RolloutRun:
    """One run of the command. `current`: what each node runs now; `find_problems`: the nodes among some whose mounts do
    not serve, with the reason; `report`: takes a line."""

    def __init__(
        self,
        plan: RolloutPlan,
        current: Mapping[NodeTarget, str],
        switcher: NodeSwitcher,
        jobs: JobsOnNodes,
        find_problems: Callable[[Sequence[NodeTarget]], Mapping[NodeTarget, str]],
        report: Callable[[str], None],
    ) -> None:
        self._plan, self._current, self._switcher, self._jobs = plan, current, switcher, jobs
        self._find_problems, self._report = find_problems, report
        self._total = plan.count + len(plan.same)
        self._done = len(plan.same)
        self._interrupted = False
        self.switches: list[NodeSwitch] = []

    def run(self, records: RolloutRecords, record: RolloutRecord, end: RolloutState) -> RolloutRecord:
        """Switch batch after batch, and return the record as it was written last; its state is `end` when all nodes
        were switched. Raises KeyboardInterrupt after the batch at work, and what the waiting for jobs raises."""
        record = records.write(record)
        for number, batch in enumerate(self._plan.batches, 1):
            if records.is_pause_wanted():
                return records.write(replace(record, state=RolloutState.PAUSED))
            record = records.write(_with_begun_batch(record, batch, self._current, end))
            names = ", ".join(slurm_node_name(target.address) for target in batch)
            self._report(f"batch {number} of {len(self._plan.batches)}: {names}")
            try:
                ended = self._switch_batch(batch)
            except BaseException:
                records.write(replace(record, state=RolloutState.STOPPED))
                raise
            record = _with_ended_batch(record, ended)
            if self._interrupted or any(switch.state != SwitchState.DONE for switch in ended):
                record = replace(record, state=RolloutState.STOPPED)
            record = records.write(record)
            if self._interrupted:
                raise KeyboardInterrupt
            if record.state == RolloutState.STOPPED:
                return record
        return records.write(replace(record, state=end))

    def _switch_batch(self, batch: Batch) -> list[NodeSwitch]:
        """Switch one batch, let jobs in again where a node runs a whole bundle, and return what became of each."""
        nodes_in_slurm = [slurm_node_name(target.address) for target in batch if target.role != Role.CONTROLLER]
        vacated = None
        if nodes_in_slurm:
            vacated = self._jobs.vacate_if_requested(nodes_in_slurm, "rollout")
        try:
            ended = self._put_back_where_mounts_fail(batch, self._switch_nodes(batch))
        except BaseException:
            if vacated is not None and vacated.drained:
                self._report(
                    "its nodes finish by themselves, and are still drained; then, on the controller: "
                    f"scontrol update nodename={','.join(vacated.drained)} state=undrain"
                )
            raise
        whole = [slurm_node_name(switch.target.address) for switch in ended if switch.runs_a_whole_bundle]
        self._jobs.undrain_nodes(vacated, whole)
        self.switches += ended
        return ended

    def _switch_nodes(self, batch: Batch) -> list[NodeSwitch]:
        """Switch nodes, whatever Ctrl-C comes meanwhile; a second one raises KeyboardInterrupt."""
        try:
            return self._switcher.switch_all(batch, lambda switch: None)
        except KeyboardInterrupt:
            if self._interrupted:
                raise
            self._interrupted = True
            self._report(
                "stopping after this batch: its nodes are finished or put back first; press Ctrl-C "
                "again to stop at once"
            )
            return self._switch_nodes(batch)

    def _put_back_where_mounts_fail(self, batch: Batch, ended: Sequence[NodeSwitch]) -> list[NodeSwitch]:
        """Look at the mounts of the nodes that were switched, put those back whose mounts do not serve, and report what
        became of each node."""
        problems = self._find_problems([switch.target for switch in ended if switch.state == SwitchState.DONE])
        back = {
            target: TargetBundle(self._current[target], self._current[target], batch[target].uri)
            for target in problems
            if BUNDLE_ID.fullmatch(self._current[target])
        }
        for target in back:
            self._report(f"{slurm_node_name(target.address)}: {problems[target]}: putting it back")
        is_back = {switch.target: switch.state == SwitchState.DONE for switch in self._switch_nodes(back)}
        states = {True: SwitchState.BACK, False: SwitchState.BROKEN}
        final = []
        for switch in ended:
            if switch.target in problems:
                state = states[is_back.get(switch.target, False)]
                switch = NodeSwitch(switch.target, state, "validate-mounts", problems[switch.target])
            self._report_switch(switch, batch[switch.target])
            final.append(switch)
        return final

    def _report_switch(self, switch: NodeSwitch, bundle: TargetBundle) -> None:
        name = slurm_node_name(switch.target.address)
        if switch.state == SwitchState.DONE:
            self._done += 1
            self._report(f"{name} runs {bundle.bundle_id}; {self._done} of {self._total} nodes")
            return
        hint = switch.hint or f"hyperpod-kit diagnose {switch.target.instance_id}"
        self._report(f"{name} failed: {failure_text(switch, self._current[switch.target])}; next: {hint}")


def failure_text(switch: NodeSwitch, previous: str) -> str:
    """Say which step failed on a node, why, and which bundle it runs now."""
    fates = {
        SwitchState.KEPT: f"it still runs {previous or 'no bundle'}",
        SwitchState.BACK: f"it was put back to {previous}",
        SwitchState.BROKEN: "it could not be put back, and runs neither bundle completely",
        SwitchState.UNKNOWN: "the bundle that it runs is unknown",
    }
    return f"{switch.step}: {switch.error}; {fates[switch.state]}"


def _with_begun_batch(
    record: RolloutRecord, batch: Batch, current: Mapping[NodeTarget, str], end: RolloutState
) -> RolloutRecord:
    """Return the record with a batch at work, and what its nodes run now; on the way back that is no news."""
    ids = tuple(target.instance_id for target in batch)
    failed = {name: text for name, text in record.failed.items() if name not in ids}
    if end == RolloutState.UNDONE:
        return replace(record, failed=failed, at_work=ids)
    earlier = {
        target.instance_id: current[target]
        for target, bundle in batch.items()
        if current[target] != bundle.bundle_id and BUNDLE_ID.fullmatch(current[target])
    }
    return replace(record, previous={**record.previous, **earlier}, failed=failed, at_work=ids)


def _with_ended_batch(record: RolloutRecord, ended: Sequence[NodeSwitch]) -> RolloutRecord:
    failed = {
        switch.target.instance_id: f"{switch.step}: {switch.error} ({switch.state.value})"
        for switch in ended
        if switch.state != SwitchState.DONE
    }
    return replace(record, failed={**record.failed, **failed}, at_work=())
