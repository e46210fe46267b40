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
@click.option("--budget", metavar="SIZE", default="8GiB", show_default=True, help="Most bytes written to each mount.")
@click.option("--streams", metavar="COUNTS", default="1,2,4,8", show_default=True, help="Writers at once, in turn.")
@click.option("--ranks", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes that save.")
@click.option("--parameters", metavar="COUNT", help="Replay a checkpoint of such a model: its share of --of-ranks.")
@click.option("--of-ranks", type=click.IntRange(1), help="Ranks of the whole job, with --parameters; default: --ranks.")
@click.option("--writer", "writers", type=click.Choice(WRITERS), multiple=True, help="Only this one; may be repeated.")
@click.option("--no-replay", is_flag=True, help="Streams and files only: no torch is needed then.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The calibration.")
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
    """Measure mounts: what they can do, streams, small files, checkpoints.

    In a directory of its own below each MOUNT, one after the other: probes (rename, append, locks, access times), one
    stream and many with their fsync, past the page cache where the file system lets them, by fio too where it is
    installed; small files; and a checkpoint of --ranks processes saved by our engine, DCP and torch.save, the slowest
    rank counting. What would go past the budget, or fill the mount past 80 %, is left out and named. Nothing stays
    behind, also after Ctrl-C. --output writes what `storage plan --calibration` reads.

    KIND is the mount's name in a plan (fsx-lustre, mountpoint-s3, efs, nvme); by default it follows from its type.

    Exit code 1 when a measurement had to be left out.

    \b
    Examples:
      hyperpod-kit storage bench /fsx /opt/dlami/nvme=nvme --output calibration.json
      hyperpod-kit storage bench /fsx --parameters 70B --of-ranks 512 --ranks 8 --budget 60GiB
      hyperpod-kit storage bench /home/alice=efs --no-replay --budget 1GiB --json
    """
    from hyperpod_kit.cli.terminal.output import print_to_stderr
    from hyperpod_kit.cli.views import storage_bench_show as show
    from hyperpod_kit.storage.bench import run
    from hyperpod_kit.storage.bench.replays import ReplayRequest
    from hyperpod_kit.storage.plan import calibration, facts

    if output is not None and no_replay:
        raise UsageError("--output is made from saves, and --no-replay makes none", hint="without --no-replay")
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
