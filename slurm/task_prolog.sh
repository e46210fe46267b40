#!/bin/sh
# For scripts that call bare srun: one checkpoint for all ranks. The plugin (plugin/auto_resume.c) runs this as the job's
# user, once on each node of a step, before its tasks and outside of any container. Standard output is the protocol of
# Slurm's TaskProlog (`export NAME=value`, `print text`); any other exit than 0 keeps the tasks from starting.
# It is no TaskProlog of slurm.conf any more: with pyxis that runs inside of the container. Where one still names it,
# it asks only if nobody has. `hyperpod-kit job run` has decided already when HPK_ATTEMPT is set.
# A root that is named asks for a decision; --auto-resume=0 is the way to say that none is wanted.
[ "${HPK_AUTO_RESUME:-$SLURM_SPANK_HPK_AUTO_RESUME}" != 0 ] || exit 0
case $SLURM_STEP_ID in '' | *[!0-9]*) exit 0 ;; esac # no step of srun's: Slurm 26.05 calls the batch script -5
[ -z "$HPK_ATTEMPT" ] && [ -n "$HPK_CHECKPOINT_ROOT" ] || exit 0
[ "$HPK_DECISION" != "$SLURM_JOB_ID.$SLURM_STEP_ID" ] || exit 0

refuse() {
    echo "print hyperpod-kit: no checkpoint was chosen from $HPK_CHECKPOINT_ROOT: $1"
    echo "print hyperpod-kit: no task of this step starts, for it would start from step 0; HPK_AUTO_RESUME=0 starts it as it is"
    exit 1
}

program=/opt/hyperpod-kit/current/bin/hyperpod-kit
[ -x "$program" ] || refuse "$program is not there"
# A file, not a pipe: a reader that hangs on a broken mount must not keep the task waiting beyond the deadline.
answer=$(mktemp /tmp/hpk-task-prolog.XXXXXX) || refuse "no file can be made in /tmp"
errors=$(mktemp /tmp/hpk-task-prolog.XXXXXX) || refuse "no file can be made in /tmp"
timeout -k 2 45 "$program" job task-prolog </dev/null >"$answer" 2>"$errors"
code=$?
# Words of the protocol only: names of files, which others may have made, may stand in an error.
LC_ALL=C grep -aE '^(export HPK_RESUME_[A-Z]+=|print )[^[:cntrl:]]*$' "$answer"
why=$(grep -a -m 1 '^error: ' "$errors" || tail -n 1 "$errors")
rm -f "$answer" "$errors"
case $code in
0) exit 0 ;;
86) exit 1 ;; # something was committed and nothing of it can be trusted: it has said so
124 | 137) refuse "this took more than 45 s; does it answer on $(uname -n)?" ;;
*) refuse "${why:-hyperpod-kit exited $code}" ;;
esac
