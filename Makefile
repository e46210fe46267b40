SHELL := /bin/bash
PY := .venv/bin/python
WORKERS ?= 3
PROFILE ?= stock
ROOT ?= fsx

FIRST := demo test test-all check docs bench dist

.PHONY: help $(FIRST) docs-search faults torture torch-own zoo fuzz gpu-check ends scale data-proof hang-proof clean

# A target's line carries its help behind `##`: the targets that people type first come first, then the others.
help:  ## what you can type (this list)
	@awk -v first="$(FIRST)" 'BEGIN { FS = ":[^#]*## "; n = split(first, order, " ") } \
	  /^[a-z-]+:.*## / { text[$$1] = $$2; if (index(" " first " ", " " $$1 " ") == 0) other[++m] = $$1 } \
	  END { for (i = 1; i <= n; i++) printf "make %-12s %s\n", order[i], text[order[i]]; \
	        print ""; for (i = 1; i <= m; i++) printf "make %-12s %s\n", other[i], text[other[i]] }' Makefile

demo:  ## the whole path on a rehearsal cluster, from set-up to a resumed job (root); ROOT=s3, CONTAINER=1
	./setup.sh system
	./setup.sh venv admin
	$(PY) examples/demo/demo.py --root $(ROOT) $(if $(CONTAINER),--container) $(DEMO_ARGS)

test:  ## set-up and the gate: every invariant of docs/testing.md; what cannot run here is skipped with its reason
	./setup.sh system
	./setup.sh venv admin torch data test frameworks
	.ci/run-tests $(WORKERS)

test-all:  ## set-up and all tests, in parts; an interrupted run goes on; ONLY=data
	./setup.sh system
	./setup.sh venv admin torch data test frameworks
	.ci/run-tests --all $(ONLY:%=--only=%) $(WORKERS)

check:  ## ruff, mypy --strict, shellcheck, rendered units, the documentation site
	./setup.sh system
	./setup.sh venv admin torch data test check docs
	.ci/run-checks

docs:  ## the documentation site, in site/: every page is built and every link is followed
	./setup.sh venv admin torch docs
	.ci/build-docs site

docs-search: docs  ## questions of newcomers, asked of the site in headless Chromium
	.venv/bin/python -m docs_build.search_check site
	.venv/bin/python -m docs_build.questions site

dist:  ## wheels and sdist, built twice with the same bytes, and tried in an empty venv
	./setup.sh venv dist
	.ci/check-dist $(DIST_ARGS)

bench:  ## what the machine and the checkpoint engine can do; BENCH_ARGS
	./setup.sh venv admin torch
	$(PY) -m hyperpod_kit.cli.main checkpoint bench $(BENCH_ARGS)

faults:  ## every fault of docs/faults.md on a rehearsal cluster (root); PROFILE=hyperpod, hyperpod-2026, today, newest, container
	./setup.sh system faults
	./setup.sh venv admin torch test
	HPK_FAULTS_PROFILE=$(PROFILE) .ci/run-faults

torture:  ## 10,000 flipped bytes, 1,000 killed processes, every failing operation: up to an hour
	./setup.sh venv admin torch test
	$(PY) -m hyperpod_lab.torture --budget 3600 --ranks 1,1,1,2,8 $(TORTURE_ARGS)
	@if [ "$$(id -u)" = 0 ] && [ -e /dev/fuse ]; then \
	  $(PY) -m hyperpod_rehearsal.mounted --allow-delete -- \
	    $(PY) -m hyperpod_lab.torture --only damage --mounted {} --budget 3600; \
	else echo "damage on a mount not run: it needs root and /dev/fuse"; fi

# No package of ours asks for what those tests import, so it goes into a folder beside the libraries.
torch-own:  ## torch's own tests of its checkpoints over our reader and writer; SOURCES=DIR with torch's sources
	@test -d "$(SOURCES)/test/distributed/checkpoint" || { \
	  echo "make torch-own SOURCES=DIR: DIR has torch's sources, or their test/distributed/checkpoint"; exit 2; }
	./setup.sh venv admin torch test
	$(PY) -m pip install -q --no-deps --target .venv/torch-own expecttest parameterized
	PYTHONPATH=$(CURDIR)/.venv/torch-own $(PY) -m tests.distributed.torch_own $(SOURCES) $(TORCH_OWN_ARGS)

# Into a folder beside the libraries: torchvision's compiled parts are of a torch with CUDA, and only its Python is needed.
zoo:  ## other people's optimizers and modules, saved and restored beside torch's own loading; ZOO_ARGS; 10 minutes
	./setup.sh venv admin torch test frameworks
	test .venv/zoo/installed -nt tests/zoo/packages.txt || { $(PY) -m pip install -q --no-deps --upgrade \
	  --require-hashes --requirement tests/zoo/packages.txt --target .venv/zoo && touch .venv/zoo/installed; }
	PYTHONPATH=$(CURDIR)/.venv/zoo:$(CURDIR) $(PY) -m tests.zoo --table tests/zoo/README.md $(ZOO_ARGS)

scale:  ## simulated fleets of 64 to 16,384 ranks: what grows with them, and by how much; at most 20 minutes
	./setup.sh venv admin torch
	PYTHONPATH=. $(PY) lab/programs/fleets $(SCALE_ARGS)

ends:  ## a step ended in each way at 20 random moments, 2 GB a node, with process tracking by cgroup (root)
	./setup.sh system
	./setup.sh venv admin torch test
	$(PY) -m tests.cgroup.moments --rate 0 $(ENDS_ARGS)
	$(PY) -m tests.cgroup.moments --rate 100 $(ENDS_ARGS)

data-proof:  ## 300 killed ranks: each sample exactly once, tokens and losses as undisturbed; 10 minutes
	./setup.sh venv admin torch data test
	$(PY) -m tests.unit.data.proof $(PROOF_ARGS)

hang-proof:  ## 200 healthy jobs that are silent are left alone, 50 that hang and print are ended; 15 minutes
	$(PY) -m tests.unit.job.hang_proof --rows build/hang-proof.jsonl $(HANG_ARGS)

fuzz:  ## 100,000 inputs for each parser that reads what another wrote: at most half an hour on 2 cores
	./setup.sh venv admin torch data test
	$(PY) -m tests.hostile.fuzz --workers $(WORKERS) $(FUZZ_ARGS)

# No set-up here: it would need the network. GPU_PY is an interpreter with a CUDA torch, pytest and this package's needs.
GPU_PY ?= $(PY)
gpu-check:  ## the tests that need one CUDA device, then lab/programs/gpu.py; no network, under 8 minutes
	@if $(GPU_PY) -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then \
	  PYTHONPATH=. timeout 300 $(GPU_PY) -m pytest -p no:cacheprovider tests/gpu $(GPU_ARGS) && \
	  PYTHONPATH=. timeout 180 $(GPU_PY) lab/programs/gpu.py --gigabytes 4 --folder /dev/shm; \
	else echo "not run: no CUDA device"; fi

clean:  ## remove .venv, caches and built packages
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build dist
