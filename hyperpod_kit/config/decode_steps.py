"""The optional steps: hyperpod_kit.steps, where a key that is written turns its step on."""

from __future__ import annotations

from typing import Callable, Optional, TypeVar

from hyperpod_kit.config.section import Section
from hyperpod_kit.model.optional_steps import (
    Accounting,
    AccountingQos,
    DeviceChecks,
    Docker,
    Enroot,
    LoginMessage,
    LogRotation,
    NodeExporter,
    OptionalSteps,
    OutsideDatabase,
    PamSlurmAdopt,
    Podman,
    Pyxis,
    SlurmAccount,
    SshBetweenNodes,
    Sssd,
)

T = TypeVar("T")


def decode_steps(kit: Section) -> OptionalSteps:
    """Decode the optional steps that are on."""
    section = kit.child("steps", required=False)
    steps = OptionalSteps(
        accounting=_decode_if_written(section, "accounting", _accounting),
        log_rotation=_decode_if_written(section, "log_rotation", _log_rotation),
        login_message=_decode_if_written(section, "login_message", lambda inner: LoginMessage(inner.text("text", ""))),
        ssh_between_nodes=_decode_if_written(
            section, "ssh_between_nodes", lambda inner: SshBetweenNodes(inner.text("mount", ""))
        ),
        node_exporter=_decode_if_written(
            section, "node_exporter", lambda inner: NodeExporter(inner.text("listen", ":9100"))
        ),
        docker=_decode_if_written(section, "docker", lambda inner: Docker(inner.texts("users", Docker.users))),
        podman=_decode_if_written(section, "podman", lambda inner: Podman()),
        enroot=_decode_if_written(section, "enroot", lambda inner: Enroot()),
        pyxis=_decode_if_written(section, "pyxis", lambda inner: Pyxis()),
        pam_slurm_adopt=_decode_if_written(section, "pam_slurm_adopt", _pam_slurm_adopt),
        sssd=_decode_if_written(section, "sssd", _sssd),
        device_checks=_decode_if_written(section, "device_checks", _device_checks),
    )
    section.report_unknown_keys()
    return steps


def _decode_if_written(section: Section, key: str, decode: Callable[[Section], T]) -> Optional[T]:
    inner = section.child(key, required=False)
    if not section.has(key):
        return None  # with its defaults asked for, the configuration written in full would turn it on
    made = decode(inner)
    inner.report_unknown_keys()
    return made


def _log_rotation(section: Section) -> LogRotation:
    default = LogRotation()
    return LogRotation(section.text("size", default.size), section.integer("keep", default.keep))


def _pam_slurm_adopt(section: Section) -> PamSlurmAdopt:
    return PamSlurmAdopt(section.texts("users", PamSlurmAdopt.users), section.texts("groups", ()))


def _sssd(section: Section) -> Sssd:
    default = Sssd
    return Sssd(
        section.text("uri"),
        section.text("search_base"),
        section.text("schema", default.schema),
        section.text("bind_dn", default.bind_dn),
        section.text("secret_arn", default.secret_arn),
        section.text("ca_file", default.ca_file),
        section.text("home", default.home),
        section.texts("allow", ()),
        section.texts("sudo", ()),
    )


def _device_checks(section: Section) -> DeviceChecks:
    default = DeviceChecks()
    return DeviceChecks(
        section.text("action", default.action),
        section.boolean("gate", default.gate),
        section.boolean("dcgm", default.dcgm),
        section.boolean("efa", default.efa),
    )


def _accounting(section: Section) -> Accounting:
    database = _decode_if_written(section, "database", _database)
    accounts = tuple(_account(inner) for inner in section.children("accounts"))
    qos = tuple(_qos(inner) for inner in section.children("qos"))
    return Accounting(
        database, accounts, qos, section.texts("enforce", ()), section.text("preempt_mode", Accounting.preempt_mode)
    )


def _database(section: Section) -> OutsideDatabase:
    default = OutsideDatabase
    return OutsideDatabase(
        section.text("host"),
        section.text("secret_arn"),
        section.text("user", default.user),
        section.text("name", default.name),
        section.integer("port", default.port),
    )


def _account(section: Section) -> SlurmAccount:
    account = SlurmAccount(
        section.text("name"),
        section.texts("users", ()),
        section.text("parent", SlurmAccount.parent),
        section.integer("fairshare", SlurmAccount.fairshare),
        section.texts("qos", ()),
    )
    section.report_unknown_keys()
    return account


def _qos(section: Section) -> AccountingQos:
    qos = AccountingQos(
        section.text("name"),
        section.integer("priority", 0),
        section.texts("preempts", ()),
        dict(section.texts_by_key("limits")),
    )
    section.report_unknown_keys()
    return qos
