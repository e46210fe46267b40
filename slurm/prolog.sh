#!/bin/bash
# slurm.conf: Prolog=   root, on every node of an allocation before its first step (PrologFlags=Alloc).
# The mount gate: exit 1 keeps the job away from a node whose required mounts do not answer, and drains the node.
# No Slurm command (it would hang slurmd while slurmctld waits for this script), nothing read from a shared mount.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
program=/opt/hyperpod-kit/current/bin/hyperpod-kit
log=/run/hyperpod-kit/gate-${SLURM_JOB_ID:-0}.log

mkdir -p /run/hyperpod-kit || exit 1
(umask 077 && : >"$log") || exit 1
# A file, not slurmd's pipe: a probe stuck in the kernel would hold the pipe open and slurmd would wait for it.
timeout -k 2 40 "$program" node gate </dev/null >>"$log" 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
code=$?
if [ "$code" -ne 0 ]; then
    echo "hyperpod-kit: mount gate exited $code: $(tail -n 1 "$log" | LC_ALL=C tr '\000-\037\177' ' ')"
    exit 1
fi
rm -f "$log"
exit 0
