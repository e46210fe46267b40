"""What the kit does with every operation and every field of SageMaker's cluster API: one table, held to the model.

A field is named by the path of a value: `InstanceGroups[].AutoPatchConfig.PatchingStrategy`. Structures above it have
no row of their own, but for those without members. `unjudged_names` compares the table with the service model of the
installed botocore, so that what a newer one brings is named until it has a row here.

Sources: the service model's own documentation; "Spot instances in Amazon SageMaker HyperPod"; "Amazon SageMaker
HyperPod AMI automatic patching"; "Continuous provisioning for enhanced cluster operations with Slurm"; "Deep health
checks".
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from hyperpod_kit.aws.verdicts import (
    FieldVerdict,
    Judgement,
    Operation,
    argument,
    below,
    configured,
    ignored,
    moved_below,
    read,
    refused,
)

_ROLLOUT_KEYS = {
    "RollingUpdatePolicy.MaximumBatchSize.Type": "batch",
    "RollingUpdatePolicy.MaximumBatchSize.Value": "batch",
    "RollingUpdatePolicy.RollbackMaximumBatchSize.Type": "rollback_batch",
    "RollingUpdatePolicy.RollbackMaximumBatchSize.Value": "rollback_batch",
    "WaitIntervalInSeconds": "pause_seconds",
    "AutoRollbackConfiguration[].AlarmName": "alarms",
}
_ROLLOUT_FIELDS = tuple(_ROLLOUT_KEYS)
_VPC_KEYS = {"SecurityGroupIds": "security_group_ids", "Subnets": "subnet_ids"}
_EBS_FIELDS = ("VolumeSizeInGB", "VolumeKmsKeyId", "RootVolume")
_STORAGE_FIELDS = (
    *below("EbsVolumeConfig", *_EBS_FIELDS),
    *below("FsxLustreConfig", "DnsName", "MountName", "MountPath"),
    *below("FsxOpenZfsConfig", "DnsName", "MountPath"),
)
_LIFECYCLE_FIELDS = ("SourceS3Uri", "OnCreate", "OnInitComplete")
_VPC_FIELDS = tuple(_VPC_KEYS)
_TAINT_FIELDS = ("Key", "Value", "Effect")
_DATABASE_FIELDS = ("Endpoint", "Port", "Name", "SecretArn")
_NOT_FOR_SLURM = "AWS has it for clusters on EKS alone"
_RESTRICTED = "groups for Amazon Nova, whose nodes run no bundle and are in no partition"


def _keys_below(key: str, effect: str, prefix: str, keys: Mapping[str, str]) -> tuple[Judgement, ...]:
    """A row for each member of a structure that an object of the configuration says."""
    return tuple(configured(f"{key}.{name}", effect, f"{prefix}.{member}") for member, name in keys.items())


def _rollout_judgements(key: str, prefix: str) -> tuple[Judgement, ...]:
    return _keys_below(
        f"{key}.rollout", "how many nodes are updated at once, and when an update is undone", prefix, _ROLLOUT_KEYS
    )


_C = "hyperpod_kit.cluster"
_G = f"{_C}.instance_groups[]"
_GROUP = "InstanceGroups[]"
_RESTRICTED_GROUP_FIELDS = (
    "InstanceCount",
    "InstanceGroupName",
    "InstanceType",
    "ExecutionRole",
    "ThreadsPerCore",
    *below("InstanceStorageConfigs[]", *_STORAGE_FIELDS),
    "OnStartDeepHealthChecks",
    "TrainingPlanArn",
    *below("OverrideVpcConfig", *_VPC_FIELDS),
    "ScheduledUpdateConfig.ScheduleExpression",
    *below("ScheduledUpdateConfig.DeploymentConfig", *_ROLLOUT_FIELDS),
    *below("EnvironmentConfig.FSxLustreConfig", "SizeInGiB", "PerUnitStorageThroughput"),
)

_INSTANCE_GROUP_REQUEST = (
    configured(f"{_G}.name", "the group's name", f"{_GROUP}.InstanceGroupName"),
    configured(f"{_G}.instance_type", "the type of all its nodes", f"{_GROUP}.InstanceType"),
    configured(
        f"{_G}.instance_types",
        "several types, the first that has capacity; nodes of one group then differ",
        f"{_GROUP}.InstanceRequirements.InstanceTypes",
    ),
    configured(f"{_G}.count", "how many nodes AWS aims at", f"{_GROUP}.InstanceCount"),
    configured(f"{_G}.min_count", "fewer after three hours undo the change", f"{_GROUP}.MinInstanceCount"),
    configured(
        f"{_C}.lifecycle_mode",
        "the bundle's script that a new node runs",
        *below(f"{_GROUP}.LifeCycleConfig", *_LIFECYCLE_FIELDS),
    ),
    configured(f"{_G}.execution_role", "the role that its nodes act as", f"{_GROUP}.ExecutionRole"),
    configured(f"{_G}.threads_per_core", "1 turns multithreading off", f"{_GROUP}.ThreadsPerCore"),
    configured(
        f"{_G}.ebs_gib",
        "a volume at /opt/sagemaker, which goes with the node",
        f"{_GROUP}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeSizeInGB",
    ),
    configured(
        f"{_G}.ebs_kms_key",
        "the key of that volume",
        f"{_GROUP}.InstanceStorageConfigs[].EbsVolumeConfig.VolumeKmsKeyId",
    ),
    configured(
        f"{_G}.root_kms_key",
        "the root volume, with this key",
        f"{_GROUP}.InstanceStorageConfigs[].EbsVolumeConfig.RootVolume",
    ),
    configured(
        "hyperpod_kit.mounts[]",
        "file systems that HyperPod mounts by itself, in the modes that have SlurmConfig",
        *below(
            f"{_GROUP}.InstanceStorageConfigs[]",
            *below("FsxLustreConfig", "DnsName", "MountName", "MountPath"),
            *below("FsxOpenZfsConfig", "DnsName", "MountPath"),
        ),
    ),
    configured(
        f"{_G}.deep_health_checks",
        "tests of the hardware that a new node passes before jobs get it",
        f"{_GROUP}.OnStartDeepHealthChecks",
    ),
    configured(
        f"{_G}.training_plan_arn",
        "reserved capacity, whose nodes go when the plan ends",
        f"{_GROUP}.TrainingPlanArn",
    ),
    *_keys_below(
        f"{_G}.vpc", "where its nodes live, if not where the cluster's do", f"{_GROUP}.OverrideVpcConfig", _VPC_KEYS
    ),
    configured(
        f"{_G}.scheduled_update.schedule",
        "AMI updates by a clock that looks at no job: what runs on a node then ends",
        f"{_GROUP}.ScheduledUpdateConfig.ScheduleExpression",
    ),
    *_rollout_judgements(f"{_G}.scheduled_update", f"{_GROUP}.ScheduledUpdateConfig.DeploymentConfig"),
    configured(
        f"{_G}.auto_patch.strategy",
        "security patches: nodes take no new job until they are idle and patched; root volumes are replaced",
        f"{_GROUP}.AutoPatchConfig.PatchingStrategy",
    ),
    configured(
        f"{_G}.auto_patch.next_patch_date",
        "when the next patch begins",
        f"{_GROUP}.AutoPatchConfig.PatchSchedule.NextPatchDate",
    ),
    configured(
        f"{_G}.auto_patch.idle_wait_seconds",
        "how long nodes take no new job while others are not idle; a day where nothing says it",
        f"{_GROUP}.AutoPatchConfig.IdleWaitWindowInSeconds",
    ),
    *_rollout_judgements(f"{_G}.auto_patch", f"{_GROUP}.AutoPatchConfig.DeploymentConfig"),
    refused(
        f"{_NOT_FOR_SLURM}: it says how pods are evicted",
        "HPK-R001",
        *below(f"{_GROUP}.AutoPatchConfig.DrainPolicy", "DrainTimeoutInSeconds", "OnDrainTimeout"),
    ),
    Judgement(
        FieldVerdict.PASSED_THROUGH,
        "HPK-R003",
        "a fixed image: one from before January 2026 has no SlurmConfig, and none is ever patched by itself",
        below(_GROUP, "ImageId", "ImageReleaseVersion"),
    ),
    refused(
        f"{_NOT_FOR_SLURM}: labels and taints of Kubernetes nodes",
        "HPK-R002",
        f"{_GROUP}.KubernetesConfig.Labels",
        *below(f"{_GROUP}.KubernetesConfig.Taints[]", *_TAINT_FIELDS),
    ),
    configured(
        "controller_group",
        "the group's role in Slurm; `login_group` and `worker_groups[]` say the other two",
        f"{_GROUP}.SlurmConfig.NodeType",
    ),
    configured("worker_groups[].partition_name", "its partition", f"{_GROUP}.SlurmConfig.PartitionNames"),
    configured(
        f"{_G}.capacity",
        "Spot: AWS takes nodes away when it needs them, with a notice of two minutes",
        *below(f"{_GROUP}.CapacityRequirements", "Spot", "OnDemand"),
    ),
    configured(
        f"{_G}.network_interface",
        "efa-only: further network cards have no IP address, which saves addresses of the subnet",
        f"{_GROUP}.NetworkInterface.InterfaceType",
    ),
)

_CLUSTER_REQUEST = (
    configured(f"{_C}.name", "the cluster's name", "ClusterName"),
    *_INSTANCE_GROUP_REQUEST,
    refused(_RESTRICTED, "HPK-R002", *below("RestrictedInstanceGroups[]", *_RESTRICTED_GROUP_FIELDS)),
    refused(
        _RESTRICTED,
        "HPK-R002",
        *below(
            "RestrictedInstanceGroupsConfig.SharedEnvironmentConfig",
            "FSxLustreDeletionPolicy",
            *below("FSxLustreConfig", "SizeInGiB", "PerUnitStorageThroughput"),
        ),
    ),
    configured(
        f"{_C}.tiered_storage.mode",
        "AWS's own checkpoints in memory, documented for EKS; a daemon takes memory of every node",
        "TieredStorageConfig.Mode",
    ),
    configured(
        f"{_C}.tiered_storage.memory_percent",
        "the part of a node's memory that the daemon takes, beside what this kit keeps in /dev/shm",
        "TieredStorageConfig.InstanceMemoryAllocationPercentage",
    ),
    configured(f"{_C}.node_recovery", "whether broken nodes are replaced", "NodeRecovery"),
    configured(f"{_C}.node_provisioning_mode", "nodes come one by one, or all or none", "NodeProvisioningMode"),
    Judgement(
        FieldVerdict.PASSED_THROUGH,
        "HPK-R006",
        "the role of AutoScaling, which Slurm clusters do not have",
        ("ClusterRole",),
    ),
    refused(f"{_NOT_FOR_SLURM}: it is Karpenter's", "HPK-R002", *below("AutoScaling", "Mode", "AutoScalerType")),
    refused("the kit makes Slurm clusters", "HPK-R001", "Orchestrator.Eks.ClusterArn"),
    configured(
        f"{_C}.slurm_config_strategy",
        "what HyperPod's agent does about changes of slurm.conf that are not its own",
        "Orchestrator.Slurm.SlurmConfigStrategy",
    ),
    *_keys_below(
        f"{_C}.accounting_database",
        "Slurm's accounting in a database outside of the cluster",
        "Orchestrator.Slurm.AccountingDatabase",
        {"Endpoint": "endpoint", "Port": "port", "Name": "name", "SecretArn": "secret_arn"},
    ),
)

_GROUP_RESPONSE = (
    read(
        "describe-cluster, wait, diagnose",
        "how many nodes are there, and how many AWS aims at",
        *below(_GROUP, "InstanceGroupName", "CurrentCount", "TargetCount"),
    ),
    read("update-cluster", "compared with the configuration", f"{_GROUP}.InstanceType"),
    ignored("update-cluster compares the counts that it asks for", f"{_GROUP}.MinCount"),
    read(
        "describe-cluster, update-cluster",
        "the types that a group may have: the desired ones are compared with the configuration",
        *below(f"{_GROUP}.InstanceRequirements", "CurrentInstanceTypes", "DesiredInstanceTypes"),
    ),
    read(
        "describe-cluster",
        "how many nodes of which type came",
        *below(f"{_GROUP}.InstanceTypeDetails[]", "InstanceType", "CurrentCount"),
    ),
    ignored("it follows from the type", f"{_GROUP}.InstanceTypeDetails[].ThreadsPerCore"),
    read(
        "update-cluster, update-software",
        "compared with the configuration; which bundle new nodes run",
        *below(f"{_GROUP}.LifeCycleConfig", *_LIFECYCLE_FIELDS),
        *below(_GROUP, "ExecutionRole", "ThreadsPerCore", "OnStartDeepHealthChecks", "TrainingPlanArn"),
        *below(f"{_GROUP}.InstanceStorageConfigs[]", *_STORAGE_FIELDS),
        *below(f"{_GROUP}.OverrideVpcConfig", *_VPC_FIELDS),
        *below(f"{_GROUP}.SlurmConfig", "NodeType", "PartitionNames"),
        f"{_GROUP}.NetworkInterface.InterfaceType",
        f"{_GROUP}.ScheduledUpdateConfig.ScheduleExpression",
        *below(f"{_GROUP}.ScheduledUpdateConfig.DeploymentConfig", *_ROLLOUT_FIELDS),
        *below(f"{_GROUP}.AutoPatchConfig", "PatchingStrategy", "IdleWaitWindowInSeconds"),
        *below(f"{_GROUP}.AutoPatchConfig.DeploymentConfig", *_ROLLOUT_FIELDS),
        *below(f"{_GROUP}.AutoPatchConfig.DrainPolicy", "DrainTimeoutInSeconds", "OnDrainTimeout"),
    ),
    read("describe-cluster, wait", "a group that has failed or has too few nodes", f"{_GROUP}.Status"),
    read(
        "describe-cluster, wait, diagnose",
        "a plan that is not Active gives no nodes",
        f"{_GROUP}.TrainingPlanStatus",
    ),
    read(
        "describe-cluster, wait, diagnose",
        "when nodes take no new job: a patch's date, and the date that is asked for instead",
        f"{_GROUP}.AutoPatchConfig.CurrentPatchSchedule.NextPatchDate",
        f"{_GROUP}.AutoPatchConfig.DesiredPatchSchedule.NextPatchDate",
    ),
    ignored("ids of images; the versions are shown", *below(_GROUP, "CurrentImageId", "DesiredImageId")),
    read(
        "describe-cluster, wait, diagnose",
        "the version that nodes run, the one that they are given, and what AWS thinks of it",
        *below(_GROUP, "CurrentImageReleaseVersion", "DesiredImageReleaseVersion", "ImageVersionStatus"),
    ),
    read("describe-cluster, wait, diagnose", "what AWS is doing to the group", f"{_GROUP}.ActiveOperations"),
    ignored(
        _NOT_FOR_SLURM,
        *below(f"{_GROUP}.KubernetesConfig", "CurrentLabels", "DesiredLabels"),
        *below(f"{_GROUP}.KubernetesConfig.CurrentTaints[]", *_TAINT_FIELDS),
        *below(f"{_GROUP}.KubernetesConfig.DesiredTaints[]", *_TAINT_FIELDS),
    ),
    read(
        "describe-cluster, diagnose, update-cluster",
        "whether AWS may take the group's nodes away",
        *below(f"{_GROUP}.CapacityRequirements", "Spot", "OnDemand"),
    ),
    read(
        "describe-cluster, wait, diagnose",
        "nodes that run the image that they are to run",
        f"{_GROUP}.TargetStateCount",
    ),
    read(
        "describe-cluster, wait, diagnose",
        "how the last software update stands: one that runs takes nodes, one that failed left some behind",
        f"{_GROUP}.SoftwareUpdateStatus",
    ),
    ignored(
        "how the update that runs goes on; update-software says it when it begins",
        *below(f"{_GROUP}.ActiveSoftwareUpdateConfig", *_ROLLOUT_FIELDS),
    ),
)

_RESTRICTED_GROUP_RESPONSE = (
    ignored(
        _RESTRICTED,
        *below(
            "RestrictedInstanceGroups[]",
            *("CurrentCount", "TargetCount", "Status", "TrainingPlanStatus", "EnvironmentConfig.S3OutputPath"),
            *(field for field in _RESTRICTED_GROUP_FIELDS if field != "InstanceCount"),
        ),
        *below(
            "RestrictedInstanceGroupsConfig.SharedEnvironmentConfig",
            "CurrentFSxLustreDeletionPolicy",
            "DesiredFSxLustreDeletionPolicy",
            *below("CurrentFSxLustreConfig", "SizeInGiB", "PerUnitStorageThroughput"),
            *below("DesiredFSxLustreConfig", "SizeInGiB", "PerUnitStorageThroughput"),
        ),
    ),
)

_ARN_RESPONSE = (read("create-cluster", "shown", "ClusterArn"),)
_ARN_ECHO = (ignored("the cluster is known already", "ClusterArn"),)
_CLUSTER_NAME_ARGUMENT = argument("--cluster", "which cluster", "ClusterName")
_NODE_RESPONSE = (
    read(
        "list-cluster-nodes, diagnose",
        "which node it is",
        *("InstanceGroupName", "InstanceId", "InstanceType", "LaunchTime"),
    ),
    read("list-cluster-nodes, wait, diagnose", "its state, and AWS's words on it", "InstanceStatus.Status"),
    read("list-cluster-nodes, wait, diagnose", "its state, and AWS's words on it", "InstanceStatus.Message"),
    read(
        "update-software",
        "whether a node has been updated, and with what",
        *("LastSoftwareUpdateTime", "CurrentImageReleaseVersion", "ImageVersionStatus"),
    ),
    read("list-cluster-nodes", "its address, which is in the name", "PrivateDnsHostname"),
    ignored(
        "names of nodes that have no instance yet, and of UltraServers",
        *("NodeLogicalId", "UltraServerInfo.Id", "UltraServerInfo.Type"),
    ),
)
_NODE_DETAILS_RESPONSE = (
    read("list-cluster-nodes", "its address", "PrivatePrimaryIp"),
    ignored("nodes are reached by their IPv4 address", "PrivatePrimaryIpv6"),
    read("list-cluster-nodes", "whether AWS may take it away", "CapacityType"),
    ignored(
        "what its group says of it",
        *below("LifeCycleConfig", *_LIFECYCLE_FIELDS),
        *below("OverrideVpcConfig", *_VPC_FIELDS),
        "ThreadsPerCore",
        *below("InstanceStorageConfigs[]", *_STORAGE_FIELDS),
        *("CurrentImageId", "DesiredImageId", "DesiredImageReleaseVersion"),
        "NetworkInterface.InterfaceType",
    ),
    ignored("where it is", *below("Placement", "AvailabilityZone", "AvailabilityZoneId")),
    ignored(
        _NOT_FOR_SLURM,
        *below("KubernetesConfig", "CurrentLabels", "DesiredLabels"),
        *below("KubernetesConfig.CurrentTaints[]", *_TAINT_FIELDS),
        *below("KubernetesConfig.DesiredTaints[]", *_TAINT_FIELDS),
    ),
)

_EVENT_RESPONSE = (
    read(
        "events, wait",
        "what happened to what, and when",
        *("EventId", "InstanceGroupName", "InstanceId", "ResourceType", "EventTime", "Description", "EventLevel"),
    ),
    ignored("the cluster is known already", "ClusterArn", "ClusterName"),
    ignored("operations are listed by themselves: operations", "OperationId"),
)
_METADATA = "EventDetails.EventMetadata"
_PAGING = (read("all that list", "the next page", "NextToken"),)
_PAGE_ARGUMENTS = (argument("all that list", "pages of a hundred", "MaxResults", "NextToken"),)


def _batch_operation(command: str, effect: str, code: str) -> Operation:
    return Operation(
        FieldVerdict.CALLED,
        command,
        effect,
        (
            _CLUSTER_NAME_ARGUMENT,
            argument(command, "which nodes", "NodeIds"),
            ignored("nodes are named by instance ids", "NodeLogicalIds"),
        ),
        (
            read(command, "what was accepted and what was not", "Successful"),
            read(command, "what was accepted and what was not", *below("Failed[]", "NodeId", code, "Message")),
            ignored(
                "nodes are named by instance ids",
                "SuccessfulNodeLogicalIds",
                *below("FailedNodeLogicalIds[]", "NodeLogicalId", code, "Message"),
            ),
        ),
    )


OPERATIONS: Mapping[str, Operation] = {
    "CreateCluster": Operation(
        FieldVerdict.CALLED,
        "create-cluster",
        "makes a cluster",
        (
            *_CLUSTER_REQUEST,
            *_keys_below(f"{_C}.vpc", "where the nodes live", "VpcConfig", _VPC_KEYS),
            configured(f"{_C}.tags", "the cluster's tags", *below("Tags[]", "Key", "Value")),
        ),
        _ARN_RESPONSE,
    ),
    "UpdateCluster": Operation(
        FieldVerdict.CALLED,
        "update-cluster",
        "changes groups, and settings of the whole cluster",
        (
            *_CLUSTER_REQUEST,
            argument("update-cluster", "groups that the configuration has no more", "InstanceGroupsToDelete"),
        ),
        _ARN_ECHO,
    ),
    "UpdateClusterSoftware": Operation(
        FieldVerdict.CALLED,
        "update-software",
        "replaces root volumes by a newer AMI's; lifecycle scripts run again",
        (
            _CLUSTER_NAME_ARGUMENT,
            argument("update-software --group", "which groups", "InstanceGroups[].InstanceGroupName"),
            ignored("the newest version is taken", "InstanceGroups[].ImageReleaseVersion"),
            argument(
                "update-software --batch, --pause",
                "how many nodes at once",
                *below("DeploymentConfig.RollingUpdatePolicy.MaximumBatchSize", "Type", "Value"),
                "DeploymentConfig.WaitIntervalInSeconds",
            ),
            ignored(
                "an update is undone by AWS's own judgement",
                *below("DeploymentConfig.RollingUpdatePolicy.RollbackMaximumBatchSize", "Type", "Value"),
                "DeploymentConfig.AutoRollbackConfiguration[].AlarmName",
            ),
            argument("update-software --image-id", "an AMI of one's own", "ImageId"),
        ),
        _ARN_ECHO,
    ),
    "DescribeCluster": Operation(
        FieldVerdict.CALLED,
        "describe-cluster",
        "the cluster as it is",
        (_CLUSTER_NAME_ARGUMENT,),
        (
            read("describe-cluster, connect, update-cluster", "which cluster it is", "ClusterArn", "ClusterName"),
            read("describe-cluster, wait, diagnose", "how it is, and why", "ClusterStatus", "FailureMessage"),
            ignored("list-clusters shows it", "CreationTime"),
            *_GROUP_RESPONSE,
            *_RESTRICTED_GROUP_RESPONSE,
            read(
                "update-cluster",
                "compared with the configuration",
                *below("VpcConfig", *_VPC_FIELDS),
                "Orchestrator.Eks.ClusterArn",
                "Orchestrator.Slurm.SlurmConfigStrategy",
                *below("Orchestrator.Slurm.AccountingDatabase", *_DATABASE_FIELDS),
                *below("TieredStorageConfig", "Mode", "InstanceMemoryAllocationPercentage"),
                *("NodeRecovery", "ClusterRole"),
                *below("AutoScaling", "Mode", "AutoScalerType"),
            ),
            read("describe-cluster, wait, update-cluster", "whether AWS tries again", "NodeProvisioningMode"),
            ignored(_NOT_FOR_SLURM, *below("AutoScaling", "Status", "FailureMessage")),
        ),
    ),
    "DescribeClusterNode": Operation(
        FieldVerdict.CALLED,
        "list-cluster-nodes",
        "one node, with its address",
        (
            _CLUSTER_NAME_ARGUMENT,
            argument("list-cluster-nodes", "which node", "NodeId"),
            ignored("nodes are named by instance ids", "NodeLogicalId"),
        ),
        moved_below("NodeDetails", (*_NODE_RESPONSE, *_NODE_DETAILS_RESPONSE)),
    ),
    "DescribeClusterEvent": Operation(
        FieldVerdict.CALLED,
        "events",
        "one event, with its reason",
        (_CLUSTER_NAME_ARGUMENT, argument("events", "which event", "EventId")),
        moved_below(
            "EventDetails",
            (
                *_EVENT_RESPONSE,
                read(
                    "events, wait, diagnose",
                    "why something failed",
                    *(
                        f"{_METADATA}.{part}.FailureMessage"
                        for part in (
                            "Cluster",
                            "InstanceGroup",
                            "InstanceGroupScaling",
                            "Instance",
                            "DatabaseConfiguration",
                        )
                    ),
                    f"{_METADATA}.Instance.LcsExecutionState",
                ),
                ignored(
                    f"details that only --json has: {_NOT_FOR_SLURM}, or ids of network and capacity",
                    *below(f"{_METADATA}.Cluster", "EksRoleAccessEntries", "SlrAccessEntry"),
                    *below(
                        f"{_METADATA}.InstanceGroup",
                        *("AvailabilityZoneId", "CapacityReservation.Arn", "CapacityReservation.Type"),
                        *("SubnetId", "SecurityGroupIds", "AmiOverride"),
                    ),
                    *below(f"{_METADATA}.InstanceGroupScaling", "InstanceCount", "TargetCount", "MinCount"),
                    *below(
                        f"{_METADATA}.Instance",
                        *("CustomerEni", "AdditionalEnis.EfaEnis"),
                        "InstanceRequirementsEniConfigurations[].CustomerEni",
                        "InstanceRequirementsEniConfigurations[].AdditionalEnis.EfaEnis",
                        *("CapacityReservation.Arn", "CapacityReservation.Type", "NodeLogicalId"),
                    ),
                    *below(f"{_METADATA}.DatabaseConfiguration", "RollbackStatus", "Advisory"),
                    *below(f"{_METADATA}.SlurmHealth", "Component", "Status", "Reason"),
                ),
            ),
        ),
    ),
    "DescribeClusterOperation": Operation(
        FieldVerdict.CALLED,
        "operations --id",
        "one scaling or one run of deep health checks",
        (_CLUSTER_NAME_ARGUMENT, argument("operations --id", "which one", "OperationId")),
        (
            read("operations --id", "what it is and how it stands", "OperationId", "Type", "Status"),
            read("operations --id", "when it began", "CreationTime"),
            ignored("the cluster is known already", "ClusterArn"),
            read(
                "operations --id",
                "group by group: how many nodes there were, and how many there are to be",
                *below("ScalingDetails[]", "InstanceGroupName", "Status"),
                *below("ScalingDetails[].Original", "CurrentCount", "TargetCount", "MinCount"),
                *below("ScalingDetails[].Desired", "CurrentCount", "TargetCount", "MinCount"),
            ),
            read(
                "operations --id",
                "which checks on which nodes",
                *below("DeepHealthCheckDetails[]", "InstanceGroupName", "InstanceIds", "DeepHealthChecks"),
            ),
        ),
    ),
    "ListClusters": Operation(
        FieldVerdict.CALLED,
        "list-clusters",
        "all clusters of a region",
        (
            *_PAGE_ARGUMENTS,
            ignored(
                "all are listed",
                *("CreationTimeAfter", "CreationTimeBefore", "NameContains", "SortBy", "SortOrder", "TrainingPlanArn"),
            ),
        ),
        (
            *_PAGING,
            read(
                "list-clusters",
                "shown",
                *below("ClusterSummaries[]", "ClusterArn", "ClusterName", "CreationTime", "ClusterStatus"),
            ),
            ignored(
                "describe-cluster shows both by group",
                *below("ClusterSummaries[]", "TrainingPlanArns", "ImageVersionStatus"),
            ),
        ),
    ),
    "ListClusterNodes": Operation(
        FieldVerdict.CALLED,
        "list-cluster-nodes",
        "all nodes of a cluster",
        (
            _CLUSTER_NAME_ARGUMENT,
            *_PAGE_ARGUMENTS,
            ignored(
                "all are listed, and chosen here",
                *("CreationTimeAfter", "CreationTimeBefore", "InstanceGroupNameContains", "SortBy", "SortOrder"),
                "IncludeNodeLogicalIds",
            ),
        ),
        (*_PAGING, *moved_below("ClusterNodeSummaries[]", _NODE_RESPONSE)),
    ),
    "ListClusterEvents": Operation(
        FieldVerdict.CALLED,
        "events",
        "what happened to a cluster, where nodes are provisioned continuously",
        (
            _CLUSTER_NAME_ARGUMENT,
            *_PAGE_ARGUMENTS,
            argument(
                "events",
                "which events, in which order",
                *("InstanceGroupName", "NodeId", "EventTimeAfter", "SortBy", "SortOrder"),
            ),
            ignored("they end now and are of every kind", "EventTimeBefore", "ResourceType", "OperationId"),
        ),
        (*_PAGING, *moved_below("Events[]", _EVENT_RESPONSE)),
    ),
    "ListClusterOperations": Operation(
        FieldVerdict.CALLED,
        "operations",
        "scalings and runs of deep health checks, past and present",
        (
            _CLUSTER_NAME_ARGUMENT,
            *_PAGE_ARGUMENTS,
            argument("operations --status, --type", "which operations", "Status", "Type"),
            argument("operations", "the newest first", "SortBy", "SortOrder"),
            ignored("all are listed", "CreationTimeAfter", "CreationTimeBefore"),
        ),
        (
            *_PAGING,
            read(
                "operations",
                "shown",
                *below("ClusterOperationSummaries[]", "OperationId", "Type", "Status", "CreationTime"),
            ),
            ignored("the cluster is known already", "ClusterOperationSummaries[].ClusterArn"),
        ),
    ),
    "StartClusterHealthCheck": Operation(
        FieldVerdict.CALLED,
        "health-check",
        "deep health checks of nodes that are there: they take no job meanwhile, and bad ones are replaced",
        (
            _CLUSTER_NAME_ARGUMENT,
            argument(
                "health-check NODE…, --check",
                "which checks on which nodes",
                *below("DeepHealthCheckConfigurations[]", "InstanceGroupName", "InstanceIds", "DeepHealthChecks"),
            ),
        ),
        _ARN_ECHO,
    ),
    "DeleteCluster": Operation(
        FieldVerdict.CALLED, "delete-cluster", "deletes all nodes", (_CLUSTER_NAME_ARGUMENT,), _ARN_ECHO
    ),
    "BatchReplaceClusterNodes": _batch_operation("replace-node", "a fresh machine for each node", "ErrorCode"),
    "BatchRebootClusterNodes": _batch_operation("reboot-node", "restarts nodes", "ErrorCode"),
    "BatchDeleteClusterNodes": _batch_operation("delete-node", "nodes go, and the count with them", "Code"),
    "BatchAddClusterNodes": Operation(
        FieldVerdict.NOT_CALLED,
        "",
        "`count` and update-cluster add nodes, so that the configuration says how many there are",
    ),
    "AttachClusterNodeVolume": Operation(
        FieldVerdict.NOT_CALLED, "", f"{_NOT_FOR_SLURM}: it is for the CSI driver of Kubernetes"
    ),
    "DetachClusterNodeVolume": Operation(
        FieldVerdict.NOT_CALLED, "", f"{_NOT_FOR_SLURM}: it is for the CSI driver of Kubernetes"
    ),
    "AttachClusterNodeNetworkInterface": Operation(
        FieldVerdict.NOT_CALLED, "", "a network interface that is attached by hand is gone when the node is replaced"
    ),
    **{
        f"{verb}ClusterSchedulerConfig{plural}": Operation(
            FieldVerdict.NOT_CALLED, "", f"{_NOT_FOR_SLURM}: task governance by Kueue"
        )
        for verb, plural in (("Create", ""), ("Delete", ""), ("Describe", ""), ("Update", ""), ("List", "s"))
    },
    **{
        f"{verb}ClusterExtension{plural}": Operation(
            FieldVerdict.NOT_CALLED, "", f"{_NOT_FOR_SLURM}: add-ons of Kubernetes"
        )
        for verb, plural in (
            *(("Create", ""), ("Delete", ""), ("Describe", ""), ("Update", "")),
            *(("List", "s"), ("List", "Versions")),
        )
    },
}
"""Operation -> what is done with it. Every operation of SageMaker whose name has `Cluster` in it."""


def request_keys() -> dict[str, str]:
    """Return field of CreateCluster's request -> the configuration's key that it comes from, of those that have one."""
    return {
        field: row.source
        for row in OPERATIONS["CreateCluster"].request
        if row.verdict is FieldVerdict.CONFIGURED
        for field in row.fields
    }


def judgements_of_member(member: str) -> list[Judgement]:
    """Return the rows of what lies in a member of CreateCluster's request: `InstanceGroups[].SlurmConfig`."""
    return [
        row
        for row in OPERATIONS["CreateCluster"].request
        if any(field == member or field.startswith((f"{member}.", f"{member}[")) for field in row.fields)
    ]


def unjudged_names(model: Any) -> list[str]:
    """List what the table does not know of botocore's ServiceModel of sagemaker: operations, and fields of those that
    are called (`CreateCluster request InstanceGroups[].InstanceType`)."""
    return sorted(set(_names_of_model(model)) - set(_names_of_table()))


def names_not_in_model(model: Any) -> list[str]:
    """List what the table judges and the service model does not have."""
    return sorted(set(_names_of_table()) - set(_names_of_model(model)))


def _names_of_table() -> Iterator[str]:
    for name, operation in OPERATIONS.items():
        yield name
        for side, rows in (("request", operation.request), ("response", operation.response)):
            for row in rows:
                yield from (f"{name} {side} {field}" for field in row.fields)


def _names_of_model(model: Any) -> Iterator[str]:
    for name in model.operation_names:
        if "Cluster" not in name:
            continue
        yield name
        if name not in OPERATIONS or OPERATIONS[name].verdict is not FieldVerdict.CALLED:
            continue
        operation = model.operation_model(name)
        for side, shape in (("request", operation.input_shape), ("response", operation.output_shape)):
            if shape is not None:
                yield from (f"{name} {side} {field}" for field in _fields_of_shape(shape, ""))


def _fields_of_shape(shape: Any, path: str) -> Iterator[str]:
    """Yield the path of every value below a shape: a list or map of plain values is one, an empty structure too."""
    if shape.type_name == "structure" and shape.members:
        for name, member in shape.members.items():
            yield from _fields_of_shape(member, f"{path}.{name}".lstrip("."))
    elif shape.type_name == "list" and shape.member.type_name == "structure":
        yield from _fields_of_shape(shape.member, f"{path}[]")
    else:
        yield path
