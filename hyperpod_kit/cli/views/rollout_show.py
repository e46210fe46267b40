"""What a person and a program are shown of a rollout: the plan, the end, and how far the nodes are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Mapping, Optional

from hyperpod_kit.cli.terminal.output import print_to_stderr, table_cell
from hyperpod_kit.cluster.nodes import slurm_node_name
from hyperpod_kit.command_line.tables import Column, TextTable, format_utc
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.remote.rollout.batches import RolloutPlan, runs_it
from hyperpod_kit.remote.rollout.node_switch import NodeSwitch, SwitchState
from hyperpod_kit.remote.rollout.record import RolloutRecord, RolloutState
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.remote.diagnosis.installed_bundles import NodeBundle
    from hyperpod_kit.remote.target import NodeTarget


@dataclass(frozen=True)
class RolloutReport:
    """What a run of the command was to do and did. `current`: what each node ran before it."""

    cluster: str
    record: RolloutRecord
    plan: RolloutPlan
    current: Mapping[NodeTarget, str]
    switches: tuple[NodeSwitch, ...] = ()

    @property
    def failures(self) -> tuple[NodeSwitch, ...]:
        """The nodes that were not switched, or were put back."""
        return tuple(switch for switch in self.switches if switch.state != SwitchState.DONE)

    @property
    def exit_code(self) -> int:
        """1 where the rollout did not come to its end, 3 where it did and some nodes did not answer."""
        if self.failures or self.record.state in (RolloutState.PAUSED, RolloutState.STOPPED):
            return ExitCode.PROBLEM
        if self.plan.unanswered:
            return ExitCode.ABSENT
        return ExitCode.OK

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "cluster": self.cluster,
            "bundle_id": self.record.bundle_id,
            "state": self.record.state.value,
            "batches": [
                [
                    {**asdict(target), "from": self.current[target], "to": bundle.bundle_id}
                    for target, bundle in batch.items()
                ]
                for batch in self.plan.batches
            ],
            "same": [asdict(target) for target in self.plan.same],
            "unanswered": [found.to_dict() for found in self.plan.unanswered],
            "switched": [{**asdict(switch), "state": switch.state.value} for switch in self.switches],
        }


@dataclass(frozen=True)
class RolloutStanding:
    """How far a rollout is, by what the nodes say. `record`: None where none is kept."""

    cluster: str
    bundle_id: str
    record: Optional[RolloutRecord]
    is_paused: bool
    nodes: tuple[NodeBundle, ...]

    @property
    def exit_code(self) -> int:
        """1 where a node runs another bundle, 3 where all that answer run this one."""
        if any(not node.error and not runs_it(node, self.bundle_id) for node in self.nodes):
            return ExitCode.PROBLEM
        if any(node.error for node in self.nodes):
            return ExitCode.ABSENT
        return ExitCode.OK

    def failure_on(self, node: NodeBundle) -> str:
        """Return what the record says of a failure there, "" for none."""
        if self.record is None:
            return ""
        return self.record.failed.get(node.target.instance_id, "")

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        record = None
        if self.record is not None:
            record = self.record.to_dict()
        return {
            "cluster": self.cluster,
            "bundle_id": self.bundle_id,
            "paused": self.is_paused,
            "record": record,
            "nodes": [{**node.to_dict(), "failed": self.failure_on(node)} for node in self.nodes],
        }

    def to_line(self) -> str:
        """One sentence for a person."""
        count = sum(runs_it(node, self.bundle_id) for node in self.nodes)
        parts = [f"{count} of {len(self.nodes)} nodes run {self.bundle_id}"]
        silent = sum(bool(node.error) for node in self.nodes)
        if silent:
            parts.append(counted(silent, "does not answer", "do not answer"))
        if self.record is None:
            parts.append("no rollout is recorded")
        else:
            when = format_utc(self.record.changed_at)
            parts.append(f"{self.record.state.value} since {when}, by {self.record.by}")
        if self.is_paused:
            parts.append("a pause is requested, hyperpod-kit rollout resume continues")
        return "; ".join(parts)


def build_node_table(standing: RolloutStanding) -> TextTable:
    """Build the table of the nodes: what each runs."""
    grid = TextTable(
        ("NODE", "GROUP", Column("HOST", may_miss=True), "RUNS", Column("DETAIL", folds=True)),
        f"bundle {standing.bundle_id} on cluster {standing.cluster}",
    )
    for node in standing.nodes:
        detail = node.error or standing.failure_on(node)
        if not detail and node.current == standing.bundle_id and not runs_it(node, standing.bundle_id):
            detail = "damaged, or the last creation failed: see hyperpod-kit diff"
        target = node.target
        words = (target.instance_id, target.group, slurm_node_name(target.address), node.current or "-", detail)
        grid.add_row(*(table_cell(word) for word in words))
    return grid


def print_plan(report: RolloutReport) -> None:
    """Print the batches on stderr, and which nodes are left out."""
    plan = report.plan
    print_to_stderr(
        f"cluster {report.cluster}: {counted(len(plan.same), 'node has', 'nodes have')} the bundle; "
        f"{plan.count} will be switched"
    )
    for number, batch in enumerate(plan.batches, 1):
        moves = ", ".join(
            f"{slurm_node_name(target.address)} ({report.current[target] or 'no bundle'} to {bundle.bundle_id})"
            for target, bundle in batch.items()
        )
        print_to_stderr(f"batch {number}: {moves}")
    for found in plan.unanswered:
        print_to_stderr(f"{found.target.instance_id} is left out: {found.error}")


def command_to_go_on(end: RolloutState) -> str:
    """Return the command that goes on with a rollout, or with its way back."""
    if end == RolloutState.UNDONE:
        return "hyperpod-kit rollout undo"
    return "hyperpod-kit rollout start"


def print_end(report: RolloutReport) -> None:
    """Print on stderr how a run of the command ended, and what to type next."""
    state = report.record.state
    done = len(report.plan.same) + sum(switch.state == SwitchState.DONE for switch in report.switches)
    total = report.plan.count + len(report.plan.same)
    print_to_stderr(f"{state.value}: {done} of {total} nodes are switched")
    if state == RolloutState.PAUSED:
        print_to_stderr("next: hyperpod-kit rollout resume, or hyperpod-kit rollout undo")
    elif report.failures:
        print_to_stderr("next: repeat the command to continue, or hyperpod-kit rollout undo to switch the others back")
