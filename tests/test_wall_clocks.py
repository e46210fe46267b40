"""Who asks what time it is. A wall clock is set by people and by NTP, and two machines have two of them.

So nothing is decided by the difference of two of its moments where a jump of an hour, forward or back, or an hour
between two machines would lose work or stop it. Seconds that pass are counted by a monotonic clock, an age of what is
in memory by the clock of the boot, an order by numbers, a change by equality. Each place that asks all the same is
here, with the reason why that is right; another one fails until it has one.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Dict, Iterator, Tuple

from tests.support.packages import modules, relative
from tests.support.syntax import nodes, tree_of

SHOWN = "written down or shown for people and their tools; nothing follows from it"
SIGNED = "AWS takes signatures of about now and says when credentials end; refused ones are asked for anew"
SAME = "only whether a file is the same as before: equal or not, never older or newer"
PACED = (
    "how long ago the last try was; one in the future counts as long ago, so a clock that was set back stops nothing"
)
PASSED_IN = "hands the clock to others, who are listed here themselves"

ALLOWED: Dict[str, Tuple[int, str]] = {
    "checkpoint/agent/shm/lock.py": (
        2,
        "a sign is another time than before; the first look alone believes it, and the next sign mends that",
    ),
    "checkpoint/agent/reports/save_failures.py": (1, SHOWN),
    "checkpoint/agent/leader/failure_counter.py": (1, SHOWN),
    "checkpoint/commands/repair.py": (1, "a lost manifest's time, for policies that keep one in so many seconds"),
    "checkpoint/convert/import_checkpoint.py": (1, SAME),
    "checkpoint/repository/records/lease.py": (
        4,
        "an end that a reader has written, read once and then counted monotonically",
    ),
    "s3/client.py": (1, SIGNED),
    "checkpoint/saves/saves.py": (1, SHOWN),
    "cli/views/actions_show.py": (1, "which part of a record a person sees"),
    "cli/cluster/events_command.py": (1, "which part of AWS's events a person sees"),
    "cli/cluster/list_commands.py": (1, SHOWN),
    "cli/nodes/fleet_command.py": (1, "ages that a person sees; those of checks go by the node's own clock"),
    "cli/nodes/support_bundle_command.py": (1, "the name of a file and what its manifest says; nothing is decided"),
    "remote/fleet/node_notes.py": (1, "ages that a person sees, where a node has said no time of its own"),
    "hyperpod_rehearsal/cli/output.py": (1, SHOWN),
    "cli/storage/storage_audit_commands.py": (
        2,
        "which part of a record a person sees, or has removed: days, not hours",
    ),
    "cli/storage/storage_request_commands.py": (1, SHOWN),
    "cli/storage/storage_tier_command.py": (
        1,
        "which checkpoints are old enough to move, in days; a move deletes nothing",
    ),
    "cli/views/fleet_show.py": (1, SHOWN),
    "cluster/wait.py": (1, "from when on AWS's events are told again; waiting goes by a monotonic clock"),
    "data/bulk/staging.py": (1, SAME),
    "data/index/sources.py": (2, SAME),
    "data/loading/sample_log.py": (
        1,
        "the order of two launches in a report that is asked for; training does not read it",
    ),
    "data/tokens/megatron.py": (1, SAME),
    "data/reading/listing.py": (1, SAME),
    "data/reading/local_file.py": (2, SAME),
    "hyperpod_lab/torture/day.py": (1, "sets times back, to show that nothing goes by them"),
    "job/program/cli_look.py": (
        2,
        "shown; and how long ago slurmctld, on this machine, started a job: set back, its script is looked for later",
    ),
    "job/lint/doctor_look.py": (1, "how old the guard's record of this node is; a clock that was set back is told"),
    "job/fan_out/listing.py": (1, SAME),
    "job/fan_out/task.py": (1, SAME),
    "job/foreign/proven.py": (1, SAME),
    "job/resume/launches.py": (2, SHOWN),
    "job/records/ledger.py": (
        1,
        SHOWN + ": but an end is held against Slurm's requeue, see job/run/beginning.py, which says so",
    ),
    "job/goodput/command.py": (1, SHOWN),
    "job/goodput/run_log.py": (1, SHOWN),
    "job/goodput/time_log.py": (1, SHOWN),
    "job/run/ownership.py": (1, SHOWN),
    "job/wrapper/rank.py": (2, SHOWN),
    "job/run/attempt.py": (1, "part of a name"),
    "job/run/series.py": (1, SHOWN),
    "job/resume/shared_decision.py": (3, SHOWN),
    "job/status/attempt_table.py": (2, SHOWN),
    "job/step/local_machine.py": (1, SHOWN),
    "job/step/step_note.py": (1, SHOWN),
    "job/step/watch.py": (1, SAME),
    "node/commands/actions.py": (1, "which part of a record a person sees"),
    "node/creation/apply.py": (2, SHOWN),
    "node/commands/creation_commands.py": (2, SHOWN),
    "node/devices/commands.py": (1, SHOWN),
    "node/devices/cycle.py": (1, SHOWN),
    "node/devices/slurm_state.py": (2, PACED + "; of reboots less than a day apart, before or after, there is one"),
    "node/file_audit/supervisor.py": (1, SHOWN),
    "node/health/check_cycle.py": (1, PACED),
    "node/health/repair.py": (1, SHOWN),
    "node/memory/cleanup.py": (4, PACED),
    "node/commands/mount_commands.py": (1, SHOWN),
    "node/observe/check.py": (1, SHOWN + ": repairs are paced by it, see node/health/check_cycle.py"),
    "node/optional/copies.py": (2, PACED),
    "node/optional/device_checks.py": (1, SHOWN),
    "node/optional/host_keys.py": (2, SAME),
    "node/setup/secret_files.py": (1, SIGNED),
    "node/slurm/drain.py": (2, PACED),
    "node/slurm/gate_refusal.py": (3, "where neither Slurm nor the note says more: a build before 0.1.0 wrote it"),
    "node/slurm/guard/commands.py": (3, SHOWN),
    "node/slurm/guard/mend.py": (3, PACED + "; a node is let go 30 s after Slurm's reason by its clock"),
    "node/slurm/guard/report.py": (2, "how old the guard's record is; a clock that was set back is told"),
    "node/slurm/lease.py": (
        1,
        "whether slurmctld has begun under this machine's lease; a clock that was set back stops for a person, and the "
        "copy of the state that loses is kept",
    ),
    "node/slurm/munge.py": (2, PACED),
    "node/slurm/controller.py": (1, "part of a name"),
    "node/slurm/take_back.py": (1, "part of a name"),
    "node/slurm/state.py": (2, "part of a name; a state saved in the future is for a person to choose"),
    "node/slurm/worker.py": (
        2,
        "where Slurm did not answer before slurmd was started; the earlier of both clocks counts",
    ),
    "node/machine/timing.py": (1, PASSED_IN),
    "remote/transports/cloudwatch_transport.py": (
        1,
        "which of a node's reports are new enough, in minutes; an old one is told as old",
    ),
    "remote/diagnosis/cluster_diagnosis.py": (1, "which part of AWS's events a person sees"),
    "remote/reports/fleet_status.py": (1, SHOWN),
    "remote/rollout/record.py": (1, SHOWN),
    "remote/rollout/mount_check.py": (1, "how old a report is; that the clocks differ is told"),
    "remote/reports/validate_mounts.py": (1, "how old a report is; that the clocks differ is told"),
    "signing/chain.py": (1, SIGNED),
    "storage/alerts/outbox.py": (1, "since when an alert stands, for its words; none is sent earlier or later for it"),
    "storage/bench/measurements/probes.py": (2, SAME),
    "storage/quota/decision.py": (1, SHOWN),
    "storage/quota/request_box.py": (1, "in which order decisions are shown"),
    "storage/tier/migrate.py": (2, "the times of what was moved are those that it had; none is compared"),
    "storage/usage/history.py": (
        1,
        "whose day a count is the row of; a clock that is set back replaces an earlier day",
    ),
    "storage/usage/state.py": (1, "whether a walk that was cut off goes on or begins anew, by days"),
}
"""Module -> how often it asks, why that is right."""

FILES = {"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "st_atime", "st_atime_ns", "getmtime", "getctime"}
CLOCKS = {"wall", "time_ns", "utcnow"}
CALLS = {("time", "time"), ("datetime", "now"), ("datetime", "today"), ("date", "today")}
ASKING = re.compile(
    rf"from time import|\.(?:{'|'.join(sorted(FILES | CLOCKS | {attribute for _, attribute in CALLS}))})\b"
)
"""Stands in the text of each module that asks, and in that of others."""


def uses(tree: ast.AST) -> Iterator[str]:
    """What of a module asks a wall clock, or when a file was changed."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"from time import {alias.name}" for alias in node.names if alias.name in ("time", "time_ns"))
        if not isinstance(node, ast.Attribute):
            continue
        base = node.value
        owner = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
        if node.attr in FILES | CLOCKS or (owner, node.attr) in CALLS:
            yield f"{owner}.{node.attr}"


def test_whoever_asks_a_wall_clock_says_why() -> None:
    """The rehearsal stands for the world, which has clocks of its own; its command line does not."""
    found: Counter[str] = Counter()
    for path in modules():
        name = relative(path)
        stands_for_the_world = name.startswith("hyperpod_rehearsal/") and not name.startswith("hyperpod_rehearsal/cli/")
        if not stands_for_the_world and ASKING.search(path.read_text()):
            found[name] += sum(1 for _ in uses(tree_of(path)))
    asked = {name: count for name, count in found.items() if count}
    assert asked == {name: count for name, (count, _) in ALLOWED.items()}, (
        "a place asks what time it is, or when a file was changed, and does not say here what a clock that is set does"
    )


def test_each_way_to_ask_is_seen() -> None:
    text = (
        "import time, datetime, os\n"
        "from time import time_ns\n"
        "time.time(); datetime.datetime.now(); os.path.getmtime('x'); os.stat('x').st_mtime; node.clock.wall()\n"
        "def later(clock=time.time): ...\n"
        "time.monotonic(); time.sleep(1); datetime.timedelta(1)\n"
    )
    assert len(list(uses(ast.parse(text)))) == 7
    for line in (line for line in text.splitlines() if list(uses(ast.parse(line)))):
        assert ASKING.search(line)
