"""init."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import click

from hyperpod_kit.cli.options import config_argument, named_cluster
from hyperpod_kit.cli.output import say
from hyperpod_kit.config.init_answers import QUESTIONS, Answers, Question, whole_number, yes
from hyperpod_kit.errors import HyperpodKitError, UsageError

if TYPE_CHECKING:
    from hyperpod_kit.config.from_aws import ImportedConfiguration

FILE = click.Path(path_type=Path, dir_okay=False)
_TYPES: dict[Callable[[str], Any], click.IntRange] = {whole_number: click.IntRange(0)}


def _answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A flag for each question."""
    for question in reversed(QUESTIONS):
        if question.convert is yes:
            flag = f"{question.flag}/--no-{question.flag[2:]}"
        else:
            flag = question.flag
        option_type: Optional[click.ParamType[Any]] = _TYPES.get(question.convert)
        if question.choices:
            option_type = click.Choice(question.choices)
        command = click.option(
            flag,
            question.key,
            type=option_type,
            default=None,
            multiple=question.several,
            metavar=question.metavar,
            envvar=question.envvar,
            show_envvar=question.envvar is not None,
            help=question.help,
        )(command)
    return command


@click.command()
@config_argument
@click.option("--from-example", is_flag=True, help="Write the complete example as it is; it is what `rehearse` uses.")
@click.option(
    "--from-cluster",
    metavar="NAME",
    callback=named_cluster,
    help="Begin with a cluster that there is: asks DescribeCluster.",
)
@click.option(
    "--from-cluster-config",
    type=FILE,
    metavar="FILE",
    help="Begin with the JSON of CreateCluster, of its instance groups, or of describe-cluster.",
)
@click.option("--from-parameters", type=FILE, metavar="FILE", help="Begin with AWS's own provisioning_parameters.json.")
@click.option(
    "--scripts",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the cluster's earlier lifecycle scripts, as scripts of yours. With --from-cluster they are downloaded "
    "into DIR, otherwise DIR has them.",
)
@click.option("--force", is_flag=True, help="Write over an existing file.")
@_answer_options
def init(
    config: Path,
    from_example: bool,
    from_cluster: Optional[str],
    from_cluster_config: Optional[Path],
    from_parameters: Optional[Path],
    scripts: Optional[Path],
    force: bool,
    **flags: Any,
) -> int:
    """Write a configuration to start from.

    On a terminal it asks for what the flags leave open, and explains each question; anywhere else the flags have to
    say it all. With --from-example no other flag is needed. The file is never overwritten without --force.
    Exit code 1 when the file that was written has errors.

    \b
    Examples:
      hyperpod-kit init                                     # asks
      hyperpod-kit init --from-example
      hyperpod-kit init --from-cluster ml --region us-west-2
      hyperpod-kit init --from-cluster ml --region us-west-2 --scripts earlier
      hyperpod-kit init --from-cluster-config cluster.json --from-parameters aws.json --region us-west-2
      hyperpod-kit init --name ml --region us-west-2 --execution-role arn:aws:iam::111122223333:role/HyperPod \\
        --subnet subnet-0123456789abcdef0 --security-group sg-0123456789abcdef0 --workers 16
    """
    from hyperpod_kit.bundle.sources import example
    from hyperpod_kit.cli import legacy_scripts
    from hyperpod_kit.config import questions, starter

    if config.exists() and not force:
        raise starter.exists(config)
    if from_example:
        values = example()
    else:
        imported = _import(from_cluster, from_cluster_config, from_parameters, flags["region"])
        earlier = legacy_scripts.read_legacy_scripts(
            imported.source, imported.entry, scripts, config, live=from_cluster is not None, region=flags["region"]
        )
        for line in earlier.lines if earlier else ():
            say(f"  {line}")
        for note in (*imported.notes, *(earlier.notes if earlier else ())):
            say(f"not carried over: {note}")
        if _region_is_a_habit() and "region" in imported.values.get("hyperpod_kit", {}).get("cluster", {}):
            flags["region"] = None
        answers = Answers(**{question.key: _value(question, flags[question.key]) for question in QUESTIONS})
        missing = questions.needed(imported.values, answers)
        if missing and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                f"init needs {', '.join(missing)}",
                hint="give them, or start from the example: hyperpod-kit init --from-example",
            )
        if missing:
            answers = _interview(imported.values, answers)
        values = starter.fill(imported.values, answers)
        if earlier:
            for note in starter.add_legacy_scripts(values, earlier):
                say(f"not carried over: {note}")
    starter.write(config, values, force=force)
    return _report(config)


def _region_is_a_habit() -> bool:
    """Whether --region was not typed but comes from the environment: a cluster's own region counts more."""
    source = click.get_current_context().get_parameter_source("region")
    return source is click.core.ParameterSource.ENVIRONMENT


def _interview(base: dict[str, Any], answers: Any) -> Any:
    from hyperpod_kit.cli.prompts import interview

    try:
        return interview(base, answers)
    except (click.Abort, KeyboardInterrupt):
        say("\nnothing was written")
        raise


def _import(
    name: Optional[str], cluster: Optional[Path], parameters: Optional[Path], region: Optional[str]
) -> ImportedConfiguration:
    """Read what there is already. Raises UsageError, ConfigError, AwsError, Unreachable."""
    from hyperpod_kit.config import document
    from hyperpod_kit.config.from_aws import ImportedConfiguration, lifecycle_source, read_cluster

    if name is not None and cluster is not None:
        raise UsageError("--from-cluster and --from-cluster-config: one of them")
    if name is None and cluster is None and parameters is None:
        return ImportedConfiguration({}, ())
    if parameters is None:
        aws_parameters = None
    else:
        aws_parameters = document.values(parameters)
    if name is None:
        if cluster is None:
            described_cluster = None
        else:
            described_cluster = document.values(cluster)
        return read_cluster(described_cluster, aws_parameters)
    from hyperpod_kit.aws.sagemaker import SageMaker

    # As JSON has it: dates are texts.
    live = json.loads(json.dumps(SageMaker(region).describe_cluster(name), default=str))
    if aws_parameters is None and not any("SlurmConfig" in group for group in live.get("InstanceGroups", ())):
        aws_parameters = _legacy_file(lifecycle_source(live), region)
    return read_cluster(live, aws_parameters)


def _legacy_file(source: Optional[str], region: Optional[str]) -> Any:
    """provisioning_parameters.json beside the lifecycle scripts: of a legacy cluster only it knows who is who."""
    from hyperpod_kit.aws.s3 import Bucket

    bucket, _, prefix = (source or "").partition("://")[2].partition("/")
    if not bucket:
        return None
    key = f"{prefix.rstrip('/')}/provisioning_parameters.json".lstrip("/")
    try:
        data = Bucket(bucket, region).get(key)
        if data is None:
            return None
        return json.loads(data)
    except (HyperpodKitError, ValueError) as err:
        say(f"not carried over: s3://{bucket}/{key}: {err}")
        return None


def _value(question: Question, given: Any) -> Any:
    """Convert what a flag was given to an answer. Raises UsageError."""
    if not question.several:
        return given
    try:
        return tuple(question.convert(text) for text in given)
    except ValueError as err:
        raise UsageError(f"{question.flag} {err}", hint=f"{question.flag} {question.metavar}") from err


def _report(config: Path) -> int:
    """Print what the rules say about the new file, and what to type next; return the exit code."""
    from hyperpod_kit.config.findings import errors
    from hyperpod_kit.config.load import check

    checked = check(config)
    findings = checked.findings
    for finding in findings:
        say(finding.render())
    ending = ""
    if findings:
        ending = ", which has findings"
    say(f"wrote {config}" + ending)
    wrong = bool(errors(findings))
    if wrong:
        say(f"next: hyperpod-kit validate {config}")
    else:
        then = "upload"
        if checked.settings.homeless:
            then = "users apply and upload"
        say(f"next: hyperpod-kit validate --aws {config}, then {then}")
    return int(wrong)
