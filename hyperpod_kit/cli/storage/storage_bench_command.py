"""storage bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Optional

import click

from hyperpod_kit.cli.terminal.options import json_option
from hyperpod_kit.errors import UsageError

if TYPE_CHECKING:
    pass

WRITERS = ("hyperpod-kit", "dcp", "torch-save")


@click.command()
@click.argument("mounts", nargs=-1, required=True, metavar="MOUNT[=KIND]…")
@click.option(
    "--budget", metavar="SIZE", default="8GiB", show_default=True, help="Maximum bytes written to each mount."
)
@click.option(
    "--streams", metavar="COUNTS", default="1,2,4,8", show_default=True, help="Numbers of concurrent streams to try."
)
@click.option(
    "--ranks", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of processes that save."
)
@click.option(
    "--parameters",
    metavar="COUNT",
    help="Save the share of a checkpoint of a model of this size that --ranks of --of-ranks hold.",
)
@click.option("--of-ranks", type=click.IntRange(1), help="With --parameters: ranks of the whole job; default: --ranks.")
@click.option("--writer", "writers", type=click.Choice(WRITERS), multiple=True, help="Only this writer; repeatable.")
@click.option("--no-replay", is_flag=True, help="Measure only streams and files, without torch.")
@click.option(
    "--out",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Calibration file to write.",
)
@json_option
def bench(
    mounts: tuple[str, ...],
    budget: str,
    streams: str,
    ranks: int,
    parameters: Optional[str],
    of_ranks: Optional[int],
    writers: tuple[str, ...],
    no_replay: bool,
    output: Optional[Path],
    as_json: bool,
) -> int:
    """Measure mounts: supported operations, streams, small files, checkpoints.

    In a new directory below each MOUNT, one after the other, the command runs probes (rename, append, locks, access
    times); one stream and many, with fsync, bypassing the page cache where possible, and with fio too if it is
    installed; small files; and a checkpoint of --ranks processes saved by hyperpod-kit, DCP and torch.save, where the
    slowest rank counts. Measurements that would exceed the budget, or fill the mount above 80 %, are left out and
    named. Everything is removed at the end, also after Ctrl-C. --out writes a file for `storage plan
    --calibration`.

    KIND is the name of the mount in a plan (fsx-lustre, mountpoint-s3, efs, nvme); by default it is derived from the
    mount's type.

    The exit code is 1 when a measurement was left out.

    \b
    Examples:
      hyperpod-kit storage bench /fsx /opt/dlami/nvme=nvme --out calibration.json
      hyperpod-kit storage bench /fsx --parameters 70B --of-ranks 512 --ranks 8 --budget 60GiB
      hyperpod-kit storage bench /home/alice=efs --no-replay --budget 1GiB --json
    """
    from hyperpod_kit.cli.terminal.output import print_to_stderr
    from hyperpod_kit.cli.views import storage_bench_show as show
    from hyperpod_kit.storage.bench import run
    from hyperpod_kit.storage.bench.replays import ReplayRequest
    from hyperpod_kit.storage.plan import calibration, facts

    if output is not None and no_replay:
        raise UsageError("--out requires measured saves, and --no-replay measures none", hint="omit --no-replay")
    most = facts.parse_size(budget)
    chosen = writers or WRITERS
    size = most / 2 / 3 / len(chosen)
    if parameters is not None:
        size = facts.parse_count(parameters) * 12 / (of_ranks or ranks) * ranks
    if no_replay:
        replay_request = None
    else:
        replay_request = ReplayRequest(int(size), ranks, chosen)
    targets = [run.parse_mount(text) for text in mounts]
    reports = [
        run.measure_mount(target, most, _parse_stream_counts_ensuring_one(streams), replay_request, print_to_stderr)
        for target in targets
    ]
    if output is not None:
        calibration.save(run.to_calibration(reports), output)
    show.print_reports(reports, as_json)
    if output is not None:
        print_to_stderr(f"wrote {output}; next: hyperpod-kit storage plan --calibration {output}")
    if any(report.left_out for report in reports):
        return 1
    return 0


def _parse_stream_counts_ensuring_one(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        counts = ()
    if not counts or counts[0] < 1 or counts[-1] > 256:
        raise UsageError(f"--streams {text}: expected numbers from 1 to 256, such as 1,2,4,8")
    if counts[0] == 1:
        return counts
    return (1, *counts)
