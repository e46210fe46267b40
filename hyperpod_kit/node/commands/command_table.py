"""The table of the commands of `hyperpod-kit node`.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, GroupSpec, OptionSpec
from hyperpod_kit.model.states import LIFECYCLE_MODES

_CREATION = "hyperpod_kit.node.commands.creation_commands"
_MOUNTS = "hyperpod_kit.node.commands.mount_commands"

_JSON = OptionSpec("--json", "Data on standard output, words on standard error.")
_MODE = OptionSpec("--mode", "Default: what the bundle was made for.", choices=LIFECYCLE_MODES)
_SLURM_STATE = OptionSpec(
    "--slurm-state",
    "Which copy of Slurm's state goes on, where their ages do not tell; the other one is kept aside.",
    choices=("shared", "own"),
)

NODE = GroupSpec(
    "node",
    "Work on this node.",
    (
        CommandSpec(
            "facts",
            "Who this node is, read anew.",
            f"{_CREATION}:facts_command",
            options=(_JSON,),
            examples=("--json",),
        ),
        CommandSpec(
            "plan",
            "What apply would do now; changes nothing.",
            f"{_CREATION}:plan_command",
            options=(_JSON, _MODE, _SLURM_STATE),
            examples=("", "--mode on_create --json"),
        ),
        CommandSpec(
            "apply",
            "Make this node what the bundle says.",
            f"{_CREATION}:apply_command",
            options=(_JSON, _MODE, _SLURM_STATE, OptionSpec("--dry-run", "As plan: say it, change nothing.")),
            examples=("--dry-run", ""),
        ),
        CommandSpec(
            "mounts",
            "Check the mounts now; or `mounts ensure|prepare|await|clear NAME`.",
            f"{_MOUNTS}:check_mounts_or_run_action_command",
            arguments=(ArgumentSpec("names", "NAME", count="*"),),
            options=(_JSON,),
            examples=("", "fsx --json", "ensure fsx  # mount it, once"),
        ),
        CommandSpec(
            "health",
            "Check all mounts, count, order repairs: what the timer runs.",
            f"{_MOUNTS}:run_health_check_command",
            options=(_JSON,),
            examples=("--json",),
        ),
        CommandSpec(
            "repair",
            "Repair one mount now: what the timer orders.",
            f"{_MOUNTS}:repair_mount_command",
            arguments=(ArgumentSpec("name", "NAME"),),
            examples=("fsx",),
        ),
        CommandSpec(
            "drain",
            "Tell Slurm whether the mounts serve: what the timer orders.",
            f"{_MOUNTS}:update_slurm_drain_command",
        ),
        CommandSpec(
            "slurm-state",
            "Keep Slurm's shared state this machine's alone: a unit's.",
            f"{_CREATION}:keep_slurm_state_lease_command",
        ),
        CommandSpec(
            "memory",
            "Save and free the shared memory that ended jobs left: what a timer runs.",
            f"{_MOUNTS}:clean_up_memory_command",
        ),
        CommandSpec(
            "upkeep",
            "Keep up what optional steps want done again and again: what a timer runs.",
            "hyperpod_kit.node.cli:run_upkeep_command",
        ),
        CommandSpec(
            "devices",
            "Look at the GPUs and EFA devices now.",
            "hyperpod_kit.node.devices.commands:check_devices_command",
            options=(
                _JSON,
                OptionSpec("--dcgm", "Run `dcgmi diag -r 1` too, as the gate may."),
                OptionSpec("--count", "Count what is found, tell Slurm, leave metrics."),
            ),
            examples=("", "--dcgm --json", "--count  # what the timer runs"),
        ),
        CommandSpec(
            "slurm",
            "Look at Slurm on this node now.",
            "hyperpod_kit.node.slurm.guard.commands:check_slurm_command",
            options=(_JSON, OptionSpec("--mend", "Put back what is the kit's, keep what is found, leave metrics.")),
            examples=("", "--json", "--mend  # what the timer runs"),
        ),
        CommandSpec(
            "secrets", "Fetch this node's secrets: what their unit runs at boot.", f"{_CREATION}:secrets_command"
        ),
        CommandSpec(
            "actions",
            "What was done here with root's rights to what is another's.",
            "hyperpod_kit.node.commands.actions:print_audited_actions_command",
            options=(
                _JSON,
                OptionSpec("--since", "45s, 30m, 2h, 3d ago (default: 1d), or @SECONDS.", "WHEN", default="1d"),
            ),
            examples=("", "--since 2h --json"),
        ),
        CommandSpec(
            "audit",
            "Who does what to which file of a mount, until it is ended; off unless it is started.",
            "hyperpod_kit.node.cli:run_file_audit_command",
            arguments=(ArgumentSpec("place", "MOUNT"),),
            options=(OptionSpec("--log", "Lines are added to it; on another file system.", "FILE", is_required=True),),
            examples=("/fsx --log /var/lib/hyperpod-kit/audit.jsonl",),
        ),
        CommandSpec(
            "fetch",
            "Fetch a bundle from S3: what a rollout runs.",
            "hyperpod_kit.node.commands.fetch_bundle:fetch_bundle_command",
            arguments=(ArgumentSpec("uri", "URI"), ArgumentSpec("directory", "DIRECTORY")),
            examples=("s3://BUCKET/PREFIX /root/new",),
        ),
        CommandSpec(
            "uninstall",
            "Take back what the kit put on this node.",
            "hyperpod_kit.node.commands.uninstall:uninstall_command",
            options=(OptionSpec("--dry-run", "Say what would go and what stays, change nothing."),),
            examples=("--dry-run", ""),
        ),
        CommandSpec("gate", "May a job start here? (Prolog)", f"{_MOUNTS}:prolog_gate_command"),
        CommandSpec(
            "ask",
            "Ask other nodes for their mounts: what validate-mounts --via controller runs here.",
            "hyperpod_kit.node.cli:query_peers_command",
        ),
    ),
)
