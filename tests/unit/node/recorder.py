"""Stands in for systemctl, mount, useradd and the like below HPK_ROOT: records its command line, changes nothing else
than the files below that root which the real program would have changed. The shims of all names call this module.

A creation starts a hundred of these, so what would cost more than the rest (json, pathlib, shlex) is imported nowhere,
or by the call that needs it. What is kept between calls are Python's own literals.
"""

import os
import sys
import time

ROOT = os.environ["HPK_ROOT"]
NAME = os.path.basename(sys.argv[0])
ARGS = sys.argv[1:]
STATE = f"{ROOT}/recorder"
UNITS = f"{ROOT}/etc/systemd/system"
MOUNTINFO = f"{ROOT}/proc/self/mountinfo"
UNQUOTED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-")
"""Of a word of such characters alone, shlex.quote makes the same word."""


def text_of(path):
    with open(path) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def state(name):
    path = f"{STATE}/{name}"
    return eval(text_of(path)) if os.path.exists(path) else {}


def keep(name, data):
    write(f"{STATE}/{name}", repr(data))


def quoted(words):
    if all(word and UNQUOTED.issuperset(word) for word in words):
        return " ".join(words)
    import shlex

    return shlex.join(words)


def add_mount(path, fs_type, source, options="rw"):
    lines = text_of(MOUNTINFO).splitlines()
    number = 100 + len(text_of(f"{STATE}/calls").splitlines())
    lines.append(f"{number} 1 0:{number} / {path} rw,nosuid,nodev,relatime shared:1 - {fs_type} {source} {options}")
    write(MOUNTINFO, "\n".join(lines) + "\n")


def loaded(unit):
    """Text of a unit as systemd knows it: what the file said when it was first used, or at the last daemon-reload."""
    texts = state("loaded")
    if unit not in texts and os.path.isfile(f"{UNITS}/{unit}"):
        texts[unit] = text_of(f"{UNITS}/{unit}")
        keep("loaded", texts)
    return texts.get(unit, "")


def reload():
    texts = {unit: text_of(f"{UNITS}/{unit}") for unit in state("loaded") if os.path.isfile(f"{UNITS}/{unit}")}
    keep("loaded", texts)


def exec_lines(unit, key):
    text = loaded(unit)
    return [line.partition("=")[2].lstrip("-") for line in text.splitlines() if line.startswith(key + "=")]


def program(line):
    """Run a line of a unit that calls our own program, as systemd would."""
    import shlex
    import subprocess

    words = shlex.split(line)
    python = os.environ.get("HPK_TEST_PYTHON")
    ours = [python, "-I", "-S", f"{ROOT}/opt/hyperpod-kit/current/lib"] if python else [ROOT + words[0]]
    return subprocess.run([*ours, *words[1:]], timeout=60).returncode


def start(unit):
    running = state("running")
    if unit in running:
        return 0
    if "fail-" + unit in os.environ.get("HPK_TEST_FAIL", ""):
        return 1
    running[unit] = 4000 + len(running)
    keep("running", running)
    code = 0
    if unit.startswith("hyperpod-kit-s3-"):
        import shlex

        code = program(exec_lines(unit, "ExecStartPre")[0])
        words = shlex.split(exec_lines(unit, "ExecStart")[0])
        process = f"{ROOT}/proc/{running[unit]}"
        os.makedirs(process, exist_ok=True)
        write(f"{process}/cmdline", "\0".join(words) + "\0")
        write(f"{process}/status", "Uid:\t0\t0\t0\t0\n")
        add_mount(words[-1], "fuse", "mountpoint-s3")
        code = code or program(exec_lines(unit, "ExecStartPost")[0])
    elif unit.startswith("hyperpod-kit-repair@"):
        del running[unit]  # a one-shot that does not remain
        keep("running", running)
        line = text_of(f"{UNITS}/hyperpod-kit-repair@.service").partition("ExecStart=")[2].splitlines()[0]
        return program(line.replace("%i", unit.partition("@")[2].partition(".")[0]))
    elif unit.startswith("hyperpod-kit-mount-"):
        code = program(exec_lines(unit, "ExecStart")[0])
    if code:
        del running[unit]
        keep("running", running)
    return code


def stop(unit):
    running = state("running")
    was_running = running.pop(unit, None)
    keep("running", running)
    if was_running and unit.startswith("hyperpod-kit-s3-"):  # mount-s3 unmounts when it is told to end
        import shlex

        remove_mount(shlex.split(exec_lines(unit, "ExecStart")[0])[-1])


def show_states(verb, units):
    """Print a state for each unit unless that is not asked for; none has failed here."""
    running = state("running")
    if "--quiet" not in ARGS:
        print("\n".join("active" if unit in running else "inactive" for unit in units))
    if verb == "is-active" and units[0] in running:
        return 0
    return 3


def systemctl():
    words = [arg for arg in ARGS if not arg.startswith("--")]
    verb, units = words[0], words[1:]
    if verb == "is-enabled":
        return 0 if units[0] in state("enabled") else 1
    if verb in ("is-active", "is-failed"):
        return show_states(verb, units)
    if verb == "enable":
        keep("enabled", {**state("enabled"), **{unit: 1 for unit in units}})
    if verb == "disable":
        keep("enabled", {unit: 1 for unit in state("enabled") if unit not in units})
    if verb == "daemon-reload":
        reload()
    if verb == "show" and "NeedDaemonReload" in words:
        for unit in words[2:]:
            path = f"{UNITS}/{unit}"
            stale = unit in state("loaded") and os.path.isfile(path) and text_of(path) != loaded(unit)
            print(f"NeedDaemonReload={'yes' if stale else 'no'}\n")
        return 0
    if verb == "show":
        print(f"MainPID={state('running').get(units[-1], 0)}")
    if verb in ("stop", "restart"):
        for unit in units:
            stop(unit)
    if verb in ("start", "restart"):
        return max(start(unit) for unit in units)
    return 0


def mount():
    fs_type, options, source, path = ARGS[1], ARGS[3], ARGS[4], ARGS[5]
    if os.environ.get("HPK_TEST_FAIL") == "mount-" + fs_type:
        print("mount.nfs4: access denied by server while mounting 127.0.0.1:/", file=sys.stderr)
        return 32
    add_mount(
        path,
        "nfs4" if fs_type == "efs" else fs_type,
        "127.0.0.1:/" if fs_type == "efs" else source.replace(source.split("@")[0], "10.1.0.1"),
        options,
    )
    return 0


def getent():
    database, key = ARGS
    if database == "ahosts":
        return 0
    for line in text_of(f"{ROOT}/etc/{database}").splitlines():
        fields = line.split(":")
        if key in (fields[0], fields[2]):
            print(line)
            return 0
    return 2


def option(name):
    return ARGS[ARGS.index(name) + 1]


def useradd():
    with open(f"{ROOT}/etc/passwd", "a") as file:
        file.write(f"{ARGS[-1]}:x:{option('--uid')}:{option('--gid')}::/home/{ARGS[-1]}:/bin/bash\n")
    return 0


def groupadd():
    with open(f"{ROOT}/etc/group", "a") as file:
        file.write(f"{ARGS[-1]}:x:{option('--gid')}:\n")
    return 0


def remove_mount(path):
    lines = text_of(MOUNTINFO).splitlines()
    hit = [line for line in lines if line.split(" ")[4] == path]
    if not hit:
        return 32
    lines.remove(hit[-1])
    write(MOUNTINFO, "".join(line + "\n" for line in lines))
    return 0


def umount():
    return remove_mount(ARGS[-1])


def scontrol():
    if "--version" in ARGS:
        print("slurm-wlm 22.05.8")
    elif ARGS == ["ping"]:
        print("Slurmctld(primary) at ip-10-1-0-10 is UP")
    elif "node" in ARGS:
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        print(f"NodeName={ARGS[-1]} Arch=x86_64 State=IDLE BootTime={now} SlurmdStartTime={now}")
    return 0


def client():
    print(f"{NAME} Version: 9.9.9")
    return 0


def cc():
    write(option("-o"), "a shared object\n")
    return 0


def call(name, args):
    """Be `name` once; its exit code."""
    global NAME, ARGS
    NAME, ARGS = name, args
    os.makedirs(STATE, exist_ok=True)
    with open(f"{STATE}/calls", "a") as calls:
        calls.write(quoted([NAME, *ARGS]) + "\n")
    actions = {
        "systemctl": systemctl,
        "mount": mount,
        "umount": umount,
        "getent": getent,
        "useradd": useradd,
        "groupadd": groupadd,
        "scontrol": scontrol,
        "cc": cc,
        "mount-s3": client,
        "mount.efs": client,
    }
    return actions[NAME]() if NAME in actions else 0


def main():
    sys.exit(call(NAME, ARGS))
