#!/usr/bin/python3 -IS
"""Stands in, below HPK_ROOT, for every program that would change the machine: one file, linked under each name.

Each call becomes one JSON line in <root>/sandbox/commands.jsonl; of its effect only that is imitated which a script
looks at afterwards: the list of mounts, the state of units, users, what Slurm answers. No network, no root.
Standard library only, Python 3.8. A creation calls it a hundred times: what is dear to import is imported where it is
used, and paths are texts.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # as typing has it, whose import takes as long as all the others
    from typing import Any, Callable, Dict, List, Sequence

ROOT = os.environ.get("HPK_ROOT", "/nonexistent")
STATE = f"{ROOT}/sandbox"
MOUNTINFO = f"{ROOT}/proc/self/mountinfo"
UNITS = f"{ROOT}/etc/systemd/system"


def read_text(path: str) -> str:
    with open(path) as file:
        return file.read()


def write_text(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def append_text(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def read_state(name: str) -> Dict[str, Any]:
    """Return the dict that an earlier call wrote, {} when there is none."""
    try:
        data: Dict[str, Any] = json.loads(read_text(f"{STATE}/{name}"))
        return data
    except OSError:
        return {}


def write_state(name: str, data: Dict[str, Any]) -> None:
    """Write a dict for later calls."""
    write_text(f"{STATE}/{name}", json.dumps(data))


def add_to_mountinfo(path: str, fs_type: str, source: str) -> None:
    """List a mount as the kernel would; of kind `none` a directory of another mount, bound."""
    os.makedirs(f"{ROOT}/{path.lstrip('/')}", exist_ok=True)
    lines = [line.split() for line in read_text(MOUNTINFO).splitlines()]
    number = 100 + len(lines)
    device, root = f"0:{number}", "/"
    if fs_type == "none":
        above = [line for line in lines if (source + "/").startswith(line[4].rstrip("/") + "/")]
        nearest = max(above, key=lambda line: len(line[4]))
        device, root, fs_type = nearest[2], source[len(nearest[4].rstrip("/")) :] or "/", nearest[-3]
        source = nearest[-2]
    append_text(
        MOUNTINFO, f"{number} 1 {device} {root} {path} rw,nosuid,nodev,relatime shared:1 - {fs_type} {source} rw\n"
    )


def positional_arguments(args: Sequence[str], value_options: Sequence[str]) -> List[str]:
    """Return the positional arguments, where the options of `value_options` take the next word."""
    positional: List[str] = []
    arguments = iter(args)
    for argument in arguments:
        if argument in value_options:
            next(arguments, None)
        elif not argument.startswith("-"):
            positional.append(argument)
    return positional


def imitate_mount(args: List[str]) -> int:
    """mount -t TYPE SOURCE PATH, shown as the real client's mounts are."""
    rest = positional_arguments(args, ("-t", "-o", "--types", "--options"))
    kind = "none"
    if "-t" in args:
        kind = args[args.index("-t") + 1]
    if len(rest) == 2:
        fs_type, source = read_state("shown.json").get(kind, (kind, "{source}"))
        add_to_mountinfo(rest[1], fs_type, source.format(source=rest[0], name=rest[0].rpartition(":/")[2]))
    return 0


def imitate_mount_s3(args: List[str]) -> int:
    """mount-s3 … BUCKET PATH."""
    if "--version" in args:
        return print_made_up_client_version(args)
    add_to_mountinfo(args[-1], "fuse", "mountpoint-s3")
    return 0


def print_made_up_client_version(args: List[str]) -> int:
    """Print a version that is new enough for every mount and says that it is the sandbox's."""
    print("99.0 (sandbox of hyperpod-kit: no mount client)")
    return 0


def imitate_modinfo(args: List[str]) -> int:
    """Print a version: every module exists."""
    print("99.0")
    return 0


def imitate_umount(args: List[str]) -> int:
    """Take the newest mount at a path off the list."""
    path = positional_arguments(args, ())[-1]
    lines = read_text(MOUNTINFO).splitlines()
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].split()[4] == path:
            del lines[index]
            break
    write_text(MOUNTINFO, "".join(line + "\n" for line in lines))
    return 0


def unit_key_values(unit: str, key: str) -> List[str]:
    """Values of a key in a unit's file, in order, without systemd's prefixes."""
    path = f"{UNITS}/{unit}"
    if not os.path.exists(path):
        return []
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line.partition("=")[2].lstrip("-@+!:") for line in lines if line.startswith(key + "=")]


def run_program(command: Sequence[str]) -> int:
    """Run a program and return its exit code."""
    import subprocess

    return subprocess.run(command, timeout=300).returncode


def run_unit_command(line: str) -> int:
    """Run a line of a unit: a program of the bundle below the root, anything else as a shim."""
    import shlex

    command = shlex.split(line)
    program = f"{ROOT}/{command[0].lstrip('/')}"
    if os.path.exists(program) and os.path.getsize(program):
        return run_program([program, *command[1:]])
    return record_and_imitate(os.path.basename(command[0]), command[1:])


def full_unit_name(unit: str) -> str:
    """Add `.service` to a unit's name without a type."""
    if "." in unit:
        return unit
    return unit + ".service"


def imitate_unit_start(unit: str) -> int:
    """Do what starting a service would: its commands, in systemd's order. Timers and others only become active."""
    import shlex

    running = read_state("running")
    unit = full_unit_name(unit)
    if unit in running:
        return 0
    running[unit] = 4000 + len(running)
    write_state("running", running)
    for line in unit_key_values(unit, "ExecStart")[:1]:
        process = f"{ROOT}/proc/{running[unit]}"
        os.makedirs(process, exist_ok=True)
        write_text(f"{process}/cmdline", "\0".join(shlex.split(line)) + "\0")
        write_text(f"{process}/status", "Uid:\t0\t0\t0\t0\n")
    if not unit.endswith(".service"):
        return 0
    for key in ("ExecStartPre", "ExecStart", "ExecStartPost"):
        for line in unit_key_values(unit, key):
            code = run_unit_command(line)
            if code != 0:
                running = read_state("running")
                running.pop(unit, None)
                write_state("running", running)
                return code
    return 0


def print_unit_states(units: Sequence[str], running: Dict[str, Any]) -> None:
    """Print what `systemctl show` says of each unit. `running`: process ids by unit."""
    for unit in units:
        state = "inactive"
        if unit in running:
            state = "active"
        print(f"MainPID={running.get(unit, 0)}\nActiveState={state}")


def imitate_systemctl(args: List[str]) -> int:
    """Imitate the verbs of systemctl that the scripts use, over the recorded states of units."""
    positional = positional_arguments(args, ("--property", "-p"))
    verb, units = "".join(positional[:1]), positional[1:]
    enabled, running = read_state("enabled"), read_state("running")
    named = [full_unit_name(unit) for unit in units]
    if verb == "is-enabled":
        if all(unit in enabled for unit in named):
            return 0
        return 1
    if verb == "is-active":
        if all(unit in running for unit in named):
            return 0
        return 3
    if verb == "show":
        print_unit_states(named, running)
        return 0
    if verb == "enable":
        write_state("enabled", {**enabled, **{unit: True for unit in named}})
    if verb in ("stop", "restart", "kill"):
        write_state("running", {unit: pid for unit, pid in running.items() if unit not in named})
    if verb in ("start", "restart") or (verb == "enable" and "--now" in args):
        return max([imitate_unit_start(unit) for unit in named], default=0)
    return 0


def imitate_getent(args: List[str]) -> int:
    """Users and groups of the sandbox's own files; every host name resolves."""
    database, keys = args[0], args[1:]
    if database in ("hosts", "ahosts", "ahostsv4"):
        print("\n".join(f"10.1.0.1 STREAM {key}" for key in keys))
        return 0
    lines = read_text(f"{ROOT}/etc/{database}").splitlines()
    matches = []
    for line in lines:
        fields = line.split(":")
        matches += [line for key in keys if key in (fields[0], fields[2])]
    print("\n".join(matches))
    if matches:
        return 0
    return 2


def option_value(args: Sequence[str], names: Sequence[str], default: str) -> str:
    """Value of the first of an option's spellings."""
    for index, word in enumerate(args):
        for name in names:
            if word == name and index + 1 < len(args):
                return args[index + 1]
            if word.startswith(name + "="):
                return word.partition("=")[2]
    return default


def imitate_useradd(args: List[str]) -> int:
    """Append a user to the sandbox's passwd file."""
    uid = option_value(args, ("--uid", "-u"), "1001")
    gid = option_value(args, ("--gid", "-g"), uid)
    append_text(f"{ROOT}/etc/passwd", f"{args[-1]}:x:{uid}:{gid}::/home/{args[-1]}:/bin/bash\n")
    return 0


def imitate_groupadd(args: List[str]) -> int:
    """Append a group to the sandbox's group file."""
    append_text(f"{ROOT}/etc/group", f"{args[-1]}:x:{option_value(args, ('--gid', '-g'), '1001')}:\n")
    return 0


def imitate_scontrol(args: List[str]) -> int:
    """A controller that is up and a node that has registered just now.

    Like the real one it does nothing, not even --version, on a node that has no configuration yet.
    """
    if not os.path.exists(f"{ROOT}/opt/slurm/etc/slurm.conf") and "slurmd.service" not in read_state("running"):
        print("scontrol: fatal: Could not establish a configuration source", file=sys.stderr)
        return 1
    if "--version" in args or "-V" in args:
        print("slurm 22.05.8")
    elif "ping" in args:
        print("Slurmctld(primary) at sandbox is UP")
    elif "show" in args:
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        print(f"NodeName={args[-1]} State=IDLE BootTime={now} SlurmdStartTime={now}")
    return 0


def imitate_nft(args: List[str]) -> int:
    """Store the rules given with --file; otherwise print the stored ones."""
    if "--file" in args:
        # It lists what the table holds, not the words that replaced it.
        write_state("nft", {"rules": "\n".join(sys.stdin.read().splitlines()[2:])})
        return 0
    print(read_state("nft").get("rules", ""))
    if read_state("nft"):
        return 0
    return 1


def imitate_compiler(args: List[str]) -> int:
    """Write an empty file where the compiler's output would be."""
    target = option_value(args, ("-o",), "")
    if target:
        write_text(target, "")
    return 0


def imitate_sudo(args: List[str]) -> int:
    """Run the command behind sudo's options as the present user."""
    rest = list(args)
    while rest and rest[0].startswith("-"):
        if rest[0] in ("-u", "--user", "-g"):
            rest = rest[2:]
        else:
            rest = rest[1:]
    if rest:
        return run_program(rest)
    return 0


HANDLERS: Dict[str, Callable[[List[str]], int]] = {
    "mount": imitate_mount,
    "mount-s3": imitate_mount_s3,
    "umount": imitate_umount,
    "systemctl": imitate_systemctl,
    "getent": imitate_getent,
    "useradd": imitate_useradd,
    "groupadd": imitate_groupadd,
    "scontrol": imitate_scontrol,
    "cc": imitate_compiler,
    "gcc": imitate_compiler,
    "sudo": imitate_sudo,
    "modinfo": imitate_modinfo,
    "nft": imitate_nft,
}


def record_and_imitate(name: str, args: List[str]) -> int:
    """Record a command and imitate it. A name without a handler succeeds in silence."""
    append_text(f"{STATE}/commands.jsonl", json.dumps([name, *args]) + "\n")
    handler = HANDLERS.get(name)
    if name.startswith("mount."):
        handler = print_made_up_client_version
    if handler:
        return handler(args)
    return 0


if __name__ == "__main__":
    sys.exit(record_and_imitate(os.path.basename(sys.argv[0]), sys.argv[1:]))
