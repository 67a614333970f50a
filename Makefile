# Everything runs inside .venv, which the first target makes. Needs Python 3.11 or newer, make and a package registry.
PYTHON ?= python3
WORKERS ?= 2
LIMIT ?= 3600
VENV := .venv
BIN := $(VENV)/bin
# constraints.txt pins every version, also those of the build tools: hence --no-build-isolation.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
CREATED := $(VENV)/.created
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed

.DEFAULT_GOAL := help
.PHONY: help demo native test test-all matrix lint types coverage dist viewer viewer-check bench timm docs clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 15

native: $(RUNTIME) ## build the recorder in C++, which makes recording cheap; needs a C++ compiler
	$(BIN)/torchatlas native

demo: $(RUNTIME) ## install what the package needs and run the demonstration
	$(BIN)/torchatlas demo

# loadscope keeps a test module in one worker, so that its fixtures are made once. One torch thread per worker.
# pyproject.toml ends a test that hangs. If all else fails, SIGABRT to all of them: each writes where it stands and ends.
PYTEST = OMP_NUM_THREADS=1 $(if $(shell command -v timeout),timeout --signal=ABRT --kill-after=60 $(LIMIT)) \
	  $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope
ENDED = { code=$$?; \
	  case $$code in 124|137) echo "make $@: not over after $(LIMIT) s and ended; the stacks are above." >&2;; esac; \
	  exit $$code; }

test: $(DEV) ## run the tests that are not slow, and the examples in docstrings and docs: ten minutes
	$(PYTEST) -m "not slow" || $(ENDED)

test-all: test ## run the slow tests as well: half an hour
	$(PYTEST) -m slow || $(ENDED)

# `make matrix TORCH=2.15.0` tests another torch in an environment of its own: outside the project, some 6 GB, kept for
# the next time. TESTS selects: make matrix TORCH=2.10.0 TESTS=tests/test_laws.py. docs/versions.md holds the results.
TORCH ?=
TESTS ?=
MATRIX = $${XDG_CACHE_HOME:-$$HOME/.cache}/torchatlas/torch-$(TORCH)

matrix: ## run the tests with another torch: make matrix TORCH=2.15.0
	@test -n "$(TORCH)" || { echo "Name a version: make matrix TORCH=2.15.0"; exit 1; }
	@PYTHON="$(PYTHON)" tests/matrix.sh "$(TORCH)" "$(MATRIX)"
	PYTHONPATH="$(CURDIR)/src" OMP_NUM_THREADS=1 "$(MATRIX)/bin/python" -m pytest -n $(WORKERS) --dist loadscope -p no:cacheprovider $(TESTS)

lint: $(DEV) ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## check types (mypy, strict)
	$(BIN)/mypy

coverage: $(DEV) ## run the tests that are not slow and print which lines they miss
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow" \
	  --cov=torchatlas --cov-report=term:skip-covered

dist: $(DEV) ## build the sdist and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist

# viewer/src -> the script and the style that ship inside the package. Only who changes the viewer needs Node (18 or newer).
ASSET := src/torchatlas/render/viewer/asset
NODE_MODULES := viewer/node_modules/.package-lock.json

viewer: $(NODE_MODULES) ## check, test and build the viewer's script and style (needs Node 18 or newer)
	@cd viewer && npm run --silent types && npm run --silent test && npm run --silent build

viewer-check: $(NODE_MODULES) ## check and test the viewer, and that the shipped script and style are what its source builds
	@cd viewer && npm run --silent lint && npm run --silent types && npm run --silent test
	@set -e; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; cd viewer; npm run --silent build -- "$$fresh"; cd ..; \
	  diff --brief --recursive "$$fresh" $(ASSET) || { \
	  echo "$(ASSET) is not what viewer/src builds. Run 'make viewer' and commit what it changes there."; exit 1; }

docs: $(DOCS) ## build the documentation into site/, and check it: warnings and dead links are errors
	OMP_NUM_THREADS=1 $(BIN)/python -m sitegen site
	TORCHATLAS_SITE=site $(BIN)/python -m pytest tests/test_site.py

bench: $(DEV) ## run every benchmarks/bench_*.py
	@ls benchmarks/bench_*.py >/dev/null 2>&1 || { echo "There are no benchmarks/bench_*.py yet."; exit 1; }
	@set -e; for file in benchmarks/bench_*.py; do echo "== $$file"; $(BIN)/python $$file; done

# --no-deps: it would bring a torch and a torchvision of its own. What else it needs, transformers has brought.
timm: $(DEV) ## install timm for benchmarks/verified.py
	@$(PIP_INSTALL) --no-deps timm

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) viewer/node_modules build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "torchatlas needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)."; \
	  echo "Name another one: make PYTHON=python3.11 <target>"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

# torch first and by itself: whatever comes later finds it there and cannot choose another.
$(RUNTIME): $(CREATED) pyproject.toml constraints.txt
	@echo "Installing torchatlas into $(VENV) (a minute or two the first time)"
	@$(PIP_INSTALL) torch
	@$(PIP_INSTALL) hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

# --no-deps: torchvision would bring another torch, HolisticTraceAnalysis JupyterLab. They serve tests and benchmarks only.
$(DEV): $(RUNTIME)
	@echo "Installing the test tools into $(VENV)"
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@$(PIP_INSTALL) --no-deps torchvision HolisticTraceAnalysis
	@touch $@

$(DOCS): $(DEV)
	@echo "Installing what builds the documentation into $(VENV)"
	@$(PIP_INSTALL) --no-build-isolation --editable '.[docs]'
	@touch $@

# ci: the versions of package-lock.json, which pins by hash.
$(NODE_MODULES): viewer/package.json viewer/package-lock.json viewer/.npmrc
	@node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null && command -v npm >/dev/null || { \
	  echo "The viewer is built with Node 18 or newer and npm. On Debian and Ubuntu: apt-get install nodejs npm"; exit 1; }
	@echo "Installing the viewer's build tools into viewer/node_modules"
	@cd viewer && npm ci --loglevel=error
	@touch $@
