"""The timeline of a checkpoint root's attempts, as the ledger has it."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Tuple

from hyperpod_kit.job import ledger


def attempts(root: str) -> List[Dict[str, Any]]:
    """One dictionary an attempt, oldest first: what it started from and how it ended. Raises OSError.

    Class `unfinished`: it runs, or was ended so abruptly that nobody could write it down. A run of the batch script
    that made no attempt has a dictionary too, of class `none`.
    """
    found: Dict[str, Dict[str, Any]] = {}
    last: Dict[Tuple[Any, Any], str] = {}
    for row in ledger.read(os.path.join(root, ".hpk", "attempts.jsonl")):
        name, run = row.get("attempt"), (row.get("job"), row.get("restart"))
        if row.get("event") == "attempt" and name:
            found[name] = {"attempt": name, "started": row.get("t"), "from": row.get("from"), "step": row.get("step"),
                           "rejected": row.get("rejected", []), "nodes": row.get("nodes", []), "class": "unfinished"}
            last[run] = name
        elif row.get("event") == "ended" and name in found:
            found[name].update({key: row.get(key) for key in ("class", "code", "seconds", "lost", "first")})
        elif row.get("event") in ("gave_up", "requeue", "stopped"):
            if run not in last:
                # This run of the batch script started no rank: it must not be told of another job's attempt.
                last[run] = f"{run[0]}.{run[1]}.-"
                found[last[run]] = {"attempt": last[run], "started": row.get("t"), "from": None, "step": None,
                                    "rejected": row.get("rejected", []), "nodes": [], "class": "none"}
            found[last[run]]["then"] = f"{row['event']}: {row.get('why', '')}"
    return list(found.values())


def table(rows: List[Dict[str, Any]]) -> str:
    """For people: one line an attempt."""
    lines = [f"{'attempt':<14} {'started':<19} {'from step':>9}  {'class':<10} {'code':>4}  what then"]
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["started"] or 0))
        code = "" if row.get("code") is None else str(row["code"])
        lines.append(f"{row['attempt']:<14} {when:<19} {row['step'] if row['step'] is not None else '':>9}  "
                     f"{row['class'] or '':<10} {code:>4}  {row.get('then', '')}".rstrip())
    return "\n".join(lines) + "\n"
