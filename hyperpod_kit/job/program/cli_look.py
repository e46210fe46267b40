"""The commands of `hyperpod-kit job` that look at jobs, scripts and Slurm from outside: status, lint, doctor, sweep."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import time
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit import audit, ending
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.explaining import print_explain_line
from hyperpod_kit.errors import Absent, HyperpodKitError, RunError, Unreachable, Untrusted, UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.job.goodput import job_time, rank_at_hand, root_time, scalars, show, standing
from hyperpod_kit.job.goodput.job_time import JobTime
from hyperpod_kit.job.goodput.time_table import table_of
from hyperpod_kit.job.lint import doctor, doctor_look, lint_captures, lint_environment, script, script_lint
from hyperpod_kit.job.records import job_index, ledger, state_place
from hyperpod_kit.job.status import attempt_table, saves, status_page, timeline
from hyperpod_kit.run import LocalRunner, Runner
from hyperpod_kit.slurm import cancel_requests, control, heads, records
from hyperpod_kit.slurm.environment import AWAY_MARK, REQUEUE_AFTER_CANCEL_MARK
from hyperpod_kit.slurm.hostlist import expand
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.untrusted import by_descriptor, files, terminal
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

_MOST_SOURCE = 1 << 20
"""Bytes of a batch script, and of a trainer's file, that `job lint` reads."""
_DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def status_command(args: argparse.Namespace) -> int:
    """Print what the records of a checkpoint root tell of its jobs; `--html` and `--tensorboard` also write files.

    Returns the exit code. Raises HyperpodKitError.
    """
    job, root = _job_and_root(args.job or "", args.root)
    if not is_path(root):
        return _print_status_and_write_files(args, job, root)
    return ending.run_in_bounded_child_as_uid(lambda: _print_status_and_write_files(args, job, root), root)


def _print_status_and_write_files(args: argparse.Namespace, job: str, root: str) -> int:
    now = time.time()
    odd: List[str] = []
    try:
        state_place.require_root(root)
        state = state_place.state_directory_of_root(root)
        rows = ledger.read(os.path.join(state, "attempts.jsonl"))
        attempts = timeline.attempts_in(state, rows, job, odd)
    except OSError as err:
        raise Unreachable(f"cannot read the attempts of {root or job}: {err}") from err
    if job and not attempts:
        raise _no_attempt(root, job, timeline.attempts_in(state, rows))
    sums = timeline.totals(attempts, now)
    saved = saves.read_save_status(root)
    times = _account_time_per_job(state, rows, job, attempts, now)
    attempts = _complete_attempts_with_current_rows(attempts, times)
    sentences = [*saves.describe_save_status(saved, now), *_few(odd)]
    spent: List[str] = []
    for time_of_job in times:
        spent += _lines_about_job_time(time_of_job, len(times) > 1, args.price, now)
    written: List[str] = []
    if args.tensorboard:
        written += _write_tensorboard_files_per_job(args.tensorboard, times, now)
    if args.html:
        written.append(args.html)
        checkpoint = None
        if saved.durable is not None:
            checkpoint = saved.durable.step
        page_text = status_page.page(_page_title(job, root), attempts, sums, now, sentences, times, checkpoint)
        _write_page(args.html, page_text)
    if args.json:
        data = {
            "root": root,
            "totals": dataclasses.asdict(sums),
            "time": [{"job": time_of_job.job, **time_of_job.to_dict()} for time_of_job in times],
            "saves": saved.to_dict(),
            "odd": odd,
            "attempts": [dataclass_to_json(attempt) for attempt in attempts],
        }
        terminal.print_json(document("job status", data), indent=2)
        return 0
    page = "".join(f"{path} written\n" for path in written)
    if not rows:
        terminal.print_stdout("\n".join([f"{state} has no records of `job run`", *sentences]) + f"\n{page}", end="")
        return 0
    terminal.print_stdout(attempt_table.table(attempts, sums, [*spent, *sentences], now) + page, end="")
    return 0


def _job_and_root(job: str, root: str) -> Tuple[str, str]:
    """Return the full name of the job, "" for all jobs, and the root to look at. Raises UsageError, Absent."""
    if job:
        noted = job_index.find(job)
        if noted:
            job, root = noted[0], root or noted[1]
    if not root and job:
        raise _not_noted(job)
    if not root:
        raise UsageError("no job and no root given", hint="hyperpod-kit job status JOB --root DIR")
    return job, root


def _no_attempt(root: str, job: str, attempts: Sequence[timeline.JobAttempt]) -> Absent:
    message = f"{root} has no attempt of job {job}"
    jobs = sorted({attempt.job for attempt in attempts})
    if jobs:
        message += f"; it has those of {', '.join(jobs[:8])}"
    return Absent(message, hint=f"hyperpod-kit job status --root {root}")


def _page_title(job: str, root: str) -> str:
    if job:
        return f"Job {job}"
    return f"Jobs on {root}"


def _write_page(path: str, page: str) -> None:
    try:
        with by_descriptor.open_stream_for_writing(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as err:
        raise Unreachable(f"cannot write {path}: {err.strerror}") from err


def _write_tensorboard_files_per_job(directory: str, times: Sequence[JobTime], now: float) -> List[str]:
    """Write the files for TensorBoard, one for each job, and return their paths. Raises Unreachable."""
    try:
        return [scalars.replace_event_file_of_job(directory, time_of_job, now) for time_of_job in times]
    except OSError as err:
        raise Unreachable(f"cannot write scalars to {directory}: {err.strerror}") from err


def _account_time_per_job(
    state: str, rows: Sequence[ledger.Row], job: str, attempts: Sequence[timeline.JobAttempt], now: float
) -> List[JobTime]:
    """Return what the time of each job that is shown went into. Raises Unreachable."""
    try:
        runs = root_time.runs_of(state, rows)
    except OSError as err:
        raise Unreachable(f"cannot read the time records of the jobs in {state}: {err}") from err
    rank_at_hand.append_current_rows_of_local_ranks(runs, state, now)
    if job:
        jobs = [job]
    else:
        jobs = list(dict.fromkeys(attempt.job for attempt in attempts))
    return [
        job_time.account(runs, name, now, standing.query_job_standing_or_none(LocalRunner(), name)) for name in jobs
    ]


def _complete_attempts_with_current_rows(
    attempts: Sequence[timeline.JobAttempt], times: Sequence[JobTime]
) -> List[timeline.JobAttempt]:
    """Return the attempts; those at work as far as rank 0 has reported, where no other record says more."""
    current = {time.runs[-1].attempts[-1].name: time.current for time in times if time.current is not None}
    return [timeline.with_row(attempt, current.get(attempt.name)) for attempt in attempts]


def _lines_about_job_time(time: JobTime, with_job_name: bool, price: Optional[float], now: float) -> List[str]:
    shown = show.lines(time, table_of(time.pieces), price)
    if time.current is not None:
        shown = [show.now_at(time.current, now), *shown, show.newest_memory_capture_sentence(time.current, now)]
    if with_job_name and shown:
        return [f"job {time.job}", *shown]
    return shown


def _few(odd: List[str]) -> List[str]:
    if len(odd) <= 3:
        return odd
    return [*odd[:3], f"and {counted(len(odd) - 3, 'more row')}"]


def _not_noted(job: str) -> Absent:
    """Return the error about a job whose root is not noted on this machine.

    `job run` notes the root in the home of the batch host, which is another file on another node.
    """
    tasks = job_index.tasks(job)
    if tasks:
        if len(tasks) > 2:
            shown = f"{tasks[0]} to {tasks[-1]}"
        else:
            shown = " and ".join(tasks)
        return Absent(
            f"job {job} is an array, and each task has a root of its own: {shown} are recorded on this machine",
            hint=f"hyperpod-kit job status {tasks[0]}",
        )
    host = ""
    with contextlib.suppress(RunError, HyperpodKitError):
        host = control.query_job_record(LocalRunner(), JobId.parse(job)).get("BatchHost", "")
    batch_script_node = "the node that ran the batch script"
    if host:
        batch_script_node += f" ({host})"
    return Absent(
        f"the checkpoint root of job {job} is not recorded in {job_index.index_file_path()}: `job run` records it in "
        f"the home of the job's owner on {batch_script_node}",
        hint=f"hyperpod-kit job status {job} --root DIR, or run the command there",
    )


def lint_command(args: argparse.Namespace) -> int:
    """Print the findings about batch scripts; returns 1 when there are any, else 0. Raises Absent, UsageError."""
    file_findings = []
    environment = _training_environment(args.config)
    for file in args.files:
        try:
            text = _text(file)
        except (OSError, Untrusted, UnicodeDecodeError) as err:
            raise Absent(f"cannot read {file}: {err}") from err
        findings = script_lint.lint(script.parse(text), _beside(file), environment)
        file_findings += [(file, finding) for finding in findings]
    if args.json:
        terminal.print_json(
            document(
                "job lint",
                {"findings": [{"file": file, **dataclass_to_json(finding)} for file, finding in file_findings]},
            ),
            indent=2,
        )
    else:
        for file, finding in file_findings:
            terminal.print_stdout(finding.render(file))
        print_explain_line(finding.code for _, finding in file_findings)
    if file_findings:
        return 1
    return 0


def _training_environment(config: Optional[str]) -> str:
    """Return the directory of the training environment that a configuration has, or this node's bundle; "" for none.

    Raises Absent, UsageError.
    """
    try:
        text = _text(config or lint_environment.NODE_CONFIG)
    except (OSError, Untrusted, UnicodeDecodeError) as err:
        if config is None:
            return ""
        raise Absent(f"cannot read {config}: {err}") from err
    try:
        return lint_environment.environment_directory(text, _MOST_SOURCE)
    except ValueError as err:
        raise UsageError(
            f"{config or lint_environment.NODE_CONFIG} is not a configuration in JSON: {err}",
            hint="hyperpod-kit render --out DIR writes one: DIR/node_config.json",
        ) from err


def _text(file: str) -> str:
    """Return the text of a batch script. Raises OSError, Untrusted, UnicodeDecodeError.

    A pipe is read where it is a descriptor of this process's own; one that lies in a directory may wait for ever.
    """
    if file.startswith(_DESCRIPTORS):
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    return files.read_small_regular_file(file, _MOST_SOURCE).decode("utf-8")


def _beside(batch_script: str) -> lint_captures.Reader:
    """Return a reader of the files that a script names: below the working directory, else beside the script."""

    def read(name: str) -> Optional[str]:
        for path in (name, os.path.join(os.path.dirname(batch_script), name)):
            with contextlib.suppress(OSError, ValueError, Untrusted):
                return files.read_small_regular_file(path, _MOST_SOURCE).decode("utf-8")
        return None

    return read


def doctor_command(args: argparse.Namespace) -> int:
    """Print what the running Slurm lacks; returns 1 when there is anything, else 0. Raises Unreachable."""
    findings = doctor.examine(doctor_look.query_slurm_facts(LocalRunner()))
    if args.json:
        terminal.print_json(
            document("job doctor", {"findings": [dataclass_to_json(finding) for finding in findings]}), indent=2
        )
    else:
        terminal.print_stdout("\n".join(finding.render() for finding in findings) or "nothing is missing")
        print_explain_line(finding.code for finding in findings)
    if findings:
        return 1
    return 0


def sweep_command(args: argparse.Namespace) -> int:
    """Requeue the jobs that nobody else puts back into the queue, or print which they are (`--dry-run`).

    Does nothing where another controller does it. Returns 1 when there was a problem, else 0. Raises Unreachable.
    """
    runner = LocalRunner()
    other = ""
    if not args.dry_run:
        other = heads.query_other_acting_controller(runner)
    if other:
        if args.json:
            terminal.print_json(document("job sweep", {"jobs": []}), indent=2)
        else:
            terminal.print_stdout(f"the sweep runs on {other}, the first controller that answers")
        return 0
    try:
        job_records = jobs(runner)
    except RunError as err:
        raise Unreachable(f"cannot query Slurm: {err.message}") from err
    orphans, problems = _find_jobs_to_requeue(runner, job_records)
    if args.dry_run:
        done = [(orphan, "") for orphan in orphans]
    else:
        done = sweep(runner, orphans)
    _print_swept_orphans(done, dry_run=args.dry_run, as_json=args.json)
    for problem in problems:
        terminal.print_stderr(problem)
    if problems or any(problem for _, problem in done):
        return 1
    return 0


def _find_jobs_to_requeue(runner: Runner, job_records: Sequence[Mapping[str, str]]) -> Tuple[List[Orphan], List[str]]:
    """Return the jobs to put back into the queue, of each kind, and a line about what could not be judged."""
    orphans, problems = find_orphans(job_records)
    without_script, unknown = find_jobs_without_script(runner, job_records, time.time())
    known = {orphan.job_id for orphan in orphans}
    orphans += [orphan for orphan in without_script if orphan.job_id not in known]
    confirmed, unconfirmed = confirm_cancels(runner, find_cancelled_in_hang(job_records))
    return orphans + confirmed, problems + unknown + unconfirmed


def _print_swept_orphans(done: Sequence[Tuple[Orphan, str]], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        rows = [{**dataclasses.asdict(orphan), "problem": problem} for orphan, problem in done]
        terminal.print_json(document("job sweep", {"jobs": rows}), indent=2)
        return
    for orphan, problem in done:
        verb = "requeued"
        if dry_run and orphan.requeue:
            verb = "would be requeued"
        terminal.print_stdout(f"job {orphan.job_id} {orphan.reason} {orphan.host}: {problem or verb}")


# `job sweep`, which a timer starts on the controller: requeues jobs that nobody else puts back into the queue.
#
# Such a job is one that Slurm keeps RUNNING although its batch script is gone, or one whose `job run` has left a host
# that alone had lost the checkpoint root (batch_host_watch.py), or one that asked for it after a cancel in a hang
# (`job run --requeue-after-cancel`): who cancelled it is in slurmctld's log alone.
#
# With --no-kill a job survives the loss of a node; when that node was the batch host, Slurm removes it from the job,
# the script is gone, and nothing ever ends the job (observed with 22.05; the same code is in 26.11). A slurmctld that
# is restarted meanwhile names another node as the batch host: there the batch step tells.

_SWEPT_FIELDS = (
    *records.FIELDS,
    ("StartTime", "StartTime"),
    ("EndTime", "EndTime"),
    ("ExitCode", "exit_code"),
)

_REQUEUE_AFTER_CANCEL = re.compile(rf"(?:^|\s){re.escape(REQUEUE_AFTER_CANCEL_MARK)}(\d{{1,10}})(?:\s|$)")

WITHOUT_HOST = "runs without its batch host"

WITHOUT_SCRIPT = "runs without its batch script on"

_LISTS_BATCH_STEPS = (22, 5)
"""The first version of Slurm known to list the batch step of every running job."""

_SCRIPT_STARTS_WITHIN = 120.0
"""Seconds from a job's start within which its batch step may not be listed yet; the Prolog has ended before."""


@dataclass(frozen=True)
class Orphan:
    """A job that nobody else puts back into the queue.

    job_id: a plain number or an array's task (`11_2`); host: its batch host; requeue: whether Slurm may put it back
    into the queue; reason: the verb of a sentence between the job and its host (it `runs without its batch host`, or it
    left the host); comment: what its comment is to be afterwards, None: as it is; owner: the number of its user.
    """

    job_id: str
    host: str
    requeue: bool
    reason: str = WITHOUT_HOST
    comment: Optional[str] = None
    owner: str = ""


def find_orphans(jobs: Sequence[Mapping[str, str]]) -> Tuple[List[Orphan], List[str]]:
    """Return the orphans among records of jobs, and a line about each record that could not be judged.

    A record that cannot be judged does not keep the others from being swept.
    """
    orphan_jobs: List[Orphan] = []
    problems: List[str] = []
    for job in jobs:
        try:
            orphan = _orphan(job)
        except ValueError as err:
            problems.append(f"job {job.get('JobId')}: {err}")
            continue
        if orphan:
            orphan_jobs.append(orphan)
    return orphan_jobs, problems


def _orphan(job: Mapping[str, str]) -> Optional[Orphan]:
    if job.get("HetJobOffset", "0") != "0":
        return None  # the script belongs to the leader of the heterogeneous job, so it alone is swept
    host, nodes, comment = job.get("BatchHost", ""), job.get("NodeList", ""), job.get("Comment", "")
    state, requeue, owner = job.get("JobState"), job.get("Requeue") == "1", job.get("UserId", "")
    if state == "FAILED" and AWAY_MARK in comment:
        return Orphan(
            JobId.from_record(job).slurm_id,
            host,
            requeue,
            "left a host without the checkpoint root,",
            comment.replace(AWAY_MARK, "").strip(),
            owner,
        )
    if state == "RUNNING" and job.get("BatchFlag") != "0" and host and nodes and host not in expand(nodes):
        return Orphan(JobId.from_record(job).slurm_id, host, requeue, owner=owner)
    return None


def find_jobs_without_script(
    runner: Runner, job_records: Sequence[Mapping[str, str]], now: float
) -> Tuple[List[Orphan], List[str]]:
    """Return the running jobs whose batch script is gone although their BatchHost is one of their nodes, and a line
    about what is not known.

    Slurm 22.05 keeps the record of such a job's batch step, with the node that was lost; 24.11 has none any more. A
    healthy job's is listed by both, also after a restart and a reconfiguration. `now`: Unix seconds.
    """
    try:
        node_by_job = control.query_batch_step_nodes(runner)
        suspects = [job for job in job_records if _lacks_script(job, node_by_job, now)]
        if not suspects or _squeue_version(runner) < _LISTS_BATCH_STEPS:
            return [], []
        # Jobs and steps were read one after the other: a job may have been requeued, and run elsewhere, in between.
        latest_records = {job.get("JobId"): job for job in jobs(runner)}
        node_by_job = control.query_batch_step_nodes(runner)
    except RunError as err:
        return [], [f"it is unknown whether a batch script has lost its node: {err.message}"]
    orphan_jobs: List[Orphan] = []
    for job in suspects:
        latest = latest_records.get(job.get("JobId"), {})
        if latest.get("Restarts") != job.get("Restarts") or not _lacks_script(latest, node_by_job, now):
            continue
        job_id = JobId.from_record(latest).slurm_id
        is_requeueable, nodes = latest.get("Requeue") == "1", latest.get("NodeList", "")
        orphan_jobs.append(Orphan(job_id, nodes, is_requeueable, WITHOUT_SCRIPT, owner=latest.get("UserId", "")))
    return orphan_jobs, []


def _lacks_script(job: Mapping[str, str], node_by_job: Mapping[str, str], now: float) -> bool:
    """Return whether a running batch job has no batch step on one of its nodes; of a heterogeneous job, its leader."""
    if job.get("HetJobOffset", "0") != "0" or job.get("JobState") != "RUNNING" or job.get("BatchFlag") != "1":
        return False
    started_at = control.parse_slurm_time_or_zero(job.get("StartTime", ""))
    if not started_at or now - started_at < _SCRIPT_STARTS_WITHIN:
        return False
    try:
        nodes = expand(job.get("NodeList", ""))
    except ValueError:
        return False
    return bool(nodes) and node_by_job.get(JobId.from_record(job).slurm_id) not in nodes


def _squeue_version(runner: Runner) -> Tuple[int, int]:
    """Return the version of squeue, (0, 0) when it does not say. Raises RunError."""
    done = runner.run(["squeue", "--version"], timeout=control.DEADLINE)
    match = re.search(r"(\d{2})\.(\d{2})", done.stdout)
    if match is None:
        return 0, 0
    return int(match.group(1)), int(match.group(2))


@dataclass(frozen=True)
class CancelledInHang:
    """A job whose `job run` asked to be queued again after a cancel, if it was by the user `uid`, at `ended_at` (Unix
    seconds)."""

    job: JobId
    orphan: Orphan
    uid: int
    ended_at: float


def find_cancelled_in_hang(job_records: Sequence[Mapping[str, str]]) -> List[CancelledInHang]:
    """Return the cancelled jobs that asked to be queued again: by their exit code, and by a mark in their comment."""
    cancelled: List[CancelledInHang] = []
    for job in job_records:
        is_part = job.get("HetJobOffset", "0") != "0"
        if is_part or job.get("JobState") != "CANCELLED" or _exit_code(job) != ExitCode.CANCELLED_IN_HANG:
            continue
        match = _REQUEUE_AFTER_CANCEL.search(job.get("Comment", ""))
        if match is None:
            continue
        job_id, uid = JobId.from_record(job), int(match.group(1))
        reason = f"was cancelled by uid {uid} while its ranks hung, batch host"
        is_requeueable, owner = job.get("Requeue") == "1", job.get("UserId", "")
        orphan = Orphan(job_id.slurm_id, job.get("BatchHost", ""), is_requeueable, reason, owner=owner)
        cancelled.append(CancelledInHang(job_id, orphan, uid, control.parse_slurm_time_or_zero(job.get("EndTime", ""))))
    return cancelled


def _exit_code(job: Mapping[str, str]) -> int:
    """Return the exit code in the record of a job: `85:0`, or a wait status (20.11, 22.05). -1 for neither."""
    code, colon, _ = job.get("ExitCode", "").partition(":")
    if not code.isdigit() or len(code) > 9:
        return -1
    if colon:
        return int(code)
    return int(code) >> 8


def confirm_cancels(runner: Runner, cancelled: Sequence[CancelledInHang]) -> Tuple[List[Orphan], List[str]]:
    """Return those that the user of their option has cancelled, and nobody else, and lines about those of which that is
    not known. The others stay cancelled."""
    if not cancelled:
        return [], []
    log, problem = "", "slurmctld's log does not show by whom"
    try:
        log = cancel_requests.read_log_tail(runner)
    except (RunError, Unreachable) as err:
        problem = err.message
    confirmed: List[Orphan] = []
    problems: List[str] = []
    for candidate in cancelled:
        uids = cancel_requests.uids_of_cancel(log, candidate.job, candidate.ended_at)
        if uids == {candidate.uid}:
            confirmed.append(candidate.orphan)
        elif not uids:
            problems.append(f"job {candidate.job} was cancelled while its ranks hung, and stays cancelled: {problem}")
    return confirmed, problems


def sweep(runner: Runner, orphan_jobs: Sequence[Orphan]) -> List[Tuple[Orphan, str]]:
    """Put the orphans back into the queue; returns each with what was wrong, "" when it is done."""
    done: List[Tuple[Orphan, str]] = []
    for orphan in orphan_jobs:
        if not orphan.requeue:
            done.append((orphan, f"it was submitted with --no-requeue: scancel {orphan.job_id}, and submit it again"))
            continue
        owner = ""
        if orphan.owner:
            owner = f"uid {orphan.owner}"
        try:
            control.requeue(runner, JobId.parse(orphan.job_id))
            audit.record_root_action_in_journal(
                "requeued",
                f"job {orphan.job_id}",
                f"it {orphan.reason} {orphan.host}",
                asked_by="job sweep",
                owner=owner,
            )
            if orphan.comment is not None:
                control.set_comment(runner, JobId.parse(orphan.job_id), orphan.comment)
            done.append((orphan, ""))
        except RunError as err:
            done.append((orphan, err.message))
    return done


def jobs(runner: Runner) -> List[Mapping[str, str]]:
    """Return the records of all jobs that slurmctld knows. Raises RunError."""
    return list(records.query_squeue(runner, fields=_SWEPT_FIELDS))
