"""Environment variables that tests alone read, and what each means; those of the product are in its environment.py."""

from __future__ import annotations

MEANINGS = {
    "HPK_AWS_SCRIPTS": "a directory with AWS's base-config, whose scripts run on machines",
    "HPK_CONTAINER_SOURCES": "the directory with the sources of enroot and pyxis",
    "HPK_FAULTS": "`machines` or `private`: run tests/faults on a rehearsal, or on a Slurm of its own",
    "HPK_FAULTS_PROFILE": "the kind of cluster that the rows of faults meet: a name of tests/faults/profiles.py",
    "HPK_FAULT_COUNT": "how many random faults",
    "HPK_FAULT_KEEP": "where the random run is kept between its pieces",
    "HPK_FAULT_SECONDS": "how long a piece of the random run is",
    "HPK_FAULT_SEED": "the seed of the random faults",
    "HPK_FUZZ_DIR": "where the fuzzer has its files",
    "HPK_MUTANTS_MAP": "the file into which coverage writes which tests execute which lines",
    "HPK_MUTANTS_TRACED": "the files whose lines those are",
    "HPK_STANDIN_PYTHON": "the interpreter that runs the stand-ins",
    "HPK_TEST_COUNT": "a file in which a role's script counts its commands",
    "HPK_TEST_FAIL": "what fails in a role's script: a unit, a type of file system",
    "HPK_TEST_KILL_AT": "the command of a role's script at which it is killed",
    "HPK_TEST_PYTHON": "the interpreter that stands for the node's",
    "HPK_TEST_RANDOM": "set: property tests draw other examples at each run",
    "HPK_TEST_TIMES": "a file to which a line with its processor time is appended for each test",
    "HPK_TEST_RELEASE": "the release whose Slurm the tests on loopback run",
    "HPK_UPDATE_GOLDEN": "set: what is rendered now becomes the golden bundle",
    "HPK_ZOO_TRACEBACK": "set: a program of the zoo prints the traceback of what it was refused with",
}
