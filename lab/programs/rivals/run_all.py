"""Run every system, in interleaved passes, each in its own process group; raw samples go to $CKPT_BENCH_DIR/results/raw
(default: ./ckpt-bench). Run it with the python of the environment that holds the systems.

  python run_all.py --dest disk --sizes 0.5g 2g --modes single fsdp2 --passes 2
  python run_all.py --systems floor dlrover_disk --sizes 0.5g          # a subset
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BENCH = os.environ.get("CKPT_BENCH_DIR") or os.path.join(os.getcwd(), "ckpt-bench")
PY = sys.executable
BIN = os.path.dirname(PY)
from adapters import SYSTEMS  # noqa: E402

ROOTS = {"disk": os.path.join(BENCH, "scratch"), "tmpfs": "/dev/shm/bench_scratch"}
# static copy of each adapter's launcher and modes (read without importing torch)
LAUNCH = {k: "python" for k in SYSTEMS}
LAUNCH.update({k: "dlrover" for k in SYSTEMS if k.startswith("dlrover")})
MODES = {
    "single": [k for k in SYSTEMS if k not in ("dlrover_fsdp_engine", "dlrover_fsdp1")],
    "fsdp2": [
        "floor",
        "hyperpod",
        "hyperpod_overlap",
        "torch_save",
        "safetensors",
        "dcp_sync",
        "dcp_thread",
        "dcp_thread_cached",
        "dcp_process",
        "dcp_process_shared",
        "ts_take",
        "ts_async",
        "dlrover_disk",
        "dlrover_memory",
        "dlrover_fsdp_engine",
        "nvrx_fork",
    ],
    "fsdp1": ["dlrover_fsdp1"],
}
NO_COLD = {"dlrover_memory"}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_dlrover_master(job: str, env: dict, log):
    port = free_port()
    p = subprocess.Popen(
        [
            PY,
            "-W",
            "ignore",
            "-m",
            "dlrover.python.master.main",
            "--port",
            str(port),
            "--node_num",
            "1",
            "--job_name",
            job,
            "--platform",
            "local",
        ],
        env=env,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return p, port
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("dlrover master did not start")


def stop_process(p):
    if p.poll() is None:
        p.terminate()
        try:
            p.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)  # its own session, started by us
            p.wait()


def launch_and_wait(key: str, worker_args: list, world: int, log, timeout=900, script=None) -> int:
    """Start worker.py (or another script) with the launcher the system needs, and wait for it."""
    script = script or os.path.join(HERE, "worker.py")
    threads = 1
    if world == 1:
        threads = 2
    env = dict(
        os.environ,
        OMP_NUM_THREADS=str(threads),
        PYTHONWARNINGS="ignore",
        TORCH_CPP_LOG_LEVEL="ERROR",
        PATH=BIN + ":" + os.environ["PATH"],
        PYTHONPATH=REPOSITORY,
    )
    master = None
    try:
        if LAUNCH.get(key) == "dlrover":
            env["DLROVER_LOG_LEVEL"] = "WARNING"
            master, port = start_dlrover_master("bench", env, log)
            env["DLROVER_MASTER_ADDR"] = f"127.0.0.1:{port}"
            env["NODE_RANK"] = "0"
            cmd = [
                os.path.join(BIN, "dlrover-run"),
                "--nnodes=1",
                f"--nproc_per_node={world}",
                "--max_restarts=0",
                script,
            ]
        elif world > 1:
            cmd = [
                os.path.join(BIN, "torchrun"),
                "--nnodes=1",
                f"--nproc_per_node={world}",
                f"--master_port={free_port()}",
                script,
            ]
        else:
            env.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
            cmd = [PY, script]
        p = subprocess.Popen(cmd + worker_args, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            return p.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)  # its own session, started by us
            p.wait()
            return -9
    finally:
        if master:
            stop_process(master)
            for f in glob.glob("/dev/shm/*_ckpt_shm_*") + glob.glob("/dev/shm/ckpt_shm_*"):
                os.unlink(f)  # DLRover leaves its segment behind after a clean exit
            shutil.rmtree("/tmp/ckpt_sock", ignore_errors=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dest", nargs="+", default=["disk"])
    ap.add_argument("--sizes", nargs="+", default=["0.5g", "2g"])
    ap.add_argument("--modes", nargs="+", default=["single"])
    ap.add_argument("--systems", nargs="*")
    ap.add_argument("--passes", type=int, default=2)
    ap.add_argument("--first-pass", type=int, default=0)
    ap.add_argument("--cycles", type=int, default=3)
    ap.add_argument("--kinds", default="IABM")
    ap.add_argument("--out", default=os.path.join(BENCH, "results", "raw"))
    ap.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet machine")
    ap.add_argument("--force", action="store_true", help="also what has a result already")
    a = ap.parse_args()
    os.nice(-5)  # other light work runs on this machine; ours goes first
    os.environ["BENCH_PID"] = str(os.getpid())
    os.makedirs(a.out, exist_ok=True)
    os.makedirs(os.path.join(BENCH, "logs"), exist_ok=True)
    for dest in a.dest:
        for mode in a.modes:
            keys = [k for k in MODES[mode] if not a.systems or k in a.systems]
            for size in a.sizes:
                for pno in range(a.first_pass, a.first_pass + a.passes):
                    order = keys[pno * 3 % max(1, len(keys)) :] + keys[: pno * 3 % max(1, len(keys))]
                    if pno % 2:
                        order = order[::-1]
                    for key in order:
                        run_system_phases(a, dest, mode, size, pno, key)


def describe_phase(phase, r) -> str:
    """The figures of a phase that has ended, on one line."""
    if "error" in r:
        return "ERR " + r["error"].strip().splitlines()[-1][:160]
    if phase == "load":
        return " ".join(
            f"{n}: cold {min(v['cold'] or [0]):.2f} warm {min(v['warm']):.2f} bad {v['bad']}"
            for n, v in r["load"].items()
        )
    stalls = sorted(s["t_safe"] for s in r["saves"]) or [r["warm"]["t_safe"]]
    text = (
        f"first {r['first']['t_safe']:.3f} block {stalls[len(stalls) // 2]:.3f} "
        f"memcpy {sorted(r['memcpy']['samples'])[3]:.3f} durable {r['warm']['t_durable']:.2f} "
        f"hotbad {r.get('hot_bad')} disturbed {len(r.get('disturbed', []))}"
    )
    if "hot_error" in r:
        text += " HOT " + r["hot_error"].strip().splitlines()[-1][:80]
    return text


def run_system_phases(a, dest, mode, size, pno, key):
    world = 2
    if mode == "single":
        world = 1
    root = os.path.join(ROOTS[dest], key)
    tag = f"{dest}_{size}_{mode}_{key}"
    for phase in ("save", "load"):
        if phase == "load" and key in NO_COLD:
            continue
        out = os.path.join(a.out, f"{tag}_{phase}_p{pno}.json")
        if os.path.exists(out) and not a.force:
            continue
        if phase == "save":
            shutil.rmtree(root, ignore_errors=True)
        t = time.time()
        with open(os.path.join(BENCH, "logs", f"{tag}_{phase}_p{pno}.log"), "w") as log:
            rc = launch_and_wait(
                key,
                [
                    "--system",
                    key,
                    "--size",
                    size,
                    "--mode",
                    mode,
                    "--root",
                    root,
                    "--phase",
                    phase,
                    "--out",
                    out,
                    "--cycles",
                    str(a.cycles),
                    "--kinds",
                    a.kinds,
                    "--pass-no",
                    str(pno),
                    "--patience",
                    str(a.patience),
                ],
                world,
                log,
            )
        msg = ""
        if os.path.exists(out):
            with open(out) as f:
                msg = describe_phase(phase, json.load(f))
        print(f"{time.strftime('%H:%M:%S')} p{pno} {tag} {phase} rc={rc} {time.time() - t:.0f}s {msg}", flush=True)
        if rc != 0 and phase == "save":
            break
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
