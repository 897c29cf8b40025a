# Two commands on a machine that has Python 3.11 and nothing else: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= quarl-demo
# Every install reads the constraints: `torch==2.13.0` and the rest are pinned there and nowhere else.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check format fuzz chaos bench-latency bench-eval-speed bench-ptq bench-fidelity bench-parity \
	bench-d4pg bench-actorq-throughput bench-actorq-time-to-reward bench-actorq-breakdown bench-actorq-staleness \
	bench-actorq-final-return bench-qat-correctness bench-qat-cost bench-qat-bits bench-qat-repair bench-atari \
	bench-mixed-precision bench-weight-decay bench-studies bench-study-kills bench-study-speed clean

demo: $(VENV)/.core
	$(BIN)/quarl demo -o $(OUT)

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz bench-latency bench-eval-speed bench-ptq bench-fidelity bench-parity \
bench-d4pg bench-actorq-throughput bench-actorq-time-to-reward bench-actorq-breakdown bench-actorq-staleness \
bench-actorq-final-return bench-qat-correctness bench-qat-cost bench-qat-bits bench-qat-repair bench-atari \
bench-mixed-precision bench-weight-decay bench-studies bench-study-kills bench-study-speed: $(VENV)/.dev
	$(BIN)/python benchmarks/$(subst -,_,$(@:bench-%=%)).py

chaos: $(VENV)/.dev
	$(BIN)/python benchmarks/chaos_checkpoint.py
	$(BIN)/python benchmarks/chaos.py

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
