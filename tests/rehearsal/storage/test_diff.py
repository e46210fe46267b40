"""What runs against what the configuration says: S3, the cluster's groups, every node."""

from __future__ import annotations

from driver import Driver

WORKER = "storage-worker/0"
HOOK = "/opt/hyperpod-kit/current/slurm/prolog.sh"


def test_a_file_that_somebody_changed_on_a_node_is_named(storage: Driver) -> None:
    found = storage.data("diff", str(storage.config))
    states = [(place["what"], place["state"]) for place in found["places"]]
    assert found["same"] and {state for _, state in states} == {"same"}, found
    assert len(states) == 5, "S3, two groups, two nodes"
    storage.on(WORKER, f"cp {HOOK} /root/hook && echo '# mine' >>{HOOK}")
    try:
        found = storage.data("diff", str(storage.config), check=False)
    finally:
        storage.on(WORKER, f"cp /root/hook {HOOK}")
    bad = [place for place in found["places"] if place["state"] != "same"]
    assert [place["state"] for place in bad] == ["damaged"] and "slurm/prolog.sh" in bad[0]["detail"], found
