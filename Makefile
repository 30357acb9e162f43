# One front door. `make` alone lists what there is.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SEED   ?=
ARGS   ?=
GUESTS := accelerate lightning jax mpi4py tensorflow-cpu tqdm

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-long check check-quick format sdk definitions bench bench-scheduler bench-train bench-gpu bench-kube bench-web soak mutants test-gpu test-guests test-kube test-node test-node-long test-train test-web pictures clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Stamps: what is installed is looked at again only when what is asked for has changed.
$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Oarlock needs Python 3.11 or newer; say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "This Python cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.setup: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[torch,examples]'
	@touch $@

$(VENV)/.setup-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[torch,dev]'
	@touch $@ $(VENV)/.setup

setup: $(VENV)/.setup  ## .venv with Oarlock, torch and what the examples need

setup-dev: $(VENV)/.setup-dev  ## the same, and what the tests and checks need

demo: setup  ## train the first example on this machine
	$(BIN)/oarlock submit examples/01-digits/oarlock.yaml --follow

check: check-quick  ## ruff, the layers, mypy
	$(BIN)/mypy

check-quick: setup-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo

# A single test has a bound (pyproject.toml), the suite has none: a slow machine is not a defect. A worker that has nothing
# left to do takes over tests of another: the slow tests lie side by side. The tests start hundreds of processes: each would
# compile all that it imports where the environment forbids to keep bytecode.
test test-long: export PYTHONDONTWRITEBYTECODE :=
# Without its cache mypy takes one core for a while: it runs beside the tests, and its output stands behind theirs.
# In a fresh clone each worker would compile all modules and tests by itself: they are compiled once before, on the other core.
test: check-quick  ## the checks and the tests (ARGS=... goes to pytest)
	@$(BIN)/mypy >$(VENV)/.mypy.log 2>&1 & types=$$!; \
	  [ -d tests/__pycache__ ] || $(BIN)/python -m pytest -q --collect-only >/dev/null 2>&1; \
	  $(BIN)/python -m pytest -n auto --dist worksteal $(ARGS); tests=$$?; \
	  wait $$types; checked=$$?; cat $(VENV)/.mypy.log; exit $$((tests > checked ? tests : checked))

test-long: setup-dev  ## the long tests: long stories, simulations of days, all examples of property tests, published figures (OARLOCK_DATA)
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -m "(long or hypothesis) and not (node or soak)" -n auto --dist worksteal --timeout=900 $(ARGS)

format: setup-dev  ## let ruff lay out and repair what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

sdk: setup-dev  ## make the synchronous SDK from the asynchronous one
	$(BIN)/python tools/sdk.py

definitions: setup-dev  ## make the definitions of the custom resources from the structs of the job file
	$(BIN)/python -m oarlock.api.customresources.definitions >deploy/base/definitions.yaml

bench: setup-dev  ## measure; the tables are in docs/benchmarks.md
	$(BIN)/python -m bench $(ARGS)

bench-scheduler: setup-dev  ## the scheduler: its policies, and how it does in large clusters (OARLOCK_DATA: recorded workloads)
	$(BIN)/python -m bench policies placing scheduling $(ARGS)

test-train: setup-dev  ## one program for each strategy of training together (examples/02-strategies)
	$(BIN)/python -m pytest -m train -n 2 --dist worksteal tests/train $(ARGS)

# Without a GPU this fails: it is what it is for.
test-gpu: setup-dev  ## training and jobs on the GPU of this machine
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
	  || { echo "torch sees no GPU here. Look with nvidia-smi, and install a torch for its version of CUDA." >&2; exit 1; }
	$(BIN)/python -m pytest -m gpu -n 4 --dist worksteal tests/gpu $(ARGS)

# What cannot be installed fails the tests that need it, with pip's reason; the others run.
test-guests: setup-dev  ## scripts written for other launchers (Accelerate, Lightning, JAX, MPI, ...), under theirs and ours
	@$(PIP) -e '.[guests]' >$(VENV)/.guests.log 2>&1 \
	  || for guest in $(GUESTS); do $(PIP) "$$guest" >>$(VENV)/.guests.log 2>&1; done; true
	@{ command -v mpirun && command -v mpiexec.hydra; } >/dev/null || [ "$$(id -u)" != 0 ] \
	  || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openmpi-bin mpich >>$(VENV)/.guests.log 2>&1; true
	$(BIN)/python -m pytest -m guests -n 2 --dist loadfile --timeout=900 tests/guests $(ARGS)

# OARLOCK_BROWSER names another browser than the system's Chromium. Without one this fails: it is what it is for.
test-web: setup-dev  ## the pages in a real browser (OARLOCK_BROWSER=program)
	@$(BIN)/python -c 'import playwright, axe_playwright_python' 2>/dev/null || $(PIP) -e '.[browser]'
	@command -v "$${OARLOCK_BROWSER:-chromium}" >/dev/null || [ "$$(id -u)" != 0 ] \
	  || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; true
	@command -v "$${OARLOCK_BROWSER:-chromium}" >/dev/null \
	  || { echo "There is no Chromium. On Debian: apt-get install chromium; or name a browser: OARLOCK_BROWSER=..." >&2; exit 1; }
	$(BIN)/python -m pytest -m browser -n 3 --dist loadfile tests/web/browser $(ARGS)

pictures: setup-dev  ## take the pictures of the pages in the documentation anew, in a real browser
	OARLOCK_PICTURES=write $(BIN)/python -m pytest -m browser -n 0 tests/web/browser -k documentation

# KUBEBUILDER_ASSETS names the folder with kube-apiserver and etcd. Where it is not set, the program TEST_CLUSTER builds them, once, if
# there is one, and for root alone: the build installs packages. Without them this fails: it is what it is for. So does a test that is
# skipped for a lack of this cluster. setup-envtest gets neither the stock scheduler nor the controllers: these must be there only beside
# a kubelet, in a whole build of Kubernetes. The other tests of these folders run in `make test`.
whole_build := ,kube-scheduler,garbage collector
envtest := /usr/local/kubebuilder/bin
builder := $(realpath $(or $(TEST_CLUSTER),$(wildcard ../shared/kube/cluster)))
built = $(eval built := $(if $(and $(builder),$(filter 0,$(shell id -u))),$(shell tests/backends/kubernetes/testcluster/assets.sh $(builder))))$(built)
test-kube: export KUBEBUILDER_ASSETS ?= $(if $(wildcard $(envtest)/kube-apiserver),$(envtest),$(built))
test-kube: export TEST_NEEDS_MET ?= Kubernetes API server,custom objects$(if $(wildcard $(KUBEBUILDER_ASSETS)/kubelet),$(whole_build))
test-kube: setup-dev  ## the Kubernetes backend against a real API server (KUBEBUILDER_ASSETS=folder, or TEST_CLUSTER=program that builds it)
	@test -x "$${KUBEBUILDER_ASSETS:-$(envtest)}/kube-apiserver" \
	  || { test -z "$$TEST_CLUSTER" || test -f "$$TEST_CLUSTER" || echo "TEST_CLUSTER names no program: $$TEST_CLUSTER" >&2; \
	       test -z "$(builder)" || test "$$(id -u)" = 0 || echo "Only root builds one with TEST_CLUSTER." >&2; \
	       echo "There is no kube-apiserver in KUBEBUILDER_ASSETS. tests/needs.py says how to get one." >&2; exit 1; }
	$(BIN)/python -m pytest -m "needs(need='Kubernetes API server')" -n 4 --dist worksteal --timeout=900 \
	  tests/backends/kubernetes tests/api/customresources tests/e2e/kubernetes $(ARGS)

# KUBECONFIG names a cluster whose nodes have the images of tests/node/images.sh, and in which these tests may install. Without it this
# fails: it is what it is for.
test-node: setup-dev  ## jobs on a cluster that runs pods (KUBECONFIG=file)
	@test -n "$$KUBECONFIG" || { echo "KUBECONFIG names no cluster. tests/node/images.sh says how one gets its images." >&2; exit 1; }
	$(BIN)/python -m pytest -m "node and not long" -n 0 --timeout=1800 tests/node $(ARGS)

test-node-long: setup-dev  ## the long ones of these tests: an image built twice, pods that are killed at each step of an upload
	@test -n "$$KUBECONFIG" || { echo "KUBECONFIG names no cluster. tests/node/images.sh says how one gets its images." >&2; exit 1; }
	$(BIN)/python -m pytest -m "node and long" -n 0 --timeout=3600 tests/node $(ARGS)

bench-train: setup-dev  ## training over slow links, and its checkpoints (root: it makes network namespaces; half an hour)
	$(BIN)/python -m bench $(or $(ROWS),together saving working serving reducing advising) pictures $(ARGS)

bench-gpu: setup-dev  ## training on the GPU of this machine (three minutes)
	$(BIN)/python -m bench gpu $(ARGS)

bench-web: setup-dev  ## the pages in a browser, against TensorBoard (ARGS="visits log": some of them)
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(PIP) -e '.[browser]'
	$(BIN)/python -m bench $(if $(ARGS),$(ARGS),visits lists idle-pages fifty heap log follow charts map verdicts package)

bench-kube: setup-dev  ## launches on Kubernetes, against the stock scheduler (KUBEBUILDER_ASSETS=folder); with KUBECONFIG also jobs in pods
	$(BIN)/python -m bench $(or $(ROWS),kube objects $(if $(KUBECONFIG),pods)) $(ARGS)

soak: setup-dev  ## long runs with faults (SEED=... repeats one)
	SEED="$(SEED)" $(BIN)/python -m pytest -m soak --timeout=0 $(ARGS)

mutants: setup-dev  ## plant small bugs, and name those that no test notices (ARGS=lifecycle: in one room)
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || $(PIP) -e '.[mutants]'
	$(BIN)/python -m tests.mutants $(ARGS)

clean:  ## forget the virtual environment and the tools' caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .mutants build dist
