"""Every environment variable of ours: a constant of its name, and what it means.

Python code uses these constants, so that a variable without a meaning cannot come to be; shell scripts, C and the
programs that import nothing of ours write the names. docs/reference/environment.md is made from this file: a comment
that stands alone is a heading there, but for the last one.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

# On the admin's machine

HPK_CONFIG = "HPK_CONFIG"
"""the configuration file where a command names none; default `provisioning_parameters.json` in this directory"""
HPK_SSH_USER = "HPK_SSH_USER"
"""`--ssh-user` of every command that asks nodes"""
HPK_SSH_KEY = "HPK_SSH_KEY"
"""`--ssh-key`"""
HPK_SSH_PORT = "HPK_SSH_PORT"
"""`--ssh-port`"""
HPK_SSH_PROXY = "HPK_SSH_PROXY"
"""`--ssh-proxy`"""
HPK_KNOWN_HOSTS = "HPK_KNOWN_HOSTS"
"""`--known-hosts`"""
HPK_POLL_INTERVAL = "HPK_POLL_INTERVAL"
"""`--interval`: seconds between two polls of AWS"""
HPK_CACHE = "HPK_CACHE"
"""where the rehearsal keeps its node image; default `~/.cache/hyperpod-kit`"""
HPK_REHEARSAL_STATE = "HPK_REHEARSAL_STATE"
"""where rehearsals keep their state; default `/var/lib/hyperpod-kit-rehearsal`"""

# In a job

HPK_CHECKPOINT_ROOT = "HPK_CHECKPOINT_ROOT"
"""the root of `job run`; for a bare `srun`, set it in the batch script"""
HPK_RESUME_FROM = "HPK_RESUME_FROM"
"""the checkpoint that was chosen, below the root; `none` when there is none"""
HPK_RESUME_STEP = "HPK_RESUME_STEP"
"""its step"""
HPK_RESUME_KIND = "HPK_RESUME_KIND"
"""who wrote it"""
HPK_RESUME_MEMORY = "HPK_RESUME_MEMORY"
"""`0`: what memory and local disks hold must not be used"""
HPK_FRESH = "HPK_FRESH"
"""`1`, for a trainer without `job run`: start at step 0 where checkpoints were committed and none can be restored"""
HPK_ATTEMPT = "HPK_ATTEMPT"
"""the attempt's name, unique: job, its life, restart, attempt"""
HPK_PROGRESS = "HPK_PROGRESS"
"""a file to write the last completed step to"""
HPK_STATE = "HPK_STATE"
"""`.hpk` below the root: the job's ledger"""
HPK_AUTO_RESUME = "HPK_AUTO_RESUME"
"""`1`: `sbatch --auto-resume=1` was given"""
HPK_DECISION = "HPK_DECISION"
"""the step, `JOB.STEP`, whose checkpoint the plugin of Slurm has asked for already"""
HPK_DIGEST = "HPK_DIGEST"
"""`xxh3` or `blake2b`, for a run's first save; default: the fastest that every rank has"""
HPK_SHM_DIR = "HPK_SHM_DIR"
"""a directory that stands for `/dev/shm`; slots lie in it as it is where it is the user's alone"""
HPK_AGENT_LINGER = "HPK_AGENT_LINGER"
"""seconds that an agent stays after its trainer has died"""
HPK_AGENT_SILENCE = "HPK_AGENT_SILENCE"
"""seconds of silence after which an agent is ended and another one takes its place"""
HPK_AGENT_STALL = "HPK_AGENT_STALL"
"""seconds without a byte moved, with work to do, after which the next save raises"""
HPK_STEP_RETRY = "HPK_STEP_RETRY"
"""`1`: srun may start the ranks of this attempt again (HyperPod), so each launch of them looks where it begins"""
HPK_PASSED_OVER = "HPK_PASSED_OVER"
"""the checkpoint that `job run` has stepped back from, which such a launch must not take either"""
HPK_UNREADABLE = "HPK_UNREADABLE"
"""the checkpoints that no rank could read, which it takes only where there are no others"""
HPK_LIFELINE = "HPK_LIFELINE"
"""address that a rank's wrapper keeps a connection to; set by `job run`"""
HPK_ATTEMPT_KEY = "HPK_ATTEMPT_KEY"
"""128 bits in hexadecimal by which an attempt's processes prove to each other that they are of it; set by `job run`"""

# On a node

HPK_MODE = "HPK_MODE"
"""the lifecycle mode, where a script is started by hand"""
HPK_NODE_ADDRESS = "HPK_NODE_ADDRESS"
"""the address by which the node is found in `resource_config.json`, instead of its own"""
HPK_CLUSTER = "HPK_CLUSTER"
"""for a script of the configuration: the cluster's name"""
HPK_GROUP = "HPK_GROUP"
"""for such a script: the instance group of the node"""
HPK_ROLE = "HPK_ROLE"
"""for such a script: the role of the node"""
HPK_CONTROLLERS = "HPK_CONTROLLERS"
"""for such a script: addresses of the controllers, the primary's first, with commas between them"""
HPK_LOGINS = "HPK_LOGINS"
"""for such a script: addresses of the login nodes, as far as the node's list of nodes has them"""
HPK_ROOT = "HPK_ROOT"
"""a directory that stands for `/`: rehearsals without root"""

# Set by tests and rehearsals alone

HPK_FAILPOINT = "HPK_FAILPOINT"
"""where a process is to die (checkpoint/repository/failpoint.py)"""
HPK_FAILPOINT_TRACE = "HPK_FAILPOINT_TRACE"
"""a file in which a death leaves its place"""
HPK_STANDIN_DATA = "HPK_STANDIN_DATA"
"""where a machine sees the storage that its stand-ins serve"""
HPK_STANDIN_ROLE = "HPK_STANDIN_ROLE"
"""the role that a stand-in acts as, instead of the machine's"""
HPK_STANDIN_STATE = "HPK_STANDIN_STATE"
"""where stand-ins of proxies keep their state"""
