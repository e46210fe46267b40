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


def wait_for_quiet_start():
    """Have all ranks begin together, when the machine is quiet."""
    if RANK == 0:
        wait_until_quiet(args.patience)
    barrier()


def set_threads() -> int:
    """Give torch the threads of a rank: two for a single one, one for each of several."""
    threads = 1
    if WORLD == 1:
        threads = 2
    torch.set_num_threads(threads)
    return threads


def make_mesh():
    """The device mesh of FSDP2; None for the other modes."""
    if args.mode != "fsdp2":
        return None
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (WORLD,))


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
        wait_for_quiet_start()
        t0 = now()
        with torch.no_grad():
            for d, s in zip(dst, state.tensors):
                d.copy_(s)
        ts.append(max_over_ranks(now() - t0))
    del dst, flat
    gc.collect()
    m.close()
    return {"samples": ts}


def read_cpu_seconds_on_rank_0():
    if RANK == 0:
        return cpu_seconds_by_owner()
    return None


def foreign_cores(before, seconds: float) -> float:
    """Cores' worth of CPU that processes outside the benchmark have used since; ranks other than 0 do not ask."""
    if RANK == 0:
        return foreign_cpu_seconds(before, cpu_seconds_by_owner()) / seconds
    return 0.0


def fsync_durable_paths(adapter, step):
    for path in adapter.durable_paths(step):
        fsync_tree(path)


def time_save(adapter, step, kind, loop):
    """One save. kind: I nothing else runs; A 'py' loop; B 'mm' loop; M one in-place update of all state."""
    rec = {"kind": kind}
    if RANK == 0:
        rec["quiet"] = wait_until_quiet(args.patience)
    barrier()
    f0 = read_cpu_seconds_on_rank_0()
    lk = {"A": "py", "B": "mm"}.get(kind)
    if lk:
        rec["idle_before"] = loop.measure_rate(lk, 0.5)
    barrier()
    c0, t0 = busy_cpu_seconds(), now()
    adapter.save(step)
    t_ret = now()
    rec["t_return"] = t_ret - t0
    adapter.wait_until_tensors_reusable()
    rec["t_safe"] = now() - t0
    if lk and adapter.asynchronous:
        n, el = loop.run_until(lk, adapter.poll, 300)
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
        fsync_durable_paths(adapter, step)
        rec["t_fsync"] = now() - t1
    barrier()
    rec["t_durable"] = now() - t0
    rec["cpu_s"] = busy_cpu_seconds() - c0
    t_all = now() - t0
    if lk:
        t_all += 0.5  # in which the loop ran alone
    rec["foreign"] = max_over_ranks(foreign_cores(f0, t_all))
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


def time_mutations_of_state(state) -> list:
    """In-place updates of all state while nothing else runs; the first one is left out."""
    ts = []
    for _ in range(4):
        wait_for_quiet_start()
        t0 = now()
        state.modify_all_tensors()
        ts.append(max_over_ranks(now() - t0))
    return ts[1:]


class PeakMemory:
    """The machine's peak of memory above what it was before the adapter was made, watched by rank 0 alone."""

    def __init__(self):
        self.sampler = None
        if RANK == 0:
            self.sampler = MemSampler()
        time.sleep(0.3)
        self.base = anon_and_shmem_bytes()
        self.restart()

    def restart(self):
        if self.sampler is not None:
            self.sampler.read_and_reset_peak()

    def record(self, out, name):
        """Put the peak since the last call into `out`, on rank 0."""
        if self.sampler is not None:
            peak, anon, shmem = self.sampler.read_and_reset_peak()
            out[name] = {"peak_extra": peak - self.base, "anon": anon, "shmem": shmem}

    def close(self):
        if self.sampler is not None:
            self.sampler.close()


def measure_first_saves(out, adapter, loop, memory):
    """The first save and the second, which finds memory that is there already, with the memory that each takes."""
    out["first"] = time_save(adapter, 1, "I", loop)
    memory.record(out, "mem_first")
    if RANK == 0:
        out["file_bytes"] = sum(tree_bytes(path) for path in adapter.durable_paths(1))
    delete_save_and_settle(adapter, 1)
    memory.restart()
    out["warm"] = time_save(adapter, 2, "I", loop)
    memory.record(out, "mem_second")
    memory.close()
    delete_save_and_settle(adapter, 2)
    out["mem_resident_extra"] = anon_and_shmem_bytes() - memory.base


def measure_undisturbed_save(out, adapter, step, kind, loop) -> int:
    """One save, up to three times where other processes disturb it; return the last step."""
    for _ in range(3):
        step += 1
        rec = time_save(adapter, step, kind, loop)
        delete_save_and_settle(adapter, step)
        if rec["foreign"] <= 0.15:
            break
        out.setdefault("disturbed", []).append(rec)
    out["saves"].append(rec)
    return step


def measure_saves(out, adapter, step, loop) -> int:
    """All cycles of saves of all kinds, after that step; return the last step."""
    out["saves"] = []
    for _ in range(args.cycles):
        for kind in args.kinds:
            if kind in "ABM" and not adapter.asynchronous:
                continue
            step = measure_undisturbed_save(out, adapter, step, kind, loop)
    return step


def save_while_state_changes(adapter, state, step) -> dict:
    """The final save: isolation check, and the checkpoint that the load phase reads; return the digests it is due."""
    if args.mode == "fsdp1":
        state.reload_state_dict()
    digests = state.tensor_digests()
    barrier()
    adapter.save(step)
    adapter.wait_until_tensors_reusable()
    state.modify_all_tensors()
    adapter.wait()
    barrier()
    return digests


def measure_hot_loads(out, adapter, state, digests):
    """Loads from memory, and the tensors that the last one brought back with other bytes."""
    hot = []
    try:
        for _ in range(5):
            state.zero_all_tensors()
            wait_for_quiet_start()
            t0 = now()
            adapter.load_hot()
            hot.append(max_over_ranks(now() - t0))
        if args.mode == "fsdp1":
            state.reload_state_dict()
        bad = differing_paths(digests, state.tensor_digests())
        out["hot"] = hot
        out["hot_bad"] = int(sum_over_ranks(len(bad)))
        out["hot_bad_names"] = bad[:3]
    except BaseException as e:
        out["hot_error"] = "".join(traceback.format_exception(e))[-3000:]


def run_save_phase(out):
    threads = set_threads()
    cls = adapters.load_adapter_class(args.system)
    out["name"], out["durable_to_disk"] = cls.name, cls.has_cold
    state = State(args.size, args.mode, make_mesh())
    out["state_bytes"] = int(sum_over_ranks(state.nbytes))
    out["ntensors"] = state.ntensors
    out["memcpy"] = time_memcpy_of_state(state)
    loop = Loop(threads)
    loop.measure_rate("py", 0.3)
    loop.measure_rate("mm", 0.3)
    out["mutate_idle"] = time_mutations_of_state(state)
    gc.collect()
    barrier()

    memory = PeakMemory()
    ad = cls(args.root, state, RANK, WORLD)
    t0 = now()
    ad.setup()
    out["t_setup"] = max_over_ranks(now() - t0)
    barrier()
    measure_first_saves(out, ad, loop, memory)
    step = measure_saves(out, ad, 2, loop) + 1
    digests = save_while_state_changes(ad, state, step)
    if ad.has_hot:
        measure_hot_loads(out, ad, state, digests)
    ad.wait_until_ready()
    if RANK == 0:
        fsync_durable_paths(ad, step)
    with open(digest_path(), "w") as f:
        json.dump({"step": step, "digest": digests}, f)
    out["final_step"] = step
    barrier()
    ad.teardown()


def run_load_phase(out):
    """A new process loads what the save phase left: cold (page cache dropped) and warm."""
    set_threads()
    cls = adapters.load_adapter_class(args.system)
    state = State(args.size, args.mode, make_mesh(), cheap=True)
    with open(digest_path()) as f:
        d = json.load(f)
    step, digests = d["step"], d["digest"]
    ad = cls(args.root, state, RANK, WORLD)
    getattr(ad, "setup_load_only", ad.setup)()
    ways = {"default": ad.load, **ad.load_variants()}
    out["load"] = {}
    for name, load in ways.items():
        out["load"][name] = measure_loads(load, state, step, digests)
    barrier()
    ad.teardown()


def measure_loads(load, state, step, digests) -> dict:
    """One way to load, cold and warm, and the tensors that the last load brought back with other bytes."""
    temperatures = ["warm"] * 2
    if not ON_TMPFS:
        temperatures = ["cold"] * args.loads + temperatures
    r = {"cold": [], "warm": []}
    for temperature in temperatures:
        r[temperature].append(time_load(load, state, step, temperature))
    if args.mode == "fsdp1":
        state.reload_state_dict()
    bad = differing_paths(digests, state.tensor_digests())
    r["bad"] = int(sum_over_ranks(len(bad)))
    r["bad_names"] = bad[:3]
    return r


def time_load(load, state, step, temperature) -> float:
    state.zero_all_tensors()
    gc.collect()
    barrier()
    if temperature == "cold" and RANK == 0:
        drop_caches()
        time.sleep(0.2)
    wait_for_quiet_start()
    t0 = now()
    load(step)
    return max_over_ranks(now() - t0)


def main():
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    dest = "disk"
    if ON_TMPFS:
        dest = "tmpfs"
    out = {
        "system": args.system,
        "size": args.size,
        "mode": args.mode,
        "world": WORLD,
        "phase": args.phase,
        "dest": dest,
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
