# make train   on a bare machine: environment, install, train CartPole-v1
# make test    on a bare machine: everything CI runs
# make help    the rest

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Passed on to what the target runs: make train ARGS="--seed 3 --n-actors 4"
ARGS   ?=
# Passed on to pytest: make unit PYTEST_ARGS="-k vtrace -x"
PYTEST_ARGS ?=

SOURCES     := services actor learner tests benchmarks examples clients docs
CODE        := $(wildcard $(SOURCES))
CONSTRAINTS := -c constraints.txt
PROTOS       = $(shell find proto/rollcast -name '*.proto')
# a file without a service would only get an empty _pb2_grpc.py
SERVICES     = $(shell grep -rl --include='*.proto' '^service ' proto/rollcast)
PROTOC       = $(BIN)/python -m grpc_tools.protoc -Iproto
# Where it is set, each of the processes that tests start compiles all modules anew, and so does each of pytest's.
unexport PYTHONDONTWRITEBYTECODE
# How many tests run at once: one more than there are cores, because some of them wait.
TEST_PROCESSES ?= 3
# those that can be run, but for the recipes, which take hours, for sb3, which needs `make peers`, for gpu, which is
# `make gpu`, for report, which measures nothing, and for the two of `make bench-against`; the rest is what they share
BENCHMARKS   = $(filter-out recipes report sb3 gpu against against_drivers,$(patsubst benchmarks/%.py,%,$(shell grep -l '^if __name__ == "__main__"' benchmarks/*.py)))
# The slowest tests are named at the end: CI has 25 minutes. tests/stages.py reads the report.
PYTEST       = $(BIN)/python -m pytest --durations=20 --durations-min=5 --junitxml=build/tests/$@.xml $(PYTEST_ARGS)
# Each process takes the next file, in the order of tests/conftest.py: what the tests of a file share is made once.
SHARED_OUT   = --dist loadfile --no-loadscope-reorder --numprocesses $(TEST_PROCESSES)
# Each check uses one core: two at a time. The stages after them use both.
CHECKS       = types collect docs format-check lint imports proto-check
STAGES      ?= pytest

WALKS        = tests/integration/test_run_ends.py tests/attacks/test_leaving_clients.py

.DEFAULT_GOAL := help
# format before lint, images before their tests
.NOTPARALLEL:
.DELETE_ON_ERROR:

# -- the environment: each step leaves a file, so the second make does nothing --

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rollcast needs Python 3.11 or newer; $$($(PYTHON) --version 2>&1) answers: make PYTHON=python3.12" >&2; exit 1; }
	@echo '$(PYTHON) -m venv $(VENV)'; $(PYTHON) -m venv $(VENV) || \
	  { echo "$(VENV) cannot be made, for the reason above; expected a folder that can be written to, and Python with venv;" \
	    "copy this checkout to such a folder, or keep the environment in another: make VENV=\$$HOME/rollcast-venv" >&2; exit 1; }
	@touch $@

# torch alone and first, at exactly the version of constraints.txt: no other package then has a say in which torch it
# is, and none brings the newest one with its gigabytes of CUDA.
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

# -- what people type --

# CartPole is solved by IMPALA in a tenth of PPO's time. Whatever you name is learnt by the default.
FIRST_CONTACT = $(if $(filter --env-id% --algorithm% --recipe% --resume% --config%,$(ARGS))$(ROLLCAST_ENV_ID)$(ROLLCAST_ALGORITHM)$(ROLLCAST_RECIPE),,--algorithm impala)

.PHONY: train
train: $(VENV)/.runtime ## install what running needs and train CartPole-v1; ARGS="--seed 3" for more
	$(BIN)/rollcast train $(FIRST_CONTACT) $(ARGS)

.PHONY: test
test: $(VENV)/.docs ## everything CI runs; a stage that fails does not hide the others
	@$(BIN)/python -m tests.stages --at-once $(CHECKS) -- $(STAGES)

# mypy checks again only what has changed, and what imports it: the first run takes a minute longer.
.PHONY: quick
quick: format lint types ## the inner loop: format, lint, types, and the unit tests that take less than half a second each
	$(PYTEST) $(SHARED_OUT) -m 'not slow' -q tests/unit tests/contract

.PHONY: bench
bench: env ## run every benchmark, one after the other, and print their tables; ONLY="acting ingest" for some
	@for name in $(or $(ONLY),$(BENCHMARKS)); do \
	  echo "== python -m benchmarks.$$name" && $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; \
	done

# The commit may stand where a target would: make bench-against 31ce8b1.
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
benchmark-first-contact: env ## each algorithm with its defaults on tasks it was not tuned for, beside SB3; goes on where it was; ONLY="pendulum" for some
	$(BIN)/python -m benchmarks.first_contact $(ONLY) $(ARGS)

.PHONY: peers
peers: env ## install what `make bench ONLY=replay ARGS=--peers`, `ONLY=sb3` and `make benchmark-first-contact` need
	$(BIN)/pip install --quiet $(CONSTRAINTS) --group peers

# -- the steps of make test --

.PHONY: checks
checks: $(VENV)/.docs ## format, lint, types, imports, the stubs and the documentation's site
	@$(BIN)/python -m tests.stages --at-once $(CHECKS)

.PHONY: format
format: env ## rewrite the sources in the house's format
	$(BIN)/ruff check --quiet --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)
	cd proto && $(abspath $(BIN))/buf format -w

.PHONY: format-check
format-check: env ## whether `make format` would change anything
	$(BIN)/ruff format --check $(CODE)

.PHONY: lint
lint: env ## ruff's rules; changes nothing
	$(BIN)/ruff check $(CODE)

.PHONY: types
types: env ## mypy, strict
	$(BIN)/mypy

# It also leaves the compiled tests, which every process of the stages would make for itself.
.PHONY: collect
collect: env ## whether pytest can import every test
	@found=$$($(BIN)/python -m pytest --collect-only --quiet 2>&1) || { echo "$$found" | tail -n 60; exit 1; }

.PHONY: imports
imports: env ## who may import whom
	$(BIN)/lint-imports

.PHONY: proto
proto: env ## make the stubs beside the .proto files again
	$(PROTOC) --python_out=proto --pyi_out=proto $(PROTOS)
	$(PROTOC) --grpc_python_out=proto $(SERVICES)

.PHONY: proto-check
proto-check: env ## lint and format of the .proto files, and whether the committed stubs are theirs
	cd proto && $(abspath $(BIN))/buf lint && $(abspath $(BIN))/buf format --diff --exit-code
	@made=$$(mktemp -d) && trap 'rm -rf "$$made"' EXIT && \
	$(PROTOC) --python_out="$$made" --pyi_out="$$made" $(PROTOS) && \
	$(PROTOC) --grpc_python_out="$$made" $(SERVICES) && \
	diff -r -x '*.proto' -x '__init__.py' -x py.typed -x __pycache__ "$$made/rollcast" proto/rollcast || \
	{ echo 'proto: the committed stubs are not what the .proto files make; run: make proto' >&2; exit 1; }

# NO_MKDOCS_2_WARNING: the theme prints on every build that it gets fixes until May 2027, and has a successor.
.PHONY: docs
docs: $(VENV)/.docs ## the documentation's site in build/site; warnings are errors, and nothing is fetched
	$(BIN)/python -m docs.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml

UNIT = tests/unit tests/contract tests/attacks $(wildcard tests/budgets)

# In one run: tests with containers and those of deadlines wait, and those with processes compute meanwhile. Should the
# images not build, the tests that need them build them again, fail and say why.
.PHONY: pytest
pytest: env ## every test; without a Docker engine, or a Slurm cluster, those that need it are skipped
	-@! docker info >/dev/null 2>&1 || $(MAKE) --no-print-directory --silent images
	$(PYTEST) $(SHARED_OUT) tests/e2e tests/integration $(UNIT)

.PHONY: unit
unit: env ## unit tests, golden wire bytes, hostile input
	$(PYTEST) $(SHARED_OUT) $(UNIT)

# Libraries choose their instructions once a process, so this is a run of pytest for each, two at a time.
.PHONY: numeric
numeric: env ## tests of computed numbers with every instruction set of this processor, on one thread and on two
	$(BIN)/python -m tests.numeric $(PYTEST_ARGS)

.PHONY: integration
integration: env ## real servers and processes, and clients in other languages (Node.js, where there is one)
	$(PYTEST) $(SHARED_OUT) tests/integration

.PHONY: e2e
e2e: env images ## real containers on a Docker engine, and a real Slurm cluster
	$(PYTEST) $(SHARED_OUT) tests/e2e

# Other Pythons than that of the environment, and no torch: light-3.12 takes python3.12, or pyenv's.
light-%: env ## unit tests of the installation without torch on another Python, in build/light: make light-3.12
	@.ci/light $* $(BIN)/pip --junitxml=build/tests/$@.xml $(PYTEST_ARGS)

# Speed depends on the machine, and decides nothing.
.PHONY: speed
speed: env ## three minutes of make bench-against
	@$(MAKE) --no-print-directory bench-against ARGS=--quick || \
	  echo 'make bench-against ARGS=--quick failed, as it says above' >build/tests/$@.skipped

# -- the rest --

.PHONY: release-check
release-check: env ## whether this tree can be released: both packages built, installed, light and full, README rendered
	$(BIN)/python -m tests.release

.PHONY: chaos
chaos: env ## 1,000 faults upon actors, learners, files, disks, clocks and networks, and the books kept; ARGS="--seed 3"
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: simulate
simulate: env ## the real parts in one thread, in orders that seeds decide, with faults; ARGS="--seconds 600", "--prove"
	$(BIN)/python -m tests.simulation $(ARGS)

.PHONY: matrix
matrix: env ## combinations of all that may be chosen: each trains and resumes, or is refused; ARGS="--sample 500 --seed 3"
	$(BIN)/python -m tests.matrix $(ARGS)

.PHONY: soak
soak: env ## half an hour of learners and actors: memory, threads, descriptors flat? ARGS="--minutes 5 --plot soak.svg"
	$(BIN)/python -m tests.soak $(ARGS)

.PHONY: attacks
attacks: env ## hostile clients: what each attack, each field of each RPC and each socket costs others; ARGS="--seconds 5"
	$(BIN)/python -m tests.attacks $(ARGS)

.PHONY: walks
walks: env ## every case of the walks over what there is, of which make test has some
	$(PYTEST) --dist worksteal --numprocesses $(TEST_PROCESSES) -m 'whole or not whole' $(WALKS)

.PHONY: fuzz
fuzz: env ## hostile input by the million for every decoder; ARGS="--messages 10000 --seed 4 --only rollout" for less
	$(BIN)/python -m tests.fuzz $(or $(ARGS),--messages 1000000 --seed 3)

.PHONY: budgets
budgets: env ## the work of the hot paths, counted, beside what is recorded; ARGS=--record writes it down
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
help: ## this list
	@sed -n 's/^\([a-z0-9%-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target what; do printf '%-15s %s\n' "$$target" "$$what"; done
