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
@click.option("--parameters", metavar="COUNT", help="Of the model: 8.03B, 70B.")
@click.option("--ranks", type=click.IntRange(1), default=8, show_default=True, help="Processes, one a GPU.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes that the ranks are on.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True, help="Of the weights.")
@click.option(
    "--optimizer",
    type=click.Choice(["adam", "sgd", "none"]),
    default="adam",
    show_default=True,
    help="What is saved of it: two moments, one, nothing; with bf16 an fp32 copy of the weights too.",
)
@click.option("--bytes-per-parameter", type=click.FloatRange(0.1), help="Instead of --dtype and --optimizer.")
@click.option(
    "--writer",
    type=click.Choice(["hyperpod-kit", "dcp", "torch-save"]),
    default="hyperpod-kit",
    show_default=True,
    help="Who saves. hyperpod-kit: every rank its part, behind training's back. dcp: every rank its part, training "
    "waits. torch-save: rank 0 alone, training waits.",
)
@click.option("--every", metavar="TIME", help="Save that often: 15min, 4h. Default: as often as wastes least.")
@click.option(
    "--mtbf",
    metavar="TIME",
    help="Time between two failures of the whole job. Default: as the published fleet nearest in size.",
)
@click.option("--ledger", type=FILE, metavar="FILE", help="Count failures in this file: ROOT/.hpk/attempts.jsonl.")
@click.option(
    "--memory-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of failures after which the newest save is still in some node's memory.",
)
@click.option("--restart", metavar="TIME", default="5min", show_default=True, help="From a failure to the first step.")
@click.option("--keep", type=click.IntRange(1), default=3, show_default=True, help="Checkpoints that stay.")
@click.option("--network", type=click.FloatRange(0.1), default=100.0, show_default=True, help="Gbit/s of a node.")
@click.option("--gpu-hour-price", type=click.FloatRange(0), default=0.0, help="US dollars; weighs lost hours too.")
@click.option("--budget", type=click.FloatRange(0), help="US dollars a month for storage, at most.")
@click.option("--fsx-throughput", type=click.Choice(["125", "250", "500", "1000"]), help="MB/s a TiB, no other.")
@click.option("--efa", is_flag=True, help="FSx is reached by EFA: its sizes, and a node's rate.")
@click.option(
    "--prefixes", type=click.IntRange(1), default=1, show_default=True, help="Of S3 that a checkpoint is spread over."
)
@click.option("--mountpoint-memory", metavar="SIZE", help="Mountpoint's --memory-target, which limits open files.")
@click.option("--mountpoint-part-size", type=click.IntRange(8, 5120), metavar="MIB", help="As it is; default: enough.")
@click.option("--data-size", metavar="SIZE", help="Of the training data: 100GB, 570KiB.")
@click.option("--data-files", type=click.IntRange(1), help="Files of the training data.")
@click.option("--data-rows", metavar="COUNT", help="Samples of the training data.")
@click.option("--rows-per-second", type=click.FloatRange(0), default=0.0, help="Samples that training consumes.")
@click.option("--data-binary", is_flag=True, help="Images and the like: files that stay as they are.")
@click.option("--calibration", metavar="FILE", help="What `storage bench` measured; `seed`: the published tables.")
@click.option("--prices", type=FILE, metavar="FILE", help="Prices of your own, JSON, each with its date.")
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
    """Which storage, how often to save, and what it costs.

    Says how large a checkpoint is, how long a save takes on each kind of storage and how long training waits for it,
    how often to save, which kind is the cheapest that is no bottleneck, and the result as configuration, with
    everything that was assumed. Requests are counted in money and in time. Nothing is asked of AWS. Times without a
    calibration are wide bands.

    With --calibration and without --parameters, each measured time is printed beside the predicted one.

    Exit code 1 when no storage can be taken as asked.

    \b
    Examples:
      hyperpod-kit storage plan --parameters 8.03B --writer torch-save --every 4h --calibration seed
      hyperpod-kit storage plan --parameters 70B --dtype bf16 --ranks 512 --nodes 64 --calibration calibration.json
      hyperpod-kit storage plan --parameters 8B --data-size 100GB --data-files 183960
      hyperpod-kit storage plan --calibration seed  # the published tables, with the errors
    """
    from hyperpod_kit.cli.views import storage_plan_show as show
    from hyperpod_kit.storage.plan import facts as fact_parsers
    from hyperpod_kit.storage.plan import failures, plan
    from hyperpod_kit.storage.plan import prices as price_list

    measurements = _load_calibration(calibration)
    if parameters is None:
        if measurements is None:
            raise UsageError(
                "a plan for which model?", hint="--parameters 8B; or --calibration FILE, to see what it predicts"
            )
        show.print_calibration_against_predictions(measurements, as_json, include_streaming_times=calibration == "seed")
        return 0
    if ledger is not None and mtbf is not None:
        raise UsageError("--mtbf says how often the job fails, and so does --ledger", hint="name one of them")
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
        raise UsageError("a data set has a size and a number of files", hint="--data-size 100GB --data-files 1000")
    if pace and rows is None:
        raise UsageError(
            "how much training reads follows from --data-rows and --rows-per-second", hint="--data-rows 90M"
        )
    row_count = 0.0
    if rows:
        row_count = fact_parsers.parse_count(rows)
    return fact_parsers.DataSet(fact_parsers.parse_size(size), files, row_count, pace, not binary)
