"""`api`: fields of CreateCluster that go on as they are. What becomes of each is in the service contract."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from hyperpod_kit.aws import request_shape
from hyperpod_kit.aws.service_contract import judgements_of_member
from hyperpod_kit.aws.verdicts import FieldVerdict
from hyperpod_kit.config.rules.cluster import AT
from hyperpod_kit.config.settings.findings import WARNING, Finding
from hyperpod_kit.config.settings.settings import Settings
from hyperpod_kit.model.states import LifecycleMode

IMAGES = ("ImageId", "ImageReleaseVersion")


def check_passthrough_fields_and_images(settings: Settings) -> Iterator[Finding]:
    """No field has two sources, and what is not for Slurm clusters, or of unknown effect, is named."""
    cluster = settings.cluster
    yield from _report_judged_fields(f"{AT}.api", cluster.api, "")
    for index, group in enumerate(cluster.groups):
        at = f"{AT}.instance_groups[{index}].api"
        yield from _report_judged_fields(at, group.api, "InstanceGroups[].")
        for key in IMAGES:
            if group.api.get(key, "default") != "default" and cluster.lifecycle_mode != LifecycleMode.ON_CREATE:
                yield Finding(
                    "HPK-R003",
                    f"{at}.{key}",
                    "a fixed image has to be of January 2026 or newer: HyperPod configures Slurm by itself on those "
                    "only, and says `Update required to use SlurmConfig in InstanceGroups` on others",
                    "Check its date, or remove the key for the newest image",
                    WARNING,
                )


def keys_of_covered_member(member: str) -> list[str]:
    """Return the configuration's keys that say a member of CreateCluster's request; [] for one without a key."""
    rows = [row for row in judgements_of_member(member) if row.verdict is FieldVerdict.CONFIGURED]
    return list(dict.fromkeys(row.source for row in rows))


def _report_judged_fields(at: str, given: Mapping[str, Any], prefix: str) -> Iterator[Finding]:
    for key in given:
        member = prefix + key
        rows = judgements_of_member(member)
        keys = keys_of_covered_member(member)
        if keys:
            names = ", ".join(dict.fromkeys(_name_beside_api(name, prefix) for name in keys))
            yield Finding("HPK-R001", f"{at}.{key}", "this field comes from a key of its own", f"Use {names}")
        elif any(row.verdict is FieldVerdict.REFUSED for row in rows):
            reason = rows[0].effect
            yield Finding("HPK-R002", f"{at}.{key}", f"it is not for clusters with Slurm: {reason}", "Remove it")
        elif key == "ClusterRole":
            yield Finding(
                "HPK-R006",
                f"{at}.{key}",
                "it is the role of AWS's AutoScaling, which clusters with Slurm do not have: nothing uses it",
                "Remove it",
                WARNING,
            )
        elif not rows and _is_field_of_installed_model(member):
            yield Finding(
                "HPK-R007",
                f"{at}.{key}",
                "this version of hyperpod-kit does not know the field: no rule looks at it, so that it may take nodes "
                "from jobs without a word here",
                "Read what AWS says of it, and try it on a small cluster first",
                WARNING,
            )


def _name_beside_api(key: str, prefix: str) -> str:
    """The key as it is written beside `api`; the whole path of one that is elsewhere."""
    here = f"{AT}."
    if prefix:
        here = f"{AT}.instance_groups[]."
    if not key.startswith(here):
        return key.partition("[]")[0]
    return key.removeprefix(here).partition(".")[0].removesuffix("[]")


def _is_field_of_installed_model(member: str) -> bool:
    try:
        return bool(request_shape.field_constraints("sagemaker", "CreateCluster", member))
    except ImportError:
        return True
