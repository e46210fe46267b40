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
    section = kit.child_or_empty_stand_in("steps", required=False)
    steps = OptionalSteps(
        accounting=_decode_if_written(section, "accounting", _accounting),
        log_rotation=_decode_if_written(section, "log_rotation", _log_rotation),
        login_message=_decode_if_written(
            section, "login_message", lambda inner: LoginMessage(inner.read_text_or_report("text", ""))
        ),
        ssh_between_nodes=_decode_if_written(
            section, "ssh_between_nodes", lambda inner: SshBetweenNodes(inner.read_text_or_report("mount", ""))
        ),
        node_exporter=_decode_if_written(
            section, "node_exporter", lambda inner: NodeExporter(inner.read_text_or_report("listen", ":9100"))
        ),
        docker=_decode_if_written(
            section, "docker", lambda inner: Docker(inner.read_texts_or_report("users", Docker.users))
        ),
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
    inner = section.child_or_empty_stand_in(key, required=False)
    if not section.is_written_and_not_null(key):
        return None  # with its defaults asked for, the configuration written in full would turn it on
    made = decode(inner)
    inner.report_unknown_keys()
    return made


def _log_rotation(section: Section) -> LogRotation:
    default = LogRotation()
    return LogRotation(
        section.read_text_or_report("size", default.size), section.read_integer_or_report("keep", default.keep)
    )


def _pam_slurm_adopt(section: Section) -> PamSlurmAdopt:
    return PamSlurmAdopt(
        section.read_texts_or_report("users", PamSlurmAdopt.users), section.read_texts_or_report("groups", ())
    )


def _sssd(section: Section) -> Sssd:
    default = Sssd
    return Sssd(
        section.read_text_or_report("uri"),
        section.read_text_or_report("search_base"),
        section.read_text_or_report("schema", default.schema),
        section.read_text_or_report("bind_dn", default.bind_dn),
        section.read_text_or_report("secret_arn", default.secret_arn),
        section.read_text_or_report("ca_file", default.ca_file),
        section.read_text_or_report("home", default.home),
        section.read_texts_or_report("allow", ()),
        section.read_texts_or_report("sudo", ()),
    )


def _device_checks(section: Section) -> DeviceChecks:
    default = DeviceChecks()
    return DeviceChecks(
        section.read_text_or_report("action", default.action),
        section.read_boolean_or_report("gate", default.gate),
        section.read_boolean_or_report("dcgm", default.dcgm),
        section.read_boolean_or_report("efa", default.efa),
    )


def _accounting(section: Section) -> Accounting:
    database = _decode_if_written(section, "database", _database)
    accounts = tuple(_account(inner) for inner in section.read_list_of_sections("accounts"))
    qos = tuple(_qos(inner) for inner in section.read_list_of_sections("qos"))
    return Accounting(
        database,
        accounts,
        qos,
        section.read_texts_or_report("enforce", ()),
        section.read_text_or_report("preempt_mode", Accounting.preempt_mode),
    )


def _database(section: Section) -> OutsideDatabase:
    default = OutsideDatabase
    return OutsideDatabase(
        section.read_text_or_report("host"),
        section.read_text_or_report("secret_arn"),
        section.read_text_or_report("user", default.user),
        section.read_text_or_report("name", default.name),
        section.read_integer_or_report("port", default.port),
    )


def _account(section: Section) -> SlurmAccount:
    account = SlurmAccount(
        section.read_text_or_report("name"),
        section.read_texts_or_report("users", ()),
        section.read_text_or_report("parent", SlurmAccount.parent),
        section.read_integer_or_report("fairshare", SlurmAccount.fairshare),
        section.read_texts_or_report("qos", ()),
    )
    section.report_unknown_keys()
    return account


def _qos(section: Section) -> AccountingQos:
    qos = AccountingQos(
        section.read_text_or_report("name"),
        section.read_integer_or_report("priority", 0),
        section.read_texts_or_report("preempts", ()),
        dict(section.read_texts_by_key("limits")),
    )
    section.report_unknown_keys()
    return qos
