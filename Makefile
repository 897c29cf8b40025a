# Two commands on a machine that has Python 3.11 and nothing else: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= quarl-demo
HOSTILE ?= quarl-hostile
STRESS := PYTHONPATH=tests $(BIN)/python -m stress
# Every install reads the constraints: `torch==2.13.0` and the rest are pinned there and nowhere else.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check format fuzz hostile chaos kills bench-latency bench-eval-speed bench-ptq bench-fidelity bench-parity \
	bench-d4pg bench-actorq-throughput bench-actorq-time-to-reward bench-actorq-breakdown bench-actorq-staleness \
	bench-actorq-final-return bench-qat-correctness bench-qat-cost bench-qat-bits bench-qat-repair bench-atari \
	bench-mixed-precision bench-weight-decay bench-studies bench-study-speed clean

demo: $(VENV)/.core
	$(BIN)/quarl demo -o $(OUT)

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-latency bench-eval-speed bench-ptq bench-fidelity bench-parity \
bench-d4pg bench-actorq-throughput bench-actorq-time-to-reward bench-actorq-breakdown bench-actorq-staleness \
bench-actorq-final-return bench-qat-correctness bench-qat-cost bench-qat-bits bench-qat-repair bench-atari \
bench-mixed-precision bench-weight-decay bench-studies bench-study-speed: $(VENV)/.dev
	$(BIN)/python benchmarks/$(subst -,_,$(@:bench-%=%)).py

fuzz: $(VENV)/.dev
	$(STRESS).fuzz.campaign

hostile: $(VENV)/.dev
	$(STRESS).hostile.corpus $(HOSTILE) --load

chaos: $(VENV)/.dev
	$(STRESS).chaos.checkpoint
	$(STRESS).chaos.campaign

kills: $(VENV)/.dev
	$(STRESS).kills.study

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "quarl needs Python 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	@echo 'installing into $(VENV); the first time takes a few minutes'
	$(INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo 'installing into $(VENV); the first time takes a few minutes'
	$(INSTALL) --editable '.[atari,box2d,dev,dm-control,energy,hub,mujoco,pybullet]'
	touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
