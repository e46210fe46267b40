"""storage plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional, TypeVar

import click

from hyperpod_kit.cli.terminal.options import json_option
from hyperpod_kit.errors import UsageError

if TYPE_CHECKING:
    from hyperpod_kit.storage.plan.calibration import Calibration
    from hyperpod_kit.storage.plan.facts import DataSet

Parsed = TypeVar("Parsed")
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--parameters", metavar="COUNT", help="Parameters of the model: 8.03B, 70B.")
@click.option("--ranks", type=click.IntRange(1), default=8, show_default=True, help="Number of processes, one per GPU.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of nodes.")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True, help="Type of the weights."
)
@click.option(
    "--optimizer",
    type=click.Choice(["adam", "sgd", "none"]),
    default="adam",
    show_default=True,
    help="Saved optimizer state: two moments, one, or none; with bf16 also an fp32 copy of the weights.",
)
@click.option(
    "--bytes-per-parameter",
    type=click.FloatRange(0.1),
    help="Size of the saved state; replaces --dtype and --optimizer.",
)
@click.option(
    "--writer",
    type=click.Choice(["hyperpod-kit", "dcp", "torch-save"]),
    default="hyperpod-kit",
    show_default=True,
    help="hyperpod-kit: every rank saves its part in the background. dcp: every rank saves its part and training "
    "waits. torch-save: rank 0 saves everything and training waits.",
)
@click.option(
    "--every", metavar="TIME", help="Interval between saves: 15min, 4h. Default: the interval that wastes least time."
)
@click.option(
    "--mtbf",
    metavar="TIME",
    help="Mean time between failures of the job. Default: that of the published cluster of the most similar size.",
)
@click.option("--ledger", type=FILE, metavar="FILE", help="Count the failures in this file, ROOT/.hpk/attempts.jsonl.")
@click.option(
    "--memory-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of failures after which the newest save is still in a node's memory.",
)
@click.option(
    "--restart", metavar="TIME", default="5min", show_default=True, help="Time from a failure to the first step."
)
@click.option(
    "--keep", type=click.IntRange(1), default=3, show_default=True, help="Number of checkpoints that are kept."
)
@click.option(
    "--network",
    type=click.FloatRange(0.1),
    default=100.0,
    show_default=True,
    help="Network bandwidth of a node in Gbit/s.",
)
@click.option(
    "--gpu-hour-price",
    type=click.FloatRange(0),
    default=0.0,
    help="US dollars per GPU-hour; lost hours are counted at this price.",
)
@click.option("--budget", type=click.FloatRange(0), help="Maximum US dollars per month for storage.")
@click.option(
    "--fsx-throughput",
    type=click.Choice(["125", "250", "500", "1000"]),
    help="Only this FSx throughput, in MB/s per TiB.",
)
@click.option("--efa", is_flag=True, help="FSx is used over EFA.")
@click.option(
    "--prefixes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of S3 prefixes that a checkpoint is spread over.",
)
@click.option("--mountpoint-memory", metavar="SIZE", help="Mountpoint's --memory-target.")
@click.option(
    "--mountpoint-part-size",
    type=click.IntRange(8, 5120),
    metavar="MIB",
    help="Mountpoint's part size; default: as large as needed.",
)
@click.option("--data-size", metavar="SIZE", help="Size of the training data: 100GB, 570KiB.")
@click.option("--data-files", type=click.IntRange(1), help="Number of files of the training data.")
@click.option("--data-rows", metavar="COUNT", help="Number of samples of the training data.")
@click.option(
    "--rows-per-second", type=click.FloatRange(0), default=0.0, help="Samples that training reads per second."
)
@click.option("--data-binary", is_flag=True, help="The data are images or similar files, which cannot be merged.")
@click.option("--calibration", metavar="FILE", help="Output of `storage bench`, or `seed` for the published tables.")
@click.option("--prices", type=FILE, metavar="FILE", help="Your own prices with their dates, in JSON.")
@json_option
def plan(
    parameters: Optional[str],
    ranks: int,
    nodes: int,
    dtype: str,
    optimizer: str,
    bytes_per_parameter: Optional[float],
    writer: str,
    every: Optional[str],
    mtbf: Optional[str],
    ledger: Optional[Path],
    memory_share: float,
    restart: str,
    keep: int,
    network: float,
    gpu_hour_price: float,
    budget: Optional[float],
    fsx_throughput: Optional[str],
    efa: bool,
    prefixes: int,
    mountpoint_memory: Optional[str],
    mountpoint_part_size: Optional[int],
    data_size: Optional[str],
    data_files: Optional[int],
    data_rows: Optional[str],
    rows_per_second: float,
    data_binary: bool,
    calibration: Optional[str],
    prices: Optional[Path],
    as_json: bool,
) -> int:
    """Plan which storage to use, how often to save, and what it costs.

    The plan has the size of a checkpoint; for each kind of storage how long a save takes, how long training waits for
    it and how often to save; the cheapest option that does not slow training, with its configuration; and all
    assumptions. Requests are counted in cost and in time. AWS is not called. Without a calibration, times are wide
    ranges.

    With --calibration and without --parameters, each measured time is printed beside the predicted one.

    The exit code is 1 when no storage meets the requirements.

    \b
    Examples:
      hyperpod-kit storage plan --parameters 8.03B --writer torch-save --every 4h --calibration seed
      hyperpod-kit storage plan --parameters 70B --dtype bf16 --ranks 512 --nodes 64 --calibration calibration.json
      hyperpod-kit storage plan --parameters 8B --data-size 100GB --data-files 183960
      hyperpod-kit storage plan --calibration seed  # the published tables with their errors
    """
    from hyperpod_kit.cli.views import storage_plan_show as show
    from hyperpod_kit.storage.plan import facts as fact_parsers
    from hyperpod_kit.storage.plan import failures, plan
    from hyperpod_kit.storage.plan import prices as price_list

    measurements = _load_calibration(calibration)
    if parameters is None:
        if measurements is None:
            raise UsageError(
                "specify a model", hint="--parameters 8B, or --calibration FILE alone to compare it with predictions"
            )
        show.print_calibration_against_predictions(measurements, as_json, include_streaming_times=calibration == "seed")
        return 0
    if ledger is not None and mtbf is not None:
        raise UsageError("--mtbf and --ledger both set how often the job fails", hint="specify one of them")
    if ledger is not None:
        between, source = failures.measure_mtbf_seconds_from_ledger(ledger), f"counted in {ledger}"
    elif mtbf is not None:
        between, source = fact_parsers.parse_seconds(mtbf), "as given"
    else:
        between, source = failures.estimate_mtbf_seconds_from_fleets(ranks)
    facts = fact_parsers.JobFacts(
        fact_parsers.parse_count(parameters),
        ranks,
        nodes,
        between,
        dtype,
        optimizer,
        bytes_per_parameter,
        fact_parsers.PlannedWriter(writer),
        _parse_if_given(fact_parsers.parse_seconds, every),
        memory_share,
        fact_parsers.parse_seconds(restart),
        keep,
        network * 1e9 / 8,
        gpu_hour_price,
        budget,
        _parse_if_given(int, fsx_throughput),
        _parse_if_given(fact_parsers.parse_size, mountpoint_memory),
        mountpoint_part_size,
        _parse_data_set(data_size, data_files, data_rows, rows_per_second, data_binary),
        source,
        prefixes,
        efa,
    )
    made = plan.make_plan(facts, measurements, price_list.load_prices_over_defaults(prices) if prices else None)
    show.print_plan(made, as_json)
    if made.chosen is not None:
        return 0
    return 1


def _parse_if_given(parse: Callable[[str], Parsed], text: Optional[str]) -> Optional[Parsed]:
    """The value of an option, None where it was not given."""
    if not text:
        return None
    return parse(text)


def _load_calibration(file_or_seed: Optional[str]) -> Optional[Calibration]:
    from hyperpod_kit.storage.plan import calibration, seeds

    if file_or_seed is None:
        return None
    if file_or_seed == "seed":
        return seeds.CHECKPOINTS
    return calibration.load(Path(file_or_seed))


def _parse_data_set(
    size: Optional[str], files: Optional[int], rows: Optional[str], pace: float, binary: bool
) -> Optional[DataSet]:
    from hyperpod_kit.storage.plan import facts as fact_parsers

    if size is None and files is None and rows is None:
        return None
    if size is None or files is None:
        raise UsageError("a data set requires a size and a number of files", hint="--data-size 100GB --data-files 1000")
    if pace and rows is None:
        raise UsageError("--rows-per-second requires --data-rows", hint="--data-rows 90M")
    row_count = 0.0
    if rows:
        row_count = fact_parsers.parse_count(rows)
    return fact_parsers.DataSet(fact_parsers.parse_size(size), files, row_count, pace, not binary)
