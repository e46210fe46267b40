"""What ledgers, ranks, Slurm and sockets say."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from typing import Any, Dict, List

from hyperpod_kit.checkpoint.agent.wire.channel import Channel
from hyperpod_kit.errors import JobError, RunError, Untrusted
from hyperpod_kit.job.base import exits
from hyperpod_kit.job.decide import budget, outcome
from hyperpod_kit.job.foreign.candidate import PROOFS
from hyperpod_kit.job.foreign.proven import ProvenFiles
from hyperpod_kit.job.goodput import launch_time, scalars, time_rows
from hyperpod_kit.job.goodput.scalars import ScalarPoint
from hyperpod_kit.job.program import cli_look
from hyperpod_kit.job.records import ledger, ledger_row
from hyperpod_kit.job.resume import proving_part, shared_decision
from hyperpod_kit.job.status import attempt_table, status_page, timeline
from hyperpod_kit.job.step import hang, step_note, step_report
from hyperpod_kit.slurm import control, hostlist, records, verdict
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.slurm.phase import Phase
from hyperpod_kit.untrusted import parse
from hyperpod_kit.untrusted.lines import Lines
from tests.hostile.fuzz.engine import Parser
from tests.hostile.fuzz.places import file_of, folder
from tests.hostile.fuzz.words import Said, js, of_bytes, of_json, of_rows, text_of


def read_ledger(data: bytes) -> None:
    path = file_of(data, "root/.hpk/attempts.jsonl")
    found = timeline.attempts(os.path.dirname(os.path.dirname(path)), "", [])
    sums = timeline.totals(found, 2e9)
    attempt_table.table(found, sums)
    if len(data) % 8 == 0:
        status_page.page("x", found, sums, 2e9)
    rows = ledger.Ledger(os.path.dirname(path), "7", 1).valid_rows_of_this_job()
    budget.count_spent_budget(rows, (2, 5), 1)
    budget.find_poison_checkpoint(rows)


def read_decision(data: bytes) -> None:
    file_of(data, "state/decisions/7.0.0.0.json")
    record = shared_decision.read_or_make_shared_record(
        folder("state"), "7.0.0.0", lambda: {"from": None}, patience=0.0, head_start=0.0
    )
    for line in shared_decision.task_prolog_lines(record, "0"):
        if not line.isprintable():
            raise AssertionError(f"a line for the environment: {line!r}")


STEPS = [[3, 7, "step", 0, 1.5], [0, None, "restore", 12, 0.0]]
NOTE = {"attempt": "7.0.0", "reached": 7, "moved": 1000.5, "written": 1001, "where": "all of 2 ranks at step 7"}


def read_note(data: bytes) -> None:
    """What `job run` notes of an attempt that runs."""
    path = file_of(data, "steps/steps.json")
    note = step_note.read(os.path.dirname(path))
    if note is not None:
        [attempt] = timeline.with_note([timeline.JobAttempt(note.attempt, "7", 5.0)], note)
        attempt_table.table([attempt], timeline.totals([attempt], 2e9), now=2e9)


def read_steps(data: bytes) -> None:
    """What wrappers report of their ranks."""
    watch = hang.HangWatch(hang.StallRule())
    reports = {one.rank: one for one in step_report.decoded(data.decode("ascii"), "n1")}
    watch.observe(1.0, reports)
    if reports:
        hang.describe_positions_of_ranks(reports)


PROVEN = {"checkpoint": "10", "files": {"10/__0_0.pt": [8, 5, "crc"]}}
PROOF = {"task": 0, "file": "10/__0_0.pt", "proof": "crc", "why": "", "size": 8, "changed": 5}


def read_proofs(data: bytes) -> None:
    """The record of a checkpoint's files, and a line of a task that has read some."""
    named = hashlib.sha256(b"10").hexdigest()[:32]
    path = file_of(data, f"proven/.hpk/proven/{named}.json")
    root = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    for proof in (
        ProvenFiles(root, os.path.join(root, ".hpk")).proofs_of_unchanged_files("10", ["10/__0_0.pt", "10/a"]).values()
    ):
        if proof not in PROOFS:
            raise AssertionError(f"proven: {proof!r}")
    proving_part.parse_file_proof_or_none(parse.parse_json_object(data, 1 << 16))


DECIDED = {
    "launch": "7.0.0.0",
    "by": "0@n",
    "t": 1.5,
    "from": "seq-000005.step-0000000050.e2-abcd",
    "step": 50,
    "order": [2, 5],
    "kind": "hyperpod-kit",
    "proof": "",
    "rejected": [{"attempt": "a", "why": "b"}],
}


def read_exits(data: bytes) -> None:
    file_of(data, "state/exits/7.0.0/0.json")
    found = exits.read(folder("state"), "7.0.0")
    for one in found:
        exits.describe(one)
    last = exits.last_launch(found)
    outcome.furthest(last)
    outcome.earliest(last)


def read_verdicts(data: bytes) -> None:
    file_of(data, "state/verdicts/7.0.0/restored.json")
    for one in verdict.read_last_verdict_per_launch(folder("state"), "7.0.0"):
        one.sentence()
        assert not ledger_row.problem({"event": "restored", "attempt": "7.0.0", **one.to_report_fields()})


NODE = (
    b"NodeName=ip-10-1-0-1 Arch=x86_64 NodeAddr=10.1.0.1 NodeHostName=ip-10-1-0-1 Port=6818 State=IDLE+DRAIN "
    b"BootTime=2026-11-20T23:58:03 Reason=hyperpod-kit:mount:fsx [root@2026-11-20T23:58:03]\n"
)
WORDS = [
    b"JobId=",
    b"JobState=",
    b"NodeList=",
    b"Port=",
    b"HetJobOffset=",
    b"Comment=",
    b"\n",
    b" ",
    b"=",
    b"(null)",
    b"7_[1-9]",
    b"State=",
    b"BootTime=",
    b"NodeName=",
    b"ip-[0-4294967295]",
]


def read_slurm(data: bytes) -> None:
    """Records of nodes and steps; and of jobs, with the mark that only squeue and we know."""
    runner: Any = Said(text_of(data))
    failed = None
    for ask in (lambda: control.query_nodes(runner), lambda: control.query_running_step_ids(runner, JobId("7"), "hpk")):
        try:
            ask()
        except (RunError, JobError) as err:
            failed = err
    found = records.split_records(text_of(data), "@mark@")
    if found is not None:
        with contextlib.suppress(RunError):
            cli_look.find_orphans(found)
    if failed is not None:
        raise failed


SQUEUE = (
    b"".join(
        value + b"@mark@"
        for value in (
            b"7",
            b"7",
            b"2",
            b"",
            b"",
            b"1001",
            b"1001",
            b"RUNNING",
            b"None",
            b"1",
            b"0",
            b"1",
            b"n1",
            b"n[1-4]",
            b"hpk:elsewhere",
        )
    )
    + b"\n"
)


def read_hosts(data: bytes) -> None:
    names = hostlist.expand(text_of(data))
    if sorted(set(hostlist.expand(hostlist.compress(names)))) != sorted(set(names)):
        raise AssertionError("compress and expand disagree")


def read_lines(data: bytes) -> None:
    """As a socket gives them: in pieces, then its end."""
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        there.send(data[:100_000])
        there.close()
        found = Lines(here, 4096)
        while not found.ended or found.has_complete_line:
            if found.receive_line_nowait() is None and found.ended:
                return


def read_messages(data: bytes) -> None:
    here, there = socket.socketpair()
    with there:
        there.setblocking(False)
        there.send(data[:100_000])
        there.close()
        channel = Channel(here)
        try:
            while channel.receive_nowait_or_raise_eof() is not None:
                pass
        except EOFError as err:
            if err.args:  # and not just the end
                raise
        finally:
            channel.close()


ROWS: List[Dict[str, Any]] = [
    {
        "t": 1.5,
        "job": "7",
        "restart": 0,
        "event": "attempt",
        "attempt": "7.0.0",
        "nodes": ["n1"],
        "from": "seq-x",
        "step": 5,
        "order": [2, 5],
        "kind": "hyperpod-kit",
        "proof": "",
        "rejected": [{"attempt": "a", "why": "b"}],
    },
    {
        "t": 9,
        "job": "7",
        "restart": 0,
        "event": "ended",
        "attempt": "7.0.0",
        "class": "crash",
        "seconds": 7.5,
        "code": 1,
        "lost": ["n1"],
        "first": {"rank": 0, "node": "n1", "code": 1, "signal": None},
        "reached": 9,
        "begins": 6,
    },
    {"t": 10, "job": "7", "restart": 0, "event": "requeue", "why": "x", "life": "ab"},
    {"t": 11, "job": "7", "restart": 1, "event": "gave_up", "why": "y"},
]
EXIT = {
    "rank": 0,
    "node": "n1",
    "boot_id": "b",
    "code": 1,
    "signal": None,
    "started": 1.5,
    "ended": 2.5,
    "step": 5,
    "begins": 1,
    "launch": "0.4000",
}
VERDICT = {
    "source": "seq-000003.step-0000000030.e1-abcd",
    "step": 30,
    "order": [1, 3],
    "tier": "memory+storage",
    "rejected": [{"attempt": "a", "why": "b"}],
    "error": "",
    "why": "",
    "launch": "0.4000",
}

TIME = time_rows.TimeRow("7.0.0", "n1", 1.7e9, 1.7e9 + 60, Phase.STEP, 1.7e9 + 9, 1, 40, (1, 8.0), 0.5, {"step": 50.0})
RUN_TIME = time_rows.RunRow("7", 0, 1.7e9, 1.7e9 - 60, 1.7e9 - 9, 8, ("n1",), "ada", "gpu", "c")
TIMES = [parse.parse_json_object(time_rows.encoded(TIME)), parse.parse_json_object(time_rows.encoded_run(RUN_TIME))]


def read_times(data: bytes) -> None:
    state = os.path.dirname(os.path.dirname(file_of(data, f"state/{time_rows.FOLDER}/a.jsonl")))
    rows = time_rows.read(state, "a")
    points = [ScalarPoint(row.t, row.step or 0, {"a": launch_time.usual_step(row) or 0.0}) for row in rows]
    scalars.encoded(points, 1.7e9)
    time_rows.read_run(state, "a")


PARSERS = [
    Parser("goodput: rows of time", read_times, (OSError,), of_rows(*TIMES), (b"\n".join(map(js, TIMES)),)),
    Parser(
        "job: decision record",
        read_decision,
        (JobError,),
        of_json(DECIDED, {**DECIDED, "from": None}),
        (js(DECIDED),),
    ),
    Parser("job: ledger", read_ledger, (OSError,), of_rows(*ROWS), (b"\n".join(map(js, ROWS)),)),
    Parser("job: exit records", read_exits, (), of_json(EXIT), (js(EXIT),)),
    Parser("job: proofs of files", read_proofs, (ValueError,), of_json(PROVEN, PROOF), (js(PROVEN), js(PROOF))),
    Parser("job: steps of ranks", read_steps, (ValueError,), of_json(STEPS), (js(STEPS),)),
    Parser("job: note of steps", read_note, (), of_json(NOTE), (js(NOTE),)),
    Parser("job: verdicts of ranks", read_verdicts, (), of_json(VERDICT), (js(VERDICT),)),
    Parser(
        "slurm: records",
        read_slurm,
        (RunError, JobError),
        of_bytes([SQUEUE * 2, NODE, b"7.0 hpk-rank\n7.batch batch\n"], [b"@mark@", *WORDS]),
        (NODE,),
    ),
    Parser(
        "slurm: host lists",
        read_hosts,
        (ValueError,),
        of_bytes(
            [b"ip-10-1-41-[18-20],x[01-03]", b"a[1-2]b[3-4]", b"n1"],
            [b"[", b"]", b"-", b",", b"[0-9]", b"[000-999]", b"9" * 12],
        ),
        (b"x[01-03]",),
    ),
    Parser(
        "socket: lines",
        read_lines,
        (Untrusted,),
        of_bytes([b'{"op":"hello"}\n' * 3], [b"\n", b"x" * 5000]),
        (b"x\n",),
    ),
    Parser(
        "socket: agents' messages",
        read_messages,
        (EOFError,),
        of_rows({"op": "which", "key": [2, 5, "ab"], "tensors": None}),
        (b"{}\n",),
    ),
]
