"""The table of the commands of `hyperpod-kit node`.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, GroupSpec, OptionSpec
from hyperpod_kit.model.states import LIFECYCLE_MODES

_CREATION = "hyperpod_kit.node.commands.creation_commands"
_MOUNTS = "hyperpod_kit.node.commands.mount_commands"

_JSON = OptionSpec("--json", "Print JSON on stdout.")
_MODE = OptionSpec("--mode", "Lifecycle mode; default: that of the bundle.", choices=LIFECYCLE_MODES)
_SLURM_STATE = OptionSpec(
    "--slurm-state",
    "Copy of Slurm's state to continue with, if their ages do not decide; the other copy is set aside.",
    choices=("shared", "own"),
)

NODE = GroupSpec(
    "node",
    "Set up, check and repair this node.",
    (
        CommandSpec(
            "facts",
            "Show this node's identity, read again.",
            f"{_CREATION}:facts_command",
            options=(_JSON,),
            examples=("--json",),
        ),
        CommandSpec(
            "plan",
            "Show what apply would do; changes nothing.",
            f"{_CREATION}:plan_command",
            options=(_JSON, _MODE, _SLURM_STATE),
            examples=("", "--mode on_create --json"),
        ),
        CommandSpec(
            "apply",
            "Apply the bundle to this node.",
            f"{_CREATION}:apply_command",
            options=(
                _JSON,
                _MODE,
                _SLURM_STATE,
                OptionSpec("--dry-run", "Show what would be done, as plan does, and change nothing."),
            ),
            examples=("--dry-run", ""),
        ),
        CommandSpec(
            "mounts",
            "Check the mounts, or run `mounts ensure|prepare|await|clear NAME`.",
            f"{_MOUNTS}:check_mounts_or_run_action_command",
            arguments=(ArgumentSpec("names", "NAME", "Mounts to check; default: all.", "*"),),
            options=(_JSON,),
            examples=("", "fsx --json", "ensure fsx  # mount it, once"),
        ),
        CommandSpec(
            "health",
            "Check all mounts, count failures and start repairs (run by a timer).",
            f"{_MOUNTS}:run_health_check_command",
            options=(_JSON,),
            examples=("--json",),
        ),
        CommandSpec(
            "repair",
            "Repair one mount (started by the health check).",
            f"{_MOUNTS}:repair_mount_command",
            arguments=(ArgumentSpec("name", "NAME", "Name of the mount."),),
            examples=("fsx",),
        ),
        CommandSpec(
            "drain",
            "Drain or resume this node in Slurm, by the state of its mounts (started by the health check).",
            f"{_MOUNTS}:update_slurm_drain_command",
        ),
        CommandSpec(
            "slurm-state",
            "Keep the lease on Slurm's shared state (run by a unit).",
            f"{_CREATION}:keep_slurm_state_lease_command",
        ),
        CommandSpec(
            "memory",
            "Save and free the shared memory that ended jobs left (run by a timer).",
            f"{_MOUNTS}:clean_up_memory_command",
        ),
        CommandSpec(
            "upkeep",
            "Run the recurring work of optional steps (run by a timer).",
            "hyperpod_kit.node.cli:run_upkeep_command",
        ),
        CommandSpec(
            "devices",
            "Check the GPUs and EFA devices.",
            "hyperpod_kit.node.devices.commands:check_devices_command",
            options=(
                _JSON,
                OptionSpec("--dcgm", "Also run `dcgmi diag -r 1`, as the gate may."),
                OptionSpec("--count", "Count failures, update Slurm, write metrics."),
            ),
            examples=("", "--dcgm --json", "--count  # as the timer does"),
        ),
        CommandSpec(
            "slurm",
            "Check Slurm on this node.",
            "hyperpod_kit.node.slurm.guard.commands:check_slurm_command",
            options=(_JSON, OptionSpec("--mend", "Restore hyperpod-kit's hooks, record findings, write metrics.")),
            examples=("", "--json", "--mend  # as the timer does"),
        ),
        CommandSpec("secrets", "Fetch this node's secrets (run by a unit at boot).", f"{_CREATION}:secrets_command"),
        CommandSpec(
            "actions",
            "List what hyperpod-kit did here as root to things that belong to others.",
            "hyperpod_kit.node.commands.actions:print_audited_actions_command",
            options=(
                _JSON,
                OptionSpec(
                    "--since",
                    "Start of the period: 45s, 30m, 2h or 3d ago, or @SECONDS; default: 1d.",
                    "WHEN",
                    default="1d",
                ),
            ),
            examples=("", "--since 2h --json"),
        ),
        CommandSpec(
            "audit",
            "Record who does what to which file of a mount, until stopped.",
            "hyperpod_kit.node.cli:run_file_audit_command",
            arguments=(ArgumentSpec("place", "MOUNT", "Path of the mount."),),
            options=(OptionSpec("--log", "File to append to, on another file system.", "FILE", is_required=True),),
            examples=("/fsx --log /var/lib/hyperpod-kit/audit.jsonl",),
        ),
        CommandSpec(
            "fetch",
            "Fetch a bundle from S3 (run by a rollout).",
            "hyperpod_kit.node.commands.fetch_bundle:fetch_bundle_command",
            arguments=(
                ArgumentSpec("uri", "URI", "S3 prefix of the bundle."),
                ArgumentSpec("directory", "DIRECTORY", "Directory to create."),
            ),
            examples=("s3://BUCKET/PREFIX /root/new",),
        ),
        CommandSpec(
            "uninstall",
            "Remove what hyperpod-kit installed on this node.",
            "hyperpod_kit.node.commands.uninstall:uninstall_command",
            options=(OptionSpec("--dry-run", "Show what would be removed and what stays, and change nothing."),),
            examples=("--dry-run", ""),
        ),
        CommandSpec("gate", "Tell Slurm's Prolog whether a job may start here.", f"{_MOUNTS}:prolog_gate_command"),
        CommandSpec(
            "ask",
            "Query the mounts of other nodes (run by validate-mounts --via controller).",
            "hyperpod_kit.node.cli:query_peers_command",
        ),
    ),
)
