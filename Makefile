# Three commands matter: `make demo`, `make demo-ant` and `make test`. Each sets up its own virtual environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help own-venv install demo demo-ant play test check pytest long faults lint docs dist bench clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

own-venv:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -P scripts/check_venv.py; fi

$(STAMP): pyproject.toml constraints.txt | own-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "iel needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,sim,tensorboard,kitchen,minari,onnx,parquet,ros,video,serve,hub]"
	@touch $@

install: $(STAMP)  ## create .venv and install iel with everything the tests need

demo: $(STAMP)  ## collect data, train, plan, evaluate and draw (84 s of processor time)
	$(BIN)/iel demo

demo-ant: $(STAMP)  ## the same with an ant in a large maze, and a film of it (at most five minutes on two quiet cores)
	$(BIN)/iel demo --ant

play: $(STAMP)  ## open the playground on the newest demo's run
	@run=$$(ls -dt runs/demo-*/ 2>/dev/null | head -n 1); [ -n "$$run" ] || { echo "run \`make demo\` first"; exit 2; }; \
	  $(BIN)/iel play "$$run"

test: $(STAMP)  ## lint, type-check and run the tests
	@$(MAKE) --no-print-directory -j2 check pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

pytest: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 20

long: $(STAMP)  ## the tests that take minutes each
	IEL_LONG=1 $(BIN)/python -m pytest -m long -n 2

faults: $(STAMP)  ## the long fault suite: kills, flipped bits, full disks (up to an hour and a half)
	IEL_FAULTS=1 $(BIN)/python -m pytest tests/faults tests/serving -m faults

lint: $(STAMP)  ## format and lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation site in build/site, without warnings and dead links
	$(BIN)/sphinx-build -W --keep-going -q -E -d build/doctrees -c docs . build/site
	@echo "open build/site/index.html"

dist: $(STAMP)  ## build wheel and source archive, and try them in clean environments of every Python found here
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.8,<1"
	$(BIN)/python scripts/dist.py

bench: $(STAMP)  ## measure training and planning speed (ratios against a baseline in the same run)
	$(BIN)/iel bench training
	$(BIN)/iel bench planning --quick

clean:  ## remove the virtual environment and caches (never runs/ or data)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
