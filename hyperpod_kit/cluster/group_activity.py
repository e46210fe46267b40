"""What AWS does to an instance group, and what is wrong with it beside its nodes: read from DescribeCluster's answer.

A patch that waits for idle nodes, an update that was undone, a plan that has ended: none of them is a state of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional, Protocol

from hyperpod_kit.cluster.times import format_utc
from hyperpod_kit.errors import AwsError

UPDATING = ("Pending", "InProgress", "RollbackInProgress")
UNDONE = ("Failed", "RollbackComplete")
"""SoftwareUpdateStatus of an update that runs, and of one that has left nodes as they were."""
OUTDATED = ("SecurityUpdateRequired", "EndOfLife")
PLAN_SERVES = "Active"
PLAN_IS_OVER = ("Expired", "Failed")


@dataclass(frozen=True)
class GroupActivity:
    """`facts`: what the group is; `doing`: what AWS does to it now; `troubles`: what keeps it from being whole;
    `plan_arn`: of its training plan, "" without one."""

    facts: tuple[str, ...] = ()
    doing: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    plan_arn: str = ""

    def lines(self) -> tuple[str, ...]:
        """All of it, troubles first."""
        return (*self.troubles, *self.doing, *self.facts)


class TrainingPlans(Protocol):
    """Who is asked about plans; aws.sagemaker.SageMaker answers."""

    def describe_training_plan(self, arn: str) -> dict[str, Any]: ...


def read_group_activity(group: Mapping[str, Any]) -> GroupActivity:
    """Read one of the InstanceGroups of DescribeCluster's answer. Pure."""
    return GroupActivity(
        tuple(_facts(group)), tuple(_doing(group)), tuple(_troubles(group)), str(group.get("TrainingPlanArn", ""))
    )


def describe_training_plans(plans: TrainingPlans, arns_by_group: Mapping[str, str]) -> dict[str, str]:
    """Return group -> a sentence about its training plan: until when it serves.

    A plan that cannot be asked about is described as that.
    """
    return {group: _plan_sentence(plans, arn) for group, arn in arns_by_group.items()}


def _plan_sentence(plans: TrainingPlans, arn: str) -> str:
    name = arn.rpartition("/")[2]
    try:
        plan = plans.describe_training_plan(arn)
    except AwsError as err:
        return f"training plan {name}: end unknown: {err.message}"
    ends = format_utc(plan.get("EndTime")) or "at an unknown time"
    free = plan.get("AvailableInstanceCount")
    rest = ""
    if free is not None:
        rest = f", {free} of {plan.get('TotalInstanceCount', '?')} nodes free"
    return f"training plan {name}: {plan.get('Status', 'unknown')}, ends {ends}{rest}"


def _facts(group: Mapping[str, Any]) -> Iterator[str]:
    if "Spot" in (group.get("CapacityRequirements") or {}):
        yield "Spot: AWS may reclaim its nodes"
    types = _types(group)
    if types:
        yield f"types: {types}"
    if group.get("TrainingPlanStatus") == PLAN_SERVES:
        yield f"training plan: {PLAN_SERVES}"
    patch = group.get("AutoPatchConfig") or {}
    dates = _patch_dates(patch)
    if dates:
        yield f"next patch ({patch.get('PatchingStrategy', '?')}): {dates}"
    if group.get("ImageVersionStatus") == "UpdateAvailable":
        yield f"a newer image than {group.get('CurrentImageReleaseVersion') or 'the one that it runs'} is available"


def _types(group: Mapping[str, Any]) -> str:
    """How many nodes have which type, or else which types they may have; "" where AWS says neither."""
    details = group.get("InstanceTypeDetails") or ()
    if details:
        return ", ".join(f"{entry.get('CurrentCount', 0)} {entry.get('InstanceType')}" for entry in details)
    requirements = group.get("InstanceRequirements") or {}
    return " or ".join(requirements.get("DesiredInstanceTypes") or requirements.get("CurrentInstanceTypes") or ())


def _patch_dates(patch: Mapping[str, Any]) -> str:
    """When the next patch is, and when it is requested instead; "" where there is neither."""
    date = _date_of(patch, "CurrentPatchSchedule")
    requested = _date_of(patch, "DesiredPatchSchedule")
    if not date and not requested:
        return ""
    moved = ""
    if requested and requested != date:
        moved = f", will change to {requested}"
    return f"{date or 'not planned yet'}{moved}"


def _doing(group: Mapping[str, Any]) -> Iterator[str]:
    for name, count in sorted((group.get("ActiveOperations") or {}).items()):
        yield f"{name} in progress ({count})"
    status = group.get("SoftwareUpdateStatus")
    if status in UPDATING:
        yield f"software update {status}{_progress_of_image(group)}"
    if group.get("Status") == "SystemUpdating" and status not in UPDATING:
        yield f"software update in progress{_progress_of_image(group)}"


def _troubles(group: Mapping[str, Any]) -> Iterator[str]:
    plan = group.get("TrainingPlanStatus")
    if plan in PLAN_IS_OVER:
        yield f"training plan {plan}: it provides no nodes any more"
    elif plan and plan != PLAN_SERVES:
        yield f"training plan {plan}: it provides no nodes yet"
    status = group.get("SoftwareUpdateStatus")
    if status in UNDONE:
        yield f"the last software update failed ({status}){_progress_of_image(group)}"
    if group.get("ImageVersionStatus") in OUTDATED:
        yield f"image {group.get('CurrentImageReleaseVersion') or ''}: {group['ImageVersionStatus']}".replace(" :", ":")


def _progress_of_image(group: Mapping[str, Any]) -> str:
    """How many nodes run the image that they are to run, and which that is."""
    count = group.get("TargetStateCount")
    if count is None:
        return ""
    version = group.get("DesiredImageReleaseVersion")
    image = "the target image"
    if version:
        image = f"image {version}"
    return f": {count} of {group.get('CurrentCount', '?')} nodes run {image}"


def _date_of(patch: Mapping[str, Any], schedule: str) -> Optional[str]:
    return format_utc((patch.get(schedule) or {}).get("NextPatchDate")) or None
