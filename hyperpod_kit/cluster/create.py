"""Create a cluster: the request, what must be true before it is sent, and the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from hyperpod_kit.aws import request_shape
from hyperpod_kit.aws.s3 import Bucket
from hyperpod_kit.aws.sagemaker import SageMaker
from hyperpod_kit.bundle.render import Bundle, render
from hyperpod_kit.bundle.upload import require_uploaded
from hyperpod_kit.config.emit import create_cluster_request
from hyperpod_kit.config.settings import Settings
from hyperpod_kit.errors import ConfigError


@dataclass(frozen=True)
class Plan:
    """`request`: what CreateCluster gets; `bundle`: what its nodes will run, None in ami_only mode."""

    request: dict[str, Any]
    bundle: Optional[Bundle]


def plan(settings: Settings) -> Plan:
    """The request for this configuration, checked offline against the installed botocore.

    Raises ConfigError, BundleError.
    """
    bundle = render(settings) if settings.entry_script else None
    request = create_cluster_request(settings, bundle.source_s3_uri if bundle else "")
    refused = request_shape.problems("sagemaker", "CreateCluster", request)
    if refused:
        newer = [problem for problem in refused if problem.newer]
        raise ConfigError(
            f"CreateCluster of {request_shape.version()} would refuse the request",
            findings=[str(problem) for problem in refused],
            hint="pip install -U boto3" if newer else "correct the configuration",
        )
    return Plan(request, bundle)


def create(settings: Settings, planned: Plan, sagemaker: SageMaker) -> str:
    """Send the request; the cluster's ARN.

    Raises BundleError when the bundle is not uploaded, AwsError, Unreachable.
    """
    if planned.bundle is not None:
        require_uploaded(planned.bundle, Bucket(planned.bundle.bucket, settings.cluster.region))
    return sagemaker.create_cluster(planned.request)
