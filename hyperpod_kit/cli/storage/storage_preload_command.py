"""storage preload."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Optional

import click

from hyperpod_kit.cli.terminal.options import json_option
from hyperpod_kit.errors import UsageError
from hyperpod_kit.untrusted.dataclass_json import dataclass_to_json
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.storage.preload.run import PreloadResult

EVERY = 15.0
"""Seconds between two lines of progress in a job's log."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("places", nargs=-1, metavar="PATH…")
@click.option(
    "--files-from", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="File with one path per line."
)
@click.option(
    "--workers", type=click.IntRange(1, 256), default=16, show_default=True, help="Number of files read in parallel."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="MIB", help="Maximum MiB read per second.")
@click.option(
    "--patience", type=click.FloatRange(1), default=3600, show_default=True, help="Maximum seconds without progress."
)
@click.option("--submit", is_flag=True, help="Run as a Slurm job.")
@click.option("--partition", metavar="NAME", help="Partition of the Slurm job: nodes without GPUs.")
@click.option("--sbatch", "more", multiple=True, metavar="WORD", help="Additional argument for sbatch; repeatable.")
@click.option("--then", metavar="SBATCH-LINE", help="Arguments of sbatch for the dependent job; implies --submit.")
@click.option("--dry-run", is_flag=True, help="Show what would be loaded or submitted, and change nothing.")
@json_option
def preload(
    places: tuple[str, ...],
    files_from: Optional[Path],
    workers: int,
    rate: Optional[float],
    patience: float,
    submit: bool,
    partition: Optional[str],
    more: tuple[str, ...],
    then: Optional[str],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Load files into fast storage before a job with GPUs starts.

    On Lustre with a linked bucket, released files are restored, and the command waits until they are present. On other
    mounts every byte is read once, to fill caches: Mountpoint with a cache, S3 Files. Use `data stage` to copy a
    bucket to another file system. The command can be stopped and repeated: files that are already on Lustre are
    skipped.

    With --then the preload is a Slurm job on CPU nodes, and the dependent job starts when all files are present;
    otherwise Slurm cancels it.

    The exit code is 1 when a file is missing at the end; each one is named.

    \b
    Examples:
      hyperpod-kit storage preload /fsx/corpus
      hyperpod-kit storage preload /fsx/corpus --dry-run
      hyperpod-kit storage preload /fsx/corpus --partition cpu --then "--auto-resume=1 train.sbatch"
      hyperpod-kit storage preload --files-from shards.txt --rate 500
    """
    from hyperpod_kit.run import LocalRunner

    if not places and files_from is None:
        raise UsageError("specify the files", hint="PATH…, or --files-from FILE")
    if not (submit or then) and (partition or more):
        raise UsageError("--partition and --sbatch require a job", hint="add --submit, or --then SBATCH-LINE")
    if submit or then:
        return _submit_preload_job(
            _preload_command_line(places, files_from, workers, rate, patience), partition, more, then, dry_run, as_json
        )
    from hyperpod_kit.cli.terminal.output import print_json, print_text
    from hyperpod_kit.cli.views.storage_usage_show import format_size
    from hyperpod_kit.storage.preload import files, run

    listed = files.list_files(places, files_from)
    ways = run.group_files_by_hsm_or_read_through(listed)
    if dry_run:
        counts = {way: len(of) for way, of in ways.items() if of}
        if as_json:
            print_json(
                "storage preload",
                {
                    "files": len(listed.files),
                    "size": listed.total_bytes,
                    "ways": counts,
                    "unread": listed.unread,
                    "dry_run": True,
                },
            )
        else:
            print_text(
                f"{counted(len(listed.files), 'file', spec=',')}, {format_size(listed.total_bytes)}: "
                + ", ".join(f"{n:,} {way}" for way, n in counts.items())
            )
        if listed.unread:
            return 1
        return 0
    with _throttled_progress() as report_progress:
        bytes_a_second = None
        if rate:
            bytes_a_second = rate * 2**20
        done = run.run_preload(
            listed, ways, LocalRunner(), report_progress, workers=workers, rate=bytes_a_second, patience=patience
        )
    if as_json:
        print_json("storage preload", done.to_json())
    else:
        _print_preload_result(done)
    if done.is_complete:
        return 0
    return 1


def _preload_command_line(
    places: tuple[str, ...], files_from: Optional[Path], workers: int, rate: Optional[float], patience: float
) -> list[str]:
    """Make the same command for the job: absolute paths, and the program that runs here."""
    program = shutil.which("hyperpod-kit", path=str(Path(sys.executable).parent))
    if program:
        start = [program]
    else:
        start = [sys.executable, "-m", "hyperpod_kit.cli.main"]
    command = [*start, "storage", "preload", *(str(Path(path).absolute()) for path in places)]
    if files_from is not None:
        command += ["--files-from", str(files_from.absolute())]
    command += ["--workers", str(workers), "--patience", str(patience)]
    if rate:
        command += ["--rate", str(rate)]
    return command


def _submit_preload_job(
    command: list[str],
    partition: Optional[str],
    more: tuple[str, ...],
    then: Optional[str],
    dry_run: bool,
    as_json: bool,
) -> int:
    import shlex

    from hyperpod_kit.cli.terminal.output import print_json, print_text, print_to_stderr
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.storage.preload import jobs

    first = jobs.build_preload_sbatch_argv(command, partition, more)
    try:
        if then:
            behind = shlex.split(then)
        else:
            behind = []
    except ValueError as err:
        raise UsageError(f"--then {then!r}: {err}") from err
    if dry_run:
        second = None
        if behind:
            second = ["sbatch", "--dependency=afterok:PRELOAD", "--kill-on-invalid-dep=yes", *behind]
        if as_json:
            print_json("storage preload", {"dry_run": True, "preload": first, "job": second})
        else:
            print_text(shlex.join(first))
            if second:
                print_text(shlex.join(second))
        return 0
    done = jobs.submit_jobs(LocalRunner(), first, behind)
    if as_json:
        print_json("storage preload", dataclass_to_json(done))
    else:
        job_text = ""
        if done.job:
            job_text = f", then job {done.job}"
        print_text(f"preload {done.preload}" + job_text)
        print_to_stderr(f"next: tail -f slurm-{done.preload}.out")
    return 0


def _print_preload_result(done: PreloadResult) -> None:
    from hyperpod_kit.cli.terminal.output import print_text, print_to_stderr
    from hyperpod_kit.cli.views.storage_usage_show import format_size

    for way, count in done.ways.items():
        print_text(f"{counted(count, 'file', spec=',')} {way}")
    for path, reason in list(done.failed.items())[:20]:
        print_to_stderr(f"{path}: {reason}")
    if len(done.failed) > 20:
        print_to_stderr(f"and {len(done.failed) - 20:,} more; --json lists them")
    for sentence in done.unread[:20]:
        print_to_stderr(f"{sentence}: the files in it were not preloaded")
    here = done.files - len(done.failed)
    print_text(f"{here:,} of {done.files:,} files are loaded, {format_size(done.size)} in total")


@contextmanager
def _throttled_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress: on a terminal the last one with a spinner, in a
    job's log one every EVERY seconds."""
    from hyperpod_kit.cli.terminal.output import live_status

    last = 0.0
    with live_status() as show:

        def report_progress(line: str) -> None:
            nonlocal last
            now = time.monotonic()
            if sys.stderr.isatty() or now - last >= EVERY:
                last = now
                show(line)

        yield report_progress
