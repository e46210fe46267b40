"""init."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

import click

from hyperpod_kit.cli.terminal.options import config_argument, validate_cluster_name
from hyperpod_kit.cli.terminal.output import print_to_stderr
from hyperpod_kit.config.starting.init_answers import QUESTIONS, Answers, Question, parse_whole_number, parse_yes_no
from hyperpod_kit.errors import HyperpodKitError, UsageError

if TYPE_CHECKING:
    from hyperpod_kit.config.importing.from_aws import ImportedConfiguration

FILE = click.Path(path_type=Path, dir_okay=False)
_TYPES: dict[Callable[[str], Any], click.IntRange] = {parse_whole_number: click.IntRange(0)}


def _add_question_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a click option for each question to a command."""
    for question in reversed(QUESTIONS):
        if question.convert is parse_yes_no:
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
@click.option("--from-example", is_flag=True, help="Write the complete example, which `rehearse` uses too.")
@click.option(
    "--from-cluster",
    metavar="NAME",
    callback=validate_cluster_name,
    help="Start from an existing cluster (DescribeCluster).",
)
@click.option(
    "--from-cluster-config",
    type=FILE,
    metavar="FILE",
    help="Start from the JSON of CreateCluster, of its instance groups, or of describe-cluster.",
)
@click.option("--from-parameters", type=FILE, metavar="FILE", help="Start from a provisioning_parameters.json of AWS.")
@click.option(
    "--scripts",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the cluster's existing lifecycle scripts as custom scripts. With --from-cluster they are downloaded "
    "to DIR; otherwise they are read from DIR.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@_add_question_options
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
    """Create a configuration file.

    On a terminal, the command asks for every value that the options leave open, and explains each question. Elsewhere
    the options must give all of them. --from-example needs no other option. An existing file is overwritten only with
    --force. The exit code is 1 when the file that was written has errors.

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
    from hyperpod_kit.bundle.sources import read_example_configuration
    from hyperpod_kit.cli.bundle import legacy_scripts
    from hyperpod_kit.config.starting import questions, starter

    if config.exists() and not force:
        raise starter.file_exists_error(config)
    if from_example:
        values = read_example_configuration()
    else:
        imported = _import_existing_configuration(from_cluster, from_cluster_config, from_parameters, flags["region"])
        earlier = legacy_scripts.classify_available_legacy_scripts(
            imported.source,
            imported.entry,
            scripts,
            config,
            is_cluster_live=from_cluster is not None,
            region=flags["region"],
        )
        for line in earlier.lines if earlier else ():
            print_to_stderr(f"  {line}")
        for note in (*imported.notes, *(earlier.notes if earlier else ())):
            print_to_stderr(f"not carried over: {note}")
        if _is_region_from_environment() and "region" in imported.values.get("hyperpod_kit", {}).get("cluster", {}):
            flags["region"] = None
        answers = Answers(
            **{question.key: _convert_flag_value(question, flags[question.key]) for question in QUESTIONS}
        )
        missing = questions.missing_required_flags(imported.values, answers)
        if missing and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                f"init requires {', '.join(missing)}",
                hint="specify them, or start from the example: hyperpod-kit init --from-example",
            )
        if missing:
            answers = _prompt_for_missing_answers(imported.values, answers)
        values = starter.copy_with_answers_and_defaults(imported.values, answers)
        if earlier:
            for note in starter.add_legacy_scripts_users_and_steps(values, earlier):
                print_to_stderr(f"not carried over: {note}")
    starter.write_configuration(config, values, force=force)
    return _check_and_print_findings(config)


def _is_region_from_environment() -> bool:
    """Return whether --region was not typed but comes from the environment: an imported cluster's own
    region then counts more."""
    source = click.get_current_context().get_parameter_source("region")
    return source is click.core.ParameterSource.ENVIRONMENT


def _prompt_for_missing_answers(base: dict[str, Any], answers: Any) -> Any:
    from hyperpod_kit.cli.terminal.prompts import ask_unanswered_questions

    try:
        return ask_unanswered_questions(base, answers)
    except (click.Abort, KeyboardInterrupt):
        print_to_stderr("\nnothing was written")
        raise


def _import_existing_configuration(
    cluster_name: Optional[str],
    cluster_config_file: Optional[Path],
    parameters_file: Optional[Path],
    region: Optional[str],
) -> ImportedConfiguration:
    """Read what there is already. Raises UsageError, ConfigError, AwsError, Unreachable."""
    from hyperpod_kit.config.importing.from_aws import (
        ImportedConfiguration,
        first_lifecycle_scripts_uri,
        import_configuration,
    )
    from hyperpod_kit.config.reading import document

    if cluster_name is not None and cluster_config_file is not None:
        raise UsageError("--from-cluster and --from-cluster-config exclude each other: choose one")
    if cluster_name is None and cluster_config_file is None and parameters_file is None:
        return ImportedConfiguration({}, ())
    if parameters_file is None:
        aws_parameters = None
    else:
        aws_parameters = document.read_values(parameters_file)
    if cluster_name is None:
        if cluster_config_file is None:
            described_cluster = None
        else:
            described_cluster = document.read_values(cluster_config_file)
        return import_configuration(described_cluster, aws_parameters)
    from hyperpod_kit.aws.sagemaker import SageMaker

    # As JSON has it: dates are texts.
    live = json.loads(json.dumps(SageMaker(region).describe_cluster(cluster_name), default=str))
    if aws_parameters is None and not any("SlurmConfig" in group for group in live.get("InstanceGroups", ())):
        aws_parameters = _download_provisioning_parameters(first_lifecycle_scripts_uri(live), region)
    return import_configuration(live, aws_parameters)


def _download_provisioning_parameters(scripts_uri: Optional[str], region: Optional[str]) -> Any:
    """Download provisioning_parameters.json from beside the lifecycle scripts; None when it cannot be
    had.

    For a cluster without SlurmConfig only this file says which group has which role.
    """
    from hyperpod_kit.aws.s3 import Bucket

    bucket, _, prefix = (scripts_uri or "").partition("://")[2].partition("/")
    if not bucket:
        return None
    key = f"{prefix.rstrip('/')}/provisioning_parameters.json".lstrip("/")
    try:
        data = Bucket(bucket, region).get(key)
        if data is None:
            return None
        return json.loads(data)
    except (HyperpodKitError, ValueError) as err:
        print_to_stderr(f"not carried over: s3://{bucket}/{key}: {err}")
        return None


def _convert_flag_value(question: Question, given: Any) -> Any:
    """Convert what a flag was given to an answer. Raises UsageError."""
    if not question.several:
        return given
    try:
        return tuple(question.convert(text) for text in given)
    except ValueError as err:
        raise UsageError(f"{question.flag} {err}", hint=f"{question.flag} {question.metavar}") from err


def _check_and_print_findings(config: Path) -> int:
    """Print what the rules say about the new file, and what to type next; return the exit code."""
    from hyperpod_kit.config.load import check
    from hyperpod_kit.config.settings.findings import select_errors

    checked = check(config)
    findings = checked.findings
    for finding in findings:
        print_to_stderr(finding.render())
    ending = ""
    if findings:
        ending = "; see its findings above"
    print_to_stderr(f"wrote {config}" + ending)
    wrong = bool(select_errors(findings))
    if wrong:
        print_to_stderr(f"next: hyperpod-kit validate {config}")
    else:
        then = "upload"
        if checked.settings.owners_without_access_point:
            then = "users apply and upload"
        print_to_stderr(f"next: hyperpod-kit validate --aws {config}, then {then}")
    return int(wrong)
