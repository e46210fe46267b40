"""Create a cluster: the request, what must be true before it is sent, and the call.

Creating a cluster that is there already and is what was asked for is no error: the first call's answer may have been
lost on the way, or the first run was stopped after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from hyperpod_kit.aws import request_shape
from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.bundle.render import Bundle, render
from hyperpod_kit.bundle.stored import THREADS
from hyperpod_kit.bundle.upload import require_uploaded
from hyperpod_kit.cluster import update
from hyperpod_kit.cluster.command_arguments import live_cluster_arguments
from hyperpod_kit.config.emit import build_create_cluster_request
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.errors import AwsError, ClusterError, ConfigError
from hyperpod_kit.untrusted.text import counted


@dataclass(frozen=True)
class CreationPlan:
    """`request`: what CreateCluster gets; `bundle`: what its nodes will run, None in ami_only mode."""

    request: dict[str, Any]
    bundle: Optional[Bundle]


def render_bundle_and_check_request(settings: Settings) -> CreationPlan:
    """Return the rendered bundle and the CreateCluster request, checked offline against the installed
    botocore.

    Raises ConfigError, BundleError.
    """
    bundle = None
    if settings.entry_script:
        bundle = render(settings)
    source_uri = ""
    if bundle:
        source_uri = bundle.source_s3_uri
    request = build_create_cluster_request(settings, source_uri)
    refused = request_shape.find_request_problems("sagemaker", "CreateCluster", request)
    if refused:
        newer = [problem for problem in refused if problem.newer]
        hint = "correct the configuration"
        if newer:
            hint = "pip install -U boto3"
        raise ConfigError(
            f"CreateCluster of {request_shape.botocore_version()} would refuse the request",
            findings=[str(problem) for problem in refused],
            hint=hint,
        )
    return CreationPlan(request, bundle)


@dataclass(frozen=True)
class Created:
    """`existed`: the cluster was there already, and is what the request asks for."""

    arn: str
    existed: bool = False


def create_cluster_unless_same_exists(settings: Settings, planned: CreationPlan, sagemaker: SageMaker) -> Created:
    """Send the CreateCluster request; accept an existing cluster that is what the request asks for.

    Raises BundleError when the bundle is not uploaded, ClusterError when there is another cluster of
    that name, AwsError, Unreachable.
    """
    if planned.bundle is not None:
        bucket = Bucket(planned.bundle.bucket, settings.cluster.region, connections=THREADS)
        require_uploaded(planned.bundle, bucket)
    try:
        return Created(sagemaker.create_cluster(planned.request))
    except AwsError as err:
        if err.code != "ResourceInUse":
            raise
    live = sagemaker.describe_cluster(settings.cluster.name)
    _require_same_cluster(live, planned.request)
    return Created(live["ClusterArn"], existed=True)


def _require_same_cluster(live: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    name, status = request["ClusterName"], live["ClusterStatus"]
    if status in ("Failed", "Deleting"):
        reason = ""
        if live.get("FailureMessage"):
            reason = f": {live['FailureMessage']}"
        raise ClusterError(
            f"cluster {name} already exists with status {status}{reason}",
            hint=f"hyperpod-kit delete-cluster {live_cluster_arguments(live)} --wait, then repeat the command",
        )
    changes = update.plan_update(live, request).changes
    if changes:
        first = changes[0]
        raise ClusterError(
            f"cluster {name} already exists and differs from the configuration in {counted(len(changes), 'place')}, "
            f"first {first.field} of {first.where}: {update.format_value(first.before)} on AWS, "
            f"{update.format_value(first.after)} in the configuration",
            hint="hyperpod-kit update-cluster --dry-run shows all differences; or choose another name",
        )
