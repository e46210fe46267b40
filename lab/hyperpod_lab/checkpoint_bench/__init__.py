"""`hyperpod-kit checkpoint bench`: the engine beside the limits of the machine, measured in the same minutes.

Every figure of the engine has a limit that is measured between the engine's own samples, so that a busy moment of the
machine falls on both. Medians of `--repeat` samples, of three where the time is short; the first save is reported
apart. With several ranks a sample is the time of the slowest rank, except bytes, which are summed. Before a sample it
waits for a quiet machine, up to 2 seconds and up to `--patience` in all; samples begun on a busy one are counted.

Limits:
    memory floor   seconds to copy the state's own tensors into prefaulted shared memory; the best of memmove and of
                   torch's copy, each on 1..n threads (n: the rank's cores). All ranks copy at once.
    write          O_DIRECT write and fsync of the same bytes, from shared memory, into new files of the same
                   directory, best of 1 and 2 files a rank at a time. All ranks write at once.
    proof          seconds to digest the same bytes chunk by chunk and to copy each chunk after its digest, on 1..n
                   threads, after each hot restore
    cold read      O_DIRECT read of the very shard files into huge pages, best of 1, 2 and 4 threads, page cache
                   emptied before.

Ours:
    stall          Manager.save() in its default blocking mode, from call to return
    persist        from that return until Handle.wait("durable") returns: digest, write, fsync, commit
    overlap lost   Manager(overlap=True) in a training loop whose forward and backward pass last at least twice the
                   floor: time in save() plus time waited in fence() before the optimizer's step
    inflation      the same loop: time of all steps from the save until it is durable, less as many idle steps
    cold restore   Manager.restore() in a new process, page cache emptied before, every byte verified
    hot restore    Manager.restore() in a new process after SIGKILL of the one that saved, every byte verified

The whole lasts less than eight minutes: the phases share the time, and what would take more than three samples need
not. The training loops come last, and those for which no time is left are left out and named.

Summary (a run's own, and the worst over all runs): stall_over_floor and overlap_over_floor are times over the floor's
time, hot_restore_over_proof is one over the proof's, lower is better; persist_over_limit and cold_restore_over_limit
are throughputs over the limit's throughput, higher is better. After each restore all tensors are compared with those
that were saved; a difference is an error, not a figure.
"""
