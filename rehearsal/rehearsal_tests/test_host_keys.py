"""known_hosts of a rehearsal: the key of each address's present machine, readable by all."""

from __future__ import annotations

from pathlib import Path

from hyperpod_rehearsal.platform.host_keys import HostKeys


def test_an_address_has_the_key_of_its_present_machine(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    keys = HostKeys(path)
    private = [keys.generate_and_record_host_key("10.1.0.2", host) for host in ("old", "new")]
    keys.generate_and_record_host_key("10.1.0.1", "other")
    names = [line.split()[0] for line in path.read_text().splitlines()]
    assert names == ["10.1.0.1,other,other.ec2.internal", "10.1.0.2,new,new.ec2.internal"]
    assert len(set(private)) == 2 and all("OPENSSH PRIVATE KEY" in key for key in private)
    assert path.stat().st_mode & 0o777 == 0o644
