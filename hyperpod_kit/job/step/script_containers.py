"""Recognise a container that the rank's command starts itself, and say what will not work inside: `job run -- podman
run …`, docker, apptainer or singularity.

The wrapper is outside then. Variables, the checkpoint root, shared memory and process ids reach the trainer only as far
as the command lets them in.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_RESUME_FROM
from hyperpod_kit.job.step.container import Container, covered, top

if TYPE_CHECKING:  # each rank's wrapper reads this file
    from hyperpod_kit.job.step.options import RunOptions

OCI, APPTAINER = ("podman", "docker", "nerdctl"), ("apptainer", "singularity")
_STARTS = ("run", "exec", "shell")
_ALL = (HPK_ATTEMPT, HPK_RESUME_FROM, "SLURM_PROCID")
"""Variables without which a trainer starts from scratch, or beside what it saved before."""


class ScriptContainer(NamedTuple):
    """A container that a command starts. `program`: its base name; `options`: by long name, the values in order."""

    program: str
    options: Dict[str, Tuple[str, ...]]

    @property
    def mounts(self) -> Tuple[str, ...]:
        """The paths inside the container at which something is mounted."""
        paths_inside = [_path_inside_of_mount_spec(mount_spec) for mount_spec in self._mount_specs()]
        paths_inside += [_target_of_mount_option(mount_option) for mount_option in self.options.get("mount", ())]
        return tuple(os.path.normpath(path) for path in paths_inside if path.startswith("/"))

    def _mount_specs(self) -> Iterator[str]:
        """Yield each SRC[:DST[:FLAGS]]: one of each volume, and those of each bind, which may hold several."""
        yield from self.options.get("volume", ())
        for bind_specs in self.options.get("bind", ()):
            yield from bind_specs.split(",")

    def losses_with_remedies(self) -> Iterator[Tuple[str, str]]:
        """Yield pairs of what will not work inside, and what to add to the command or to leave out of it."""
        if self.program in APPTAINER:
            if self._any("containall", "ipc"):
                yield "captures in memory are lost with the container", "leave out --containall and --ipc"
            elif self._any("contain"):
                yield "/dev/shm is the container's own", "leave out --contain, or add --bind /dev/shm"
            if self._any("containall", "pid"):
                yield "the progress of a rank is unknown outside the container", "leave out --containall and --pid"
            if self._any("containall", "cleanenv"):
                yield "the trainer gets no checkpoint to resume from", "leave out --containall and --cleanenv"
            return
        if self._value("ipc") != "host":
            yield (
                "/dev/shm is the container's own, of 64 MB: no larger state can be captured, and captures are lost "
                "with the container",
                "--ipc=host",
            )
        if self._value("pid") != "host":
            yield (
                "the container has its own process ids, which the programs that manage shared memory outside cannot "
                "match",
                "--pid=host",
            )
        if not self._any("env-host") and not all(self._is_variable_passed_in(name) for name in _ALL):
            yield "the trainer gets no checkpoint to resume from", self._option_passing_environment()
        if self._value("network") != "host":
            yield "ranks of several nodes do not find each other", "--network=host"
        if self.program == "docker":
            yield (
                "the container is a child of docker's daemon and outlives a killed rank, so it runs beside the next "
                "attempt's container",
                "use podman, apptainer or pyxis instead",
            )

    def _option_passing_environment(self) -> str:
        if self.program == "podman":
            return "--env-host"
        return "--env-file with all HPK_*, SLURM_*, MASTER_* of `env`"

    def mount(self, path: str) -> str:
        """Return the option that mounts a path at the same path inside."""
        option = "-v"
        if self.program in APPTAINER:
            option = "--bind"
        return f"{option} {path}:{path}"

    def _any(self, *names: str) -> bool:
        return any(name in self.options for name in names)

    def _value(self, name: str) -> str:
        values = self.options.get(name)
        if not values:
            return ""
        return values[-1]

    def _is_variable_passed_in(self, name: str) -> bool:
        given = self.options.get("env", ())
        return "env-file" in self.options or name in given


_VALUES = ("volume", "mount", "env", "env-file", "ipc", "pid", "network", "bind")
_BEFORE = ("env", "nice", "numactl", "sudo")
"""Programs that may stand before the container's in a command."""

_FLAGS = ("env-host", "contain", "containall", "cleanenv")
_SHORT = {
    **{program: {"v": "volume", "e": "env"} for program in OCI},
    **{
        program: {"B": "bind", "c": "contain", "C": "containall", "e": "cleanenv", "i": "ipc", "p": "pid"}
        for program in APPTAINER
    },
}


def container_started_by_command(command: Sequence[str]) -> Optional[ScriptContainer]:
    """Return the container that a command starts, None when it starts none that is known."""
    for at, word in enumerate(command):
        program = os.path.basename(word)
        if program in _SHORT and any(argument in _STARTS for argument in command[at + 1 :]):
            return ScriptContainer(program, _options(program, command[at + 1 :]))
        if program not in _BEFORE and "=" not in word and not word.startswith("-"):
            return None  # another program, of which that would be an argument
    return None


def _options(program: str, arguments: Sequence[str]) -> Dict[str, Tuple[str, ...]]:
    # What is the image and what the trainer's own is not told apart: that would take the table of all options.
    values_by_option: Dict[str, Tuple[str, ...]] = {}
    for number, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        key = _long_option_name(program, name)
        is_flag = key in _FLAGS or (program in APPTAINER and key in ("ipc", "pid"))
        if not is_flag and key not in _VALUES:
            continue
        if is_flag:
            value = ""
        elif not equals:
            value = " ".join(arguments[number + 1 : number + 2])
        values_by_option[key] = (*values_by_option.get(key, ()), value)
    return values_by_option


def _long_option_name(program: str, name: str) -> str:
    """Return the long name, without dashes, of an option as the command has it; "" for an argument that is none."""
    if len(name) == 2 and name[0] == "-":
        long_name = _SHORT[program].get(name[1:], "")
        if long_name:
            return long_name
    if name == "--net":
        return "network"
    if name.startswith("--"):
        return name[2:]
    return ""


def doubts(command: Sequence[str], needed: Sequence[str]) -> Iterator[str]:
    """Yield what will probably go wrong inside, each with what to type. `needed`: the directories of checkpoints and
    records."""
    inside = container_started_by_command(command)
    if inside is None:
        return
    for path in needed:
        if not covered(path, inside.mounts):
            yield f"{path} is in none of {inside.program}'s mounts; add {inside.mount(top(path))}"
    for loss, remedy in inside.losses_with_remedies():
        yield f"{inside.program}: {loss}; {remedy}"


def doubts_of(container: Optional[Container], options: RunOptions, program: str) -> Iterator[str]:
    """Return the doubts about a container of either kind: the `container` that srun starts, or one of the command's."""
    if container is not None:
        return container.doubts(options.directories_needed_by_ranks, options.command, program)
    return doubts(options.command, options.directories_needed_by_ranks)


def _path_inside_of_mount_spec(mount: str) -> str:
    """Return the path inside, of SRC[:DST[:FLAGS]]."""
    parts = mount.split(":")
    if len(parts) > 1 and parts[1].startswith("/"):
        return parts[1]
    return parts[0]


def _target_of_mount_option(mount_option: str) -> str:
    """Return the path inside, of a `--mount` option's KEY=VALUE,…; "" where it has none."""
    fields = dict(part.partition("=")[::2] for part in mount_option.split(","))
    for key in ("target", "destination", "dst"):
        if fields.get(key):
            return fields[key]
    return ""
