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


def text_of(path: str) -> str:
    with open(path) as file:
        return file.read()


def write_text(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def append(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


def read_state(name: str) -> Dict[str, Any]:
    """A dict that an earlier call kept."""
    try:
        data: Dict[str, Any] = json.loads(text_of(f"{STATE}/{name}"))
        return data
    except OSError:
        return {}


def keep_state(name: str, data: Dict[str, Any]) -> None:
    """Keep a dict for later calls."""
    write_text(f"{STATE}/{name}", json.dumps(data))


def add_mount(path: str, kind: str, source: str) -> None:
    """List a mount as the kernel would; of kind `none` a directory of another mount, bound."""
    os.makedirs(f"{ROOT}/{path.lstrip('/')}", exist_ok=True)
    lines = [line.split() for line in text_of(MOUNTINFO).splitlines()]
    number = 100 + len(lines)
    device, root = f"0:{number}", "/"
    if kind == "none":
        above = [line for line in lines if (source + "/").startswith(line[4].rstrip("/") + "/")]
        nearest = max(above, key=lambda line: len(line[4]))
        device, root, kind = nearest[2], source[len(nearest[4].rstrip("/")) :] or "/", nearest[-3]
        source = nearest[-2]
    append(MOUNTINFO, f"{number} 1 {device} {root} {path} rw,nosuid,nodev,relatime shared:1 - {kind} {source} rw\n")


def operands(args: Sequence[str], with_value: Sequence[str]) -> List[str]:
    """Positional arguments, where the options of `with_value` take the next word."""
    positional: List[str] = []
    arguments = iter(args)
    for argument in arguments:
        if argument in with_value:
            next(arguments, None)
        elif not argument.startswith("-"):
            positional.append(argument)
    return positional


def mount(args: List[str]) -> int:
    """mount -t TYPE SOURCE PATH, shown as the real client's mounts are."""
    rest = operands(args, ("-t", "-o", "--types", "--options"))
    kind = "none"
    if "-t" in args:
        kind = args[args.index("-t") + 1]
    if len(rest) == 2:
        fs_type, source = read_state("shown.json").get(kind, (kind, "{source}"))
        add_mount(rest[1], fs_type, source.format(source=rest[0], name=rest[0].rpartition(":/")[2]))
    return 0


def mount_s3(args: List[str]) -> int:
    """mount-s3 … BUCKET PATH."""
    if "--version" in args:
        return client_version(args)
    add_mount(args[-1], "fuse", "mountpoint-s3")
    return 0


def client_version(args: List[str]) -> int:
    """What a client says of itself: new enough for every mount, and that it is none."""
    print("99.0 (sandbox of hyperpod-kit: no mount client)")
    return 0


def modinfo(args: List[str]) -> int:
    """Every module is there."""
    print("99.0")
    return 0


def umount(args: List[str]) -> int:
    """Take the newest mount at a path off the list."""
    path = operands(args, ())[-1]
    lines = text_of(MOUNTINFO).splitlines()
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].split()[4] == path:
            del lines[index]
            break
    write_text(MOUNTINFO, "".join(line + "\n" for line in lines))
    return 0


def unit_lines(unit: str, key: str) -> List[str]:
    """Values of a key in a unit's file, in order, without systemd's prefixes."""
    path = f"{UNITS}/{unit}"
    if not os.path.exists(path):
        return []
    lines = (line.strip() for line in text_of(path).splitlines())
    return [line.partition("=")[2].lstrip("-@+!:") for line in lines if line.startswith(key + "=")]


def run(command: Sequence[str]) -> int:
    """A program, to its end."""
    import subprocess

    return subprocess.run(command, timeout=300).returncode


def run_line(line: str) -> int:
    """Run a line of a unit: a program of the bundle below the root, anything else as a shim."""
    import shlex

    command = shlex.split(line)
    program = f"{ROOT}/{command[0].lstrip('/')}"
    if os.path.exists(program) and os.path.getsize(program):
        return run([program, *command[1:]])
    return call(os.path.basename(command[0]), command[1:])


def full_name(unit: str) -> str:
    """Add `.service` to a unit's name without a type."""
    if "." in unit:
        return unit
    return unit + ".service"


def start_unit(unit: str) -> int:
    """Do what starting a service would: its commands, in systemd's order. Timers and others only become active."""
    import shlex

    running = read_state("running")
    unit = full_name(unit)
    if unit in running:
        return 0
    running[unit] = 4000 + len(running)
    keep_state("running", running)
    for line in unit_lines(unit, "ExecStart")[:1]:
        process = f"{ROOT}/proc/{running[unit]}"
        os.makedirs(process, exist_ok=True)
        write_text(f"{process}/cmdline", "\0".join(shlex.split(line)) + "\0")
        write_text(f"{process}/status", "Uid:\t0\t0\t0\t0\n")
    if not unit.endswith(".service"):
        return 0
    for key in ("ExecStartPre", "ExecStart", "ExecStartPost"):
        for line in unit_lines(unit, key):
            code = run_line(line)
            if code != 0:
                running = read_state("running")
                running.pop(unit, None)
                keep_state("running", running)
                return code
    return 0


def show_units(units: Sequence[str], running: Dict[str, Any]) -> None:
    """Print what `systemctl show` says of each unit. `running`: process ids by unit."""
    for unit in units:
        state = "inactive"
        if unit in running:
            state = "active"
        print(f"MainPID={running.get(unit, 0)}\nActiveState={state}")


def systemctl(args: List[str]) -> int:
    """Units that are enabled and active, as far as asked for here."""
    positional = operands(args, ("--property", "-p"))
    verb, units = "".join(positional[:1]), positional[1:]
    enabled, running = read_state("enabled"), read_state("running")
    named = [full_name(unit) for unit in units]
    if verb == "is-enabled":
        if all(unit in enabled for unit in named):
            return 0
        return 1
    if verb == "is-active":
        if all(unit in running for unit in named):
            return 0
        return 3
    if verb == "show":
        show_units(named, running)
        return 0
    if verb == "enable":
        keep_state("enabled", {**enabled, **{unit: True for unit in named}})
    if verb in ("stop", "restart", "kill"):
        keep_state("running", {unit: pid for unit, pid in running.items() if unit not in named})
    if verb in ("start", "restart") or (verb == "enable" and "--now" in args):
        return max([start_unit(unit) for unit in named], default=0)
    return 0


def getent(args: List[str]) -> int:
    """Users and groups of the sandbox's own files; every host name resolves."""
    database, keys = args[0], args[1:]
    if database in ("hosts", "ahosts", "ahostsv4"):
        print("\n".join(f"10.1.0.1 STREAM {key}" for key in keys))
        return 0
    lines = text_of(f"{ROOT}/etc/{database}").splitlines()
    matches = []
    for line in lines:
        fields = line.split(":")
        matches += [line for key in keys if key in (fields[0], fields[2])]
    print("\n".join(matches))
    if matches:
        return 0
    return 2


def option(args: Sequence[str], names: Sequence[str], default: str) -> str:
    """Value of the first of an option's spellings."""
    for index, word in enumerate(args):
        for name in names:
            if word == name and index + 1 < len(args):
                return args[index + 1]
            if word.startswith(name + "="):
                return word.partition("=")[2]
    return default


def useradd(args: List[str]) -> int:
    """A line in the sandbox's passwd."""
    uid = option(args, ("--uid", "-u"), "1001")
    gid = option(args, ("--gid", "-g"), uid)
    append(f"{ROOT}/etc/passwd", f"{args[-1]}:x:{uid}:{gid}::/home/{args[-1]}:/bin/bash\n")
    return 0


def groupadd(args: List[str]) -> int:
    """A line in the sandbox's group file."""
    append(f"{ROOT}/etc/group", f"{args[-1]}:x:{option(args, ('--gid', '-g'), '1001')}:\n")
    return 0


def scontrol(args: List[str]) -> int:
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


def nft(args: List[str]) -> int:
    """Remembers the rules that it was given, and lists them."""
    if "--file" in args:
        # It lists what the table holds, not the words that replaced it.
        keep_state("nft", {"rules": "\n".join(sys.stdin.read().splitlines()[2:])})
        return 0
    print(read_state("nft").get("rules", ""))
    if read_state("nft"):
        return 0
    return 1


def compiler(args: List[str]) -> int:
    """An empty file where the compiler's output would be."""
    target = option(args, ("-o",), "")
    if target:
        write_text(target, "")
    return 0


def sudo(args: List[str]) -> int:
    """Run the rest as oneself."""
    rest = list(args)
    while rest and rest[0].startswith("-"):
        if rest[0] in ("-u", "--user", "-g"):
            rest = rest[2:]
        else:
            rest = rest[1:]
    if rest:
        return run(rest)
    return 0


HANDLERS: Dict[str, Callable[[List[str]], int]] = {
    "mount": mount,
    "mount-s3": mount_s3,
    "umount": umount,
    "systemctl": systemctl,
    "getent": getent,
    "useradd": useradd,
    "groupadd": groupadd,
    "scontrol": scontrol,
    "cc": compiler,
    "gcc": compiler,
    "sudo": sudo,
    "modinfo": modinfo,
    "nft": nft,
}


def call(name: str, args: List[str]) -> int:
    """Record a command and imitate it. A name without a handler succeeds in silence."""
    append(f"{STATE}/commands.jsonl", json.dumps([name, *args]) + "\n")
    handler = HANDLERS.get(name)
    if name.startswith("mount."):
        handler = client_version
    if handler:
        return handler(args)
    return 0


if __name__ == "__main__":
    sys.exit(call(os.path.basename(sys.argv[0]), sys.argv[1:]))
