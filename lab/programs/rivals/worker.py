"""Run one system through the whole protocol once, and write a JSON of raw samples.

Started by run_all.py with the launcher the system needs; every rank runs this file.
  worker.py --system KEY --size 2g --mode single --root DIR --phase save|load --out FILE [--cycles N]
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
import traceback
import warnings

warnings.filterwarnings("ignore")

import adapters  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host import (  # noqa: E402
    MemSampler,
    anon_and_shmem_bytes,
    busy_cpu_seconds,
    cpu_seconds_by_owner,
    drop_caches,
    foreign_cpu_seconds,
    fsync_tree,
    now,
    tree_bytes,
    wait_until_quiet,
    write_json,
)
from loops import Loop  # noqa: E402
from state import State, differing_paths  # noqa: E402

a = argparse.ArgumentParser()
a.add_argument("--system", required=True)
a.add_argument("--size", default="tiny")
a.add_argument("--mode", default="single")
a.add_argument("--root", required=True)
a.add_argument("--phase", default="save")
a.add_argument("--out", required=True)
a.add_argument("--cycles", type=int, default=3)
a.add_argument("--loads", type=int, default=3)
a.add_argument("--kinds", default="IABM")
a.add_argument("--pass-no", type=int, default=0)
a.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet machine before a sample")
args = a.parse_args()

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ON_TMPFS = args.root.startswith("/dev/shm")


def digest_path():
    """Return the path of the digests that the save phase leaves for the load phase."""
    return os.path.join(os.path.dirname(args.out), f"digest_{args.system}_{args.size}_{args.mode}_{RANK}.json")


def barrier():
    if WORLD > 1:
        dist.barrier()


def max_over_ranks(x: float) -> float:
    """The largest value over ranks (a save is as slow as its slowest rank)."""
    if WORLD == 1:
        return x
    t = torch.tensor([x], dtype=torch.float64)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return float(t)


def sum_over_ranks(x: float) -> float:
    if WORLD == 1:
        return x
    t = torch.tensor([x], dtype=torch.float64)
    dist.all_reduce(t)
    return float(t)


def time_memcpy_of_state(state) -> dict:
    """Copy of the whole state into one touched shared-memory buffer, tensor by tensor: the floor of blocking."""
    import mmap

    n = sum((t.numel() * t.element_size() + 63) // 64 * 64 for t in state.tensors)
    m = mmap.mmap(-1, (n + 4095) // 4096 * 4096)
    flat = torch.frombuffer(m, dtype=torch.uint8)
    flat.zero_()
    off, dst = 0, []
    for t in state.tensors:
        b = t.numel() * t.element_size()
        dst.append(flat[off : off + b].view(t.dtype).view(t.shape))
        off += (b + 63) // 64 * 64
    ts = []
    for _ in range(7):
        if RANK == 0:
            wait_until_quiet(args.patience)
        barrier()
        t0 = now()
        with torch.no_grad():
            for d, s in zip(dst, state.tensors):
                d.copy_(s)
        ts.append(max_over_ranks(now() - t0))
    del dst, flat
    gc.collect()
    m.close()
    return {"samples": ts}


def time_save(adapter, step, kind, loop):
    """One save. kind: I nothing else runs; A 'py' loop; B 'mm' loop; M one in-place update of all state."""
    rec = {"kind": kind}
    if RANK == 0:
        rec["quiet"] = wait_until_quiet(args.patience)
    barrier()
    f0 = cpu_seconds_by_owner() if RANK == 0 else None
    lk = {"A": "py", "B": "mm"}.get(kind)
    if lk:
        rec["idle_before"] = loop.measure_rate(lk, 0.5)
    barrier()
    c0, t0 = busy_cpu_seconds(), now()
    adapter.save(step)
    t_ret = now()
    rec["t_return"] = t_ret - t0
    adapter.safe()
    rec["t_safe"] = now() - t0
    if lk and adapter.asynchronous:
        n, el = loop.run(lk, adapter.poll, 300)
        rec["window"], rec["loop_rate"] = el, n / el
    elif kind == "M":
        t1 = now()
        adapter.state.modify_all_tensors()
        rec["mutate"] = now() - t1
    adapter.wait()
    rec["t_commit"] = now() - t0
    barrier()
    rec["t_commit_all"] = now() - t0
    if RANK == 0 and adapter.has_cold:
        t1 = now()
        for p in adapter.durable_paths(step):
            fsync_tree(p)
        rec["t_fsync"] = now() - t1
    barrier()
    rec["t_durable"] = now() - t0
    rec["cpu_s"] = busy_cpu_seconds() - c0
    # cores' worth of CPU used meanwhile by processes that are not part of the benchmark
    t_all = now() - t0 + (0.5 if lk else 0)
    rec["foreign"] = max_over_ranks(foreign_cpu_seconds(f0, cpu_seconds_by_owner()) / t_all if RANK == 0 else 0.0)
    for k in ("t_return", "t_safe", "t_commit"):
        rec[k] = max_over_ranks(rec[k])
    if "loop_rate" in rec:  # slowest rank stands for the job
        rec["idle_after"] = loop.measure_rate(lk, 0.5)
        rec["idle_rate"] = (rec["idle_before"] + rec["idle_after"]) / 2
        rec["loop_ratio"] = -max_over_ranks(-(rec["loop_rate"] / rec["idle_rate"]))
    return rec


def delete_save_and_settle(adapter, step):
    adapter.wait_until_ready()
    barrier()
    adapter.remove(step)
    if RANK == 0:
        os.sync()
    gc.collect()
    time.sleep(0.2)
    barrier()


def run_save_phase(out):
    threads = 2 if WORLD == 1 else 1
    torch.set_num_threads(threads)
    cls = adapters.load_adapter_class(args.system)
    out["name"], out["durable_to_disk"] = cls.name, cls.has_cold
    mesh = None
    if args.mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (WORLD,))
    state = State(args.size, args.mode, mesh)
    out["state_bytes"] = int(sum_over_ranks(state.nbytes))
    out["ntensors"] = state.ntensors
    out["memcpy"] = time_memcpy_of_state(state)
    loop = Loop(threads)
    loop.measure_rate("py", 0.3)
    loop.measure_rate("mm", 0.3)
    t = []
    for _ in range(4):
        if RANK == 0:
            wait_until_quiet(args.patience)
        barrier()
        t0 = now()
        state.modify_all_tensors()
        t.append(max_over_ranks(now() - t0))
    out["mutate_idle"] = t[1:]
    gc.collect()
    barrier()

    samp = MemSampler() if RANK == 0 else None
    time.sleep(0.3)
    base = anon_and_shmem_bytes()
    if samp:
        samp.read_and_reset_peak()
    ad = cls(args.root, state, RANK, WORLD)
    t0 = now()
    ad.setup()
    out["t_setup"] = max_over_ranks(now() - t0)
    barrier()
    step = 1
    out["first"] = time_save(ad, step, "I", loop)
    if samp:
        pk, an, sh = samp.read_and_reset_peak()
        out["mem_first"] = {"peak_extra": pk - base, "anon": an, "shmem": sh}
        out["file_bytes"] = sum(tree_bytes(p) for p in ad.durable_paths(step))
    delete_save_and_settle(ad, step)
    step = 2
    if samp:
        samp.read_and_reset_peak()
    out["warm"] = time_save(ad, step, "I", loop)
    if samp:
        pk, an, sh = samp.read_and_reset_peak()
        out["mem_second"] = {"peak_extra": pk - base, "anon": an, "shmem": sh}
        samp.close()
    delete_save_and_settle(ad, step)
    out["mem_resident_extra"] = anon_and_shmem_bytes() - base
    out["saves"] = []
    for _ in range(args.cycles):
        for kind in args.kinds:
            if kind in "ABM" and not ad.asynchronous:
                continue
            for _try in range(3):  # repeat a sample that other processes disturbed
                step += 1
                rec = time_save(ad, step, kind, loop)
                delete_save_and_settle(ad, step)
                if rec["foreign"] <= 0.15:
                    break
                out.setdefault("disturbed", []).append(rec)
            out["saves"].append(rec)
    # final save: isolation check, and the checkpoint that the load phase reads
    step += 1
    if args.mode == "fsdp1":
        state.reload_state_dict()
    want = state.tensor_digests()
    barrier()
    ad.save(step)
    ad.safe()
    state.modify_all_tensors()
    ad.wait()
    barrier()
    if ad.has_hot:
        hot = []
        try:
            for _ in range(5):
                state.zero_all_tensors()
                if RANK == 0:
                    wait_until_quiet(args.patience)
                barrier()
                t0 = now()
                ad.load_hot()
                hot.append(max_over_ranks(now() - t0))
            if args.mode == "fsdp1":
                state.reload_state_dict()
            bad = differing_paths(want, state.tensor_digests())
            out["hot"] = hot
            out["hot_bad"] = int(sum_over_ranks(len(bad)))
            out["hot_bad_names"] = bad[:3]
        except BaseException as e:
            out["hot_error"] = "".join(traceback.format_exception(e))[-3000:]
    ad.wait_until_ready()
    if RANK == 0:
        for p in ad.durable_paths(step):
            fsync_tree(p)
    with open(digest_path(), "w") as f:
        json.dump({"step": step, "digest": want}, f)
    out["final_step"] = step
    barrier()
    ad.teardown()


def run_load_phase(out):
    """A new process loads what the save phase left: cold (page cache dropped) and warm."""
    threads = 2 if WORLD == 1 else 1
    torch.set_num_threads(threads)
    cls = adapters.load_adapter_class(args.system)
    mesh = None
    if args.mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (WORLD,))
    state = State(args.size, args.mode, mesh, cheap=True)
    with open(digest_path()) as f:
        d = json.load(f)
    step, want = d["step"], d["digest"]
    ad = cls(args.root, state, RANK, WORLD)
    getattr(ad, "setup_load_only", ad.setup)()
    ways = {"default": ad.load, **ad.load_variants()}
    out["load"] = {}
    for name, fn in ways.items():
        r = {"cold": [], "warm": []}
        for temp in (["cold"] if not ON_TMPFS else []) * args.loads + ["warm"] * 2:
            state.zero_all_tensors()
            gc.collect()
            barrier()
            if temp == "cold" and RANK == 0:
                drop_caches()
                time.sleep(0.2)
            if RANK == 0:
                wait_until_quiet(args.patience)
            barrier()
            t0 = now()
            fn(step)
            r[temp].append(max_over_ranks(now() - t0))
        if args.mode == "fsdp1":
            state.reload_state_dict()
        bad = differing_paths(want, state.tensor_digests())
        r["bad"] = int(sum_over_ranks(len(bad)))
        r["bad_names"] = bad[:3]
        out["load"][name] = r
    barrier()
    ad.teardown()


def main():
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    out = {
        "system": args.system,
        "size": args.size,
        "mode": args.mode,
        "world": WORLD,
        "phase": args.phase,
        "dest": "tmpfs" if ON_TMPFS else "disk",
        "pass": args.pass_no,
        "time": time.time(),
        "loadavg": os.getloadavg(),
    }
    code = 0
    try:
        if args.phase == "save":
            run_save_phase(out)
        else:
            run_load_phase(out)
    except BaseException as e:
        out["error"] = "".join(traceback.format_exception(e))[-3000:]
        print(out["error"], file=sys.stderr, flush=True)
        code = 1
    if RANK == 0:
        write_json(args.out, out)
    sys.stdout.flush()
    if code:
        os._exit(code)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
