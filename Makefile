# make train   on a bare machine: environment, install, train CartPole-v1
# make test    on a bare machine: everything CI runs
# make help    the rest

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Arguments for the target's program: make train ARGS="--seed 3 --n-actors 4"
ARGS   ?=
# Arguments for pytest: make unit PYTEST_ARGS="-k vtrace -x"
PYTEST_ARGS ?=

SOURCES     := services actor learner tests benchmarks examples clients docs
CODE        := $(wildcard $(SOURCES))
CONSTRAINTS := -c constraints.txt
PROTOS       = $(shell find proto/rollcast -name '*.proto')
# a file without a service would only get an empty _pb2_grpc.py
SERVICES     = $(shell grep -rl --include='*.proto' '^service ' proto/rollcast)
PROTOC       = $(BIN)/python -m grpc_tools.protoc -Iproto
# If it is set, each process of pytest, and each process that a test starts, compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE
# How many tests run at once: twice as many as the two cores of CI, because many of them wait.
TEST_PROCESSES ?= 4
# All benchmarks except recipes, which take hours; sb3, which needs `make peers`; gpu, which is `make gpu`; report, which
# measures nothing; and the two of `make bench-against`. Files without `__main__` are shared by benchmarks.
BENCHMARKS   = $(filter-out recipes report sb3 gpu against against_drivers,$(patsubst benchmarks/%.py,%,$(shell grep -l '^if __name__ == "__main__"' benchmarks/*.py)))
# The slowest tests are named at the end: CI has 25 minutes. tests/stages.py reads the report.
PYTEST       = $(BIN)/python -m pytest --durations=20 --durations-min=5 --junitxml=build/tests/$@.xml $(PYTEST_ARGS)
# Each process takes the next file, in the order of tests/conftest.py, so that fixtures of a file are made once.
SHARED_OUT   = --dist loadfile --no-loadscope-reorder --numprocesses $(TEST_PROCESSES)
# Each check uses one core: two at a time, beside the stages, whose tests wait now and then.
CHECKS       = types docs format-check lint imports proto-check
STAGES      ?= pytest

WALKS        = tests/integration/test_run_ends.py tests/attacks/test_leaving_clients.py

.DEFAULT_GOAL := help
# format before lint, images before their tests
.NOTPARALLEL:
.DELETE_ON_ERROR:

# -- the environment: each step leaves a file, so that a second make does nothing --

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rollcast needs Python 3.11 or newer; $$($(PYTHON) --version 2>&1) answers: make PYTHON=python3.12" >&2; exit 1; }
	@echo '$(PYTHON) -m venv $(VENV)'; $(PYTHON) -m venv $(VENV) || \
	  { echo "$(VENV) cannot be made, for the reason above; expected a folder that can be written to, and Python with venv;" \
	    "copy this checkout to such a folder, or keep the environment in another: make VENV=\$$HOME/rollcast-venv" >&2; exit 1; }
	@touch $@

# torch alone and first, at the version of constraints.txt. Otherwise another package may pull in the newest torch, with
# gigabytes of CUDA.
$(VENV)/.torch: $(VENV)/.made constraints.txt
	$(BIN)/pip install --quiet $(CONSTRAINTS) torch
	@touch $@

$(VENV)/.runtime: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet $(CONSTRAINTS) --editable '.[learner,dashboard,plot,video]'
	@touch $@

# `--group` came with pip 25.1, and a new environment has the pip that its Python shipped with.
$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --upgrade pip
	$(BIN)/pip install --quiet $(CONSTRAINTS) --editable '.[learner,docker,pettingzoo,atari,plot,dashboard,top,video,onnx,websockets,wandb,trackio,mlflow]' --group dev
	@touch $@

# Not in .dev: only `make docs` needs them.
$(VENV)/.docs: $(VENV)/.dev
	$(BIN)/pip install --quiet $(CONSTRAINTS) --group docs
	@touch $@

.PHONY: env
env: $(VENV)/.dev ## make .venv with the project, editable, and the development tools

# -- targets for users --

# IMPALA solves CartPole in a tenth of PPO's time. If you choose an environment or an algorithm, the defaults apply.
FIRST_CONTACT = $(if $(filter --env-id% --algorithm% --recipe% --resume% --config%,$(ARGS))$(ROLLCAST_ENV_ID)$(ROLLCAST_ALGORITHM)$(ROLLCAST_RECIPE),,--algorithm impala)

.PHONY: train
train: $(VENV)/.runtime ## install what training needs, and train CartPole-v1; ARGS="--seed 3" for more
	$(BIN)/rollcast train $(FIRST_CONTACT) $(ARGS)

.PHONY: test
test: $(VENV)/.docs ## everything CI runs; a stage that fails does not hide the others
	@$(BIN)/python -m tests.stages --at-once $(CHECKS) -- collect $(STAGES)

# mypy rechecks only changed modules and their importers: the first run takes a minute longer.
.PHONY: quick
quick: format lint types ## the inner loop: format, lint, types, and the unit tests that take less than half a second each
	$(PYTEST) $(SHARED_OUT) -m 'not slow' -q tests/unit tests/contract

.PHONY: bench
bench: env ## run every benchmark, one after the other, and print their tables; ONLY="acting ingest" for some
	@for name in $(or $(ONLY),$(BENCHMARKS)); do \
	  echo "== python -m benchmarks.$$name" && $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; \
	done

# The commit may be given as a second target: make bench-against 31ce8b1.
ifeq ($(firstword $(MAKECMDGOALS)),bench-against)
COMMIT ?= $(word 2,$(MAKECMDGOALS))
$(filter-out bench-against,$(MAKECMDGOALS)):
	@:
endif

.PHONY: bench-against
bench-against: env ## processor time of this tree as ratios to COMMIT=31ce8b1, or to the last tag; ARGS=--quick: three minutes
	$(BIN)/python -m benchmarks.against $(ARGS) $(COMMIT)

# constraints.txt keeps them from bringing another torch or numpy.
.PHONY: benchmark-recipes
benchmark-recipes: env ## train recipes with several seeds, and print when they reach their thresholds; ONLY="ppo-cartpole" for some
	$(BIN)/python -m benchmarks.recipes $(ONLY) $(ARGS)

.PHONY: benchmark-first-contact
benchmark-first-contact: env ## each algorithm with its defaults on tasks it was not tuned for, beside SB3; continues where it stopped; ONLY="pendulum" for some
	$(BIN)/python -m benchmarks.first_contact $(ONLY) $(ARGS)

.PHONY: peers
peers: env ## install the packages that `make bench ONLY=replay ARGS=--peers`, `ONLY=sb3` and `make benchmark-first-contact` need
	$(BIN)/pip install --quiet $(CONSTRAINTS) --group peers

# -- the steps of make test --

.PHONY: checks
checks: $(VENV)/.docs ## format, lint, types, imports, the stubs and the documentation's site
	@$(BIN)/python -m tests.stages --at-once $(CHECKS) collect

.PHONY: format
format: env ## format the sources
	$(BIN)/ruff check --quiet --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)
	cd proto && $(abspath $(BIN))/buf format -w

.PHONY: format-check
format-check: env ## whether `make format` would change anything
	$(BIN)/ruff format --check $(CODE)

.PHONY: lint
lint: env ## check ruff's rules; changes no file
	$(BIN)/ruff check $(CODE)

.PHONY: types
types: env ## mypy, strict
	$(BIN)/mypy

# It also compiles the tests, so that the processes of the stages need not.
.PHONY: collect
collect: env ## whether pytest can import every test
	@found=$$($(BIN)/python -m pytest --collect-only --quiet 2>&1) || { echo "$$found" | tail -n 60; exit 1; }

.PHONY: imports
imports: env ## check which package may import which
	$(BIN)/lint-imports

.PHONY: proto
proto: env ## generate the stubs beside the .proto files
	$(PROTOC) --python_out=proto --pyi_out=proto $(PROTOS)
	$(PROTOC) --grpc_python_out=proto $(SERVICES)

.PHONY: proto-check
proto-check: env ## check lint and format of the .proto files, and whether the committed stubs match them
	cd proto && $(abspath $(BIN))/buf lint && $(abspath $(BIN))/buf format --diff --exit-code
	@made=$$(mktemp -d) && trap 'rm -rf "$$made"' EXIT && \
	$(PROTOC) --python_out="$$made" --pyi_out="$$made" $(PROTOS) && \
	$(PROTOC) --grpc_python_out="$$made" $(SERVICES) && \
	diff -r -x '*.proto' -x '__init__.py' -x py.typed -x __pycache__ "$$made/rollcast" proto/rollcast || \
	{ echo 'proto: the committed stubs do not match the .proto files; run: make proto' >&2; exit 1; }

# NO_MKDOCS_2_WARNING: otherwise the theme announces its end of support, May 2027, on every build.
.PHONY: docs
docs: $(VENV)/.docs ## build the documentation's site in build/site; warnings are errors, and nothing is downloaded
	$(BIN)/python -m docs.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml

UNIT = tests/unit tests/contract tests/attacks $(wildcard tests/budgets)

# One run for all tests, so that some compute while others wait for containers or deadlines. If the images do not
# build, the tests that need them build them again, fail and report why.
.PHONY: pytest
pytest: env ## every test; without a Docker engine, or a Slurm cluster, those that need it are skipped
	-@! docker info >/dev/null 2>&1 || $(MAKE) --no-print-directory --silent images
	$(PYTEST) $(SHARED_OUT) tests/e2e tests/integration $(UNIT)

.PHONY: unit
unit: env ## unit tests, golden wire bytes, hostile input
	$(PYTEST) $(SHARED_OUT) $(UNIT)

# Libraries choose their instructions once per process, so each instruction set gets its own run of pytest.
.PHONY: numeric
numeric: env ## tests of computed numbers with every instruction set of this processor, on one thread and on two
	$(BIN)/python -m tests.numeric $(PYTEST_ARGS)

.PHONY: integration
integration: env ## real servers and processes, and clients in other languages (Node.js, where there is one)
	$(PYTEST) $(SHARED_OUT) tests/integration

.PHONY: e2e
e2e: env images ## real containers on a Docker engine, and a real Slurm cluster
	$(PYTEST) $(SHARED_OUT) tests/e2e

# For Pythons other than that of the environment, and without torch: light-3.12 uses python3.12, or pyenv's.
light-%: env ## unit tests of the installation without torch on another Python, in build/light: make light-3.12
	@.ci/light $* $(BIN)/pip --junitxml=build/tests/$@.xml $(PYTEST_ARGS)

# Speed depends on the machine, so this stage never fails.
.PHONY: speed
speed: env ## three minutes of make bench-against
	@$(MAKE) --no-print-directory bench-against ARGS=--quick || \
	  echo 'make bench-against ARGS=--quick failed, as it says above' >build/tests/$@.skipped

# -- the rest --

.PHONY: release-check
release-check: env ## whether this tree can be released: builds both packages, installs them light and full, renders the README
	$(BIN)/python -m tests.release

.PHONY: chaos
chaos: env ## inject 1,000 faults into actors, learners, files, disks, clocks and networks; nothing may be lost; ARGS="--seed 3"
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: simulate
simulate: env ## run the real parts in one thread, in random orders from seeds, with faults; ARGS="--seconds 600", "--prove"
	$(BIN)/python -m tests.simulation $(ARGS)

.PHONY: matrix
matrix: env ## combinations of settings: each trains and resumes, or is refused; ARGS="--sample 500 --seed 3"
	$(BIN)/python -m tests.matrix $(ARGS)

.PHONY: soak
soak: env ## run learners and actors for half an hour, and find leaks of memory, threads and descriptors; ARGS="--minutes 5 --plot soak.svg"
	$(BIN)/python -m tests.soak $(ARGS)

.PHONY: attacks
attacks: env ## measure what hostile clients cost others: attacks, fields of each RPC, and sockets; ARGS="--seconds 5"
	$(BIN)/python -m tests.attacks $(ARGS)

.PHONY: gpu
gpu: env ## every test and benchmark that needs a GPU, in one table; ARGS="--only updates" for some
	$(BIN)/python -m benchmarks.gpu $(ARGS)

.PHONY: walks
walks: env ## every case of the walks; make test runs only some of them
	$(PYTEST) --dist worksteal --numprocesses $(TEST_PROCESSES) -m 'whole or not whole' $(WALKS)

.PHONY: fuzz
fuzz: env ## a million hostile messages for every decoder; ARGS="--messages 10000 --seed 4 --only rollout" for less
	$(BIN)/python -m tests.fuzz $(or $(ARGS),--messages 1000000 --seed 3)

.PHONY: budgets
budgets: env ## count the work of the hot paths, and compare it with the record; ARGS=--record updates the record
	$(BIN)/python -m tests.budgets $(ARGS)

.PHONY: images
images: ## build rollcast-actor and rollcast-learner
	docker build --network=host -f actor/Dockerfile -t rollcast-actor .
	docker build --network=host -f learner/Dockerfile -t rollcast-learner .

.PHONY: clean
clean: ## remove the environment and every cache; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf tests/integration/node/node_modules
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help
help: ## print this list
	@sed -n 's/^\([a-z0-9%-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target what; do printf '%-15s %s\n' "$$target" "$$what"; done
