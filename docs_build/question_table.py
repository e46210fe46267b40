"""The questions that the built site is asked, where each is answered, and what that place must say (questions.py).

The first twenty are of a review in which a newcomer had the site alone, the others of public threads of neighbouring
projects, in our words. `source` of those: the repository and the number of the thread on GitHub, read in November 2026.
"""

from __future__ import annotations

from typing import NamedTuple


class Question(NamedTuple):
    """`query`: what a person types into the search; `links`: the words of the links that lead there from the home page,
    where nothing is typed, or from the result; `place`: `PAGE.html#ANCHOR`; `phrase`: what the section must say."""

    source: str
    asked: str
    place: str
    phrase: str
    query: str = ""
    links: tuple[str, ...] = ()


REVIEW = (
    Question(
        "review a",
        "How do I get a configuration for my first cluster?",
        "how-to/first-cluster.html",
        "hyperpod-kit init",
        links=("Make a cluster",),
    ),
    Question(
        "review b",
        "What do I add to my own FSDP2 script?",
        "how-to/resume-a-training-script.html#add-checkpoints-to-the-training-loop",
        "manager.restore(state)",
        links=("Make a training script resumable",),
    ),
    Question(
        "review c",
        "A node does not mount its storage: which one, and why?",
        "how-to/node-does-not-mount.html#find-the-mount-and-the-reason",
        "hyperpod-kit diagnose",
        query="node does not mount",
    ),
    Question(
        "review d",
        "Which storage does a run of 70B parameters need?",
        "storage.html",
        "hyperpod-kit storage plan --parameters 70B",
        query="which storage for 70B",
    ),
    Question(
        "review e",
        "How do I stream jsonl from a bucket?",
        "data.html#index-a-data-set",
        "data index s3://",
        query="stream jsonl from a bucket",
    ),
    Question("review f", "How do I upgrade a cluster?", "how-to/upgrade.html", "rollout start", query="upgrade"),
    Question(
        "review g",
        "How do I take it off nodes that go on running?",
        "how-to/uninstall.html#from-nodes",
        "hyperpod-kit node uninstall",
        query="uninstall from nodes",
    ),
    Question(
        "review h",
        "What does HPK-U020 mean?",
        "reference/findings.html#hpk-u020",
        "hyperpod-kit users apply",
        query="HPK-U020",
    ),
    Question(
        "review i",
        "What does a save cost on a GPU?",
        "costs-on-gpus.html#a-save",
        "an overlapped save",
        query="cost on GPU",
    ),
    Question(
        "review j",
        "Where is the reference of Manager?",
        "reference/python/checkpoint.html",
        "Manager",
        query="Manager",
    ),
    Question(
        "review 1",
        "Does it work on EKS, on plain Slurm, on ParallelCluster?",
        "reference/compatibility.html#hyperpod-images",
        "jobs on any Slurm can use checkpoints",
        query="ParallelCluster",
    ),
    Question(
        "review 2",
        "Which versions of torch and CUDA work?",
        "reference/compatibility.html#versions-of-torch-cuda-and-frameworks",
        "2.6 or newer",
        query="torch version",
    ),
    Question(
        "review 3",
        "How do I keep the last 3 checkpoints and every 10,000th step?",
        "how-to/manage-checkpoints.html#keep-the-newest-n-checkpoints",
        "EverySteps(10_000)",
        query="keep last checkpoints",
    ),
    Question(
        "review 4",
        "Can I see it in W&B, TensorBoard or Grafana?",
        "goodput.html#show-goodput-in-tensorboard-wb-or-grafana",
        "Grafana",
        query="TensorBoard",
    ),
    Question(
        "review 5",
        "How does it compare with NVRx, torchft and AWS's tiered checkpointing?",
        "compared.html#for-whom-another-is-better",
        "torchft",
        query="NVRx",
    ),
    Question(
        "review 6",
        "What happens when two jobs use one checkpoint root?",
        "checkpoints.html#runisowned-two-jobs-on-one-root",
        "Only the newest start owns a root",
        query="two jobs one root",
    ),
    Question(
        "review 7",
        "How do I get safetensors for vLLM?",
        "how-to/in-and-out.html",
        "--to safetensors",
        query="export to safetensors",
    ),
    Question(
        "review 8",
        "Which ports must be open between nodes?",
        "reference/ports.html",
        "admits everything from and to itself",
        query="ports",
    ),
    Question(
        "review 9",
        "Which IAM permissions does the admin need?",
        "reference/permissions.html#the-admins-own-permissions",
        "sagemaker:CreateCluster",
        query="sagemaker:CreateCluster permission",
    ),
    Question(
        "review 10",
        "Where do I get help, and what do I send?",
        "getting-help.html#where-to-report",
        "Report a bug",
        query="report a bug",
    ),
)

THREADS = (
    Question(
        "pytorch/pytorch#144657",
        "If the optimizer steps on right after an asynchronous save, which weights are written?",
        "explanation/life-of-a-save.html#what-training-waits-for",
        "copies the state of its rank",
        query="what training waits for",
    ),
    Question(
        "pytorch/pytorch#170163",
        "Does host memory grow with each asynchronous save?",
        "checkpoints.html#host-memory-of-saves",
        "memory does not grow from save to save",
        query="host memory of saves",
    ),
    Question(
        "pytorch/pytorch#142396",
        "Can a sharded checkpoint be saved to s3:// without a file system?",
        "how-to/object-storage.html",
        "s3://my-bucket",
        query="checkpoint to S3",
    ),
    Question(
        "pytorch/torchtitan#305",
        "How does a torchtitan run begin with pretrained weights of Hugging Face?",
        "how-to/torchtitan.html#torchtitans-settings",
        "initial_load_in_hf",
        query="torchtitan",
    ),
    Question(
        "NVIDIA/nvidia-resiliency-ext#348",
        "One node of five fails: how does a spare take its place instead of ending the job?",
        "explanation/when-a-node-dies.html#with-a-spare-node",
        "The spare takes the place of the lost node",
        query="spare node",
    ),
    Question(
        "NVIDIA/nvidia-resiliency-ext#373",
        "Storage is slow for a while: does training stand still?",
        "explanation/life-of-a-save.html#what-training-waits-for",
        "a slow disk does not make it slower",
        query="slow storage during a save",
    ),
    Question(
        "NVIDIA/Megatron-LM#5281",
        "A copy in a partner's memory is damaged: does the restore fall back to storage?",
        "explanation/order-of-a-restore.html#when-a-copy-is-damaged-or-missing",
        "the next tier of the same candidate",
        query="damaged copy in memory",
    ),
    Question(
        "intelligent-machine-learning/dlrover#1046",
        "The container has 64 MB of /dev/shm and the trainer dies of SIGBUS: what now?",
        "how-to/containers.html#docker-podman-apptainer",
        "--ipc=host",
        query="docker /dev/shm 64 MB",
    ),
    Question(
        "mosaicml/streaming#421",
        "How do I resume in the middle of an epoch?",
        "data.html",
        "its position is committed with the weights",
        query="resume in the middle of an epoch",
    ),
    Question(
        "mosaicml/composer#2409",
        "Saved on 16 ranks, resumed on 8, then on 16 again: does that work?",
        "checkpoints.html#resume-on-another-number-of-ranks",
        "resharded",
        query="another number of ranks",
    ),
    Question(
        "Lightning-AI/pytorch-lightning#20347",
        "The same script is the first start and the resume: does it fail where no checkpoint is yet?",
        "index.html#what-it-guarantees",
        "the first starts at step 0",
    ),
    Question(
        "Lightning-AI/pytorch-lightning#21406",
        "Is it safe to save in a signal handler before the requeue?",
        "checkpoints.html#save-on-a-signal",
        "on all ranks after the same step",
        query="save on signal",
    ),
    Question(
        "Lightning-AI/pytorch-lightning#2634",
        "Jobs may run for six hours: how does a longer run go on by itself?",
        "how-to/after-preemption.html#the-time-limit",
        "queued again and resumes",
        query="time limit",
    ),
    Question(
        "awslabs/awsome-distributed-ai#632",
        "A script of mine needs /fsx, which is not ready yet: who waits?",
        "how-to/own-scripts.html#when-a-script-runs",
        "mounts and homes",
        query="run own script after mounts",
    ),
    Question(
        "awslabs/awsome-distributed-ai#427",
        "enroot fills the root volume (No space left on device): where do images go?",
        "how-to/optional-steps.html#enroot",
        "the same disk as Docker's",
        query="enroot",
    ),
    Question(
        "aws/aws-parallelcluster#4751",
        "What happens to mounts when a node is rebooted?",
        "mounts.html#what-survives-a-reboot-or-a-replaced-node",
        "reboot",
        query="mounts after a reboot",
    ),
    Question(
        "aws/aws-parallelcluster#3583",
        "A job lands on a node where /efs is not there: who keeps it away?",
        "health.html#keep-jobs-off-nodes-without-their-mounts",
        "Prolog",
        query="job starts on a node without its mount",
    ),
    Question(
        "awslabs/mountpoint-s3#469",
        "Only root can write to my S3 mount: what do I set?",
        "how-to/add-a-bucket.html#a-bucket-to-write-to",
        "a group whose members write",
        query="S3 mount permission denied",
    ),
    Question(
        "awslabs/mountpoint-s3#630",
        "What does `Transport endpoint is not connected` mean, and what do I do?",
        "how-to/node-does-not-mount.html#find-the-mount-and-the-reason",
        "the unit mounts it again within seconds",
        query="Transport endpoint is not connected",
    ),
    Question(
        "NVIDIA/pyxis#55",
        "Can I give --container-image to sbatch?",
        "how-to/containers.html#limits",
        "does not work",
        query="sbatch --container-image",
    ),
)

QUESTIONS = REVIEW + THREADS
