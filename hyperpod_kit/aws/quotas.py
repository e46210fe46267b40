"""Service Quotas of SageMaker and what of them is in use: read-only calls; errors are ours."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Optional, Sequence

from hyperpod_kit.aws import responses
from hyperpod_kit.aws.errors import NOT_FOUND, translate_aws_errors
from hyperpod_kit.aws.session import client
from hyperpod_kit.errors import AwsError

PER_CLUSTER = "Maximum number instances allowed per SageMaker HyperPod cluster"
ALTOGETHER = "Total number of instances allowed across SageMaker HyperPod clusters"


class Quota(NamedTuple):
    """One quota as it is applied to this account and region."""

    name: str
    code: str
    value: float


def cluster_quota_name(instance_type: str) -> str:
    """Return the name of the quota of an instance type, `ml.p5.48xlarge`, in clusters."""
    return f"{instance_type} for cluster usage"


class Quotas:
    """`region`: None for boto3's default. Every method raises AwsError or Unreachable."""

    def __init__(self, region: Optional[str] = None, *, connections: int = 10) -> None:
        self._client = client("service-quotas", region, connections=connections)
        self._sagemaker = client("sagemaker", region, connections=connections)

    def quotas_by_name(self, names: Sequence[str]) -> dict[str, Quota]:
        """Return SageMaker's quotas of these names; those that do not exist are left out.

        The service has no lookup by name and thousands of quotas: this reads up to 30 pages.
        """
        missing = set(names)
        quotas: dict[str, Quota] = {}
        with translate_aws_errors("ListServiceQuotas", "sagemaker"):
            pages = responses.paginate(
                self._client, "list_service_quotas", ServiceCode="sagemaker", PaginationConfig={"PageSize": 100}
            )
            for page in pages:
                for entry in page["Quotas"]:
                    name = entry["QuotaName"]
                    if name in missing and "Value" in entry:
                        quotas[name] = Quota(name, entry["QuotaCode"], float(entry["Value"]))
                        missing.discard(name)
                if not missing:
                    break
        return quotas

    def instance_counts_by_cluster(self) -> dict[str, dict[str, int]]:
        """Return cluster name -> instance type, `ml.p5.48xlarge` -> nodes that it has or is to have, for the whole
        region."""
        with translate_aws_errors("ListClusters"):
            pages = responses.paginate(self._sagemaker, "list_clusters", PaginationConfig={"PageSize": 100})
            names = [entry["ClusterName"] for page in pages for entry in page["ClusterSummaries"]]
        usage: dict[str, dict[str, int]] = {}
        for name in names:
            try:
                with translate_aws_errors("DescribeCluster", name):
                    description = self._sagemaker.describe_cluster(ClusterName=name)
            except AwsError as err:
                if err.code not in NOT_FOUND:
                    raise
                continue  # deleted since it was listed
            count: Counter[str] = Counter()
            for group in description.get("InstanceGroups", []):
                if "InstanceType" in group:
                    count[group["InstanceType"]] += max(group.get("TargetCount", 0), group.get("CurrentCount", 0))
                for entry in group.get("InstanceTypeDetails", ()):
                    count[entry["InstanceType"]] += entry.get("CurrentCount", 0)
            usage[name] = dict(count)
        return usage
