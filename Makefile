# Two commands on a machine that has Python 3.11 and nothing else: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= quarl-demo
HOSTILE ?= quarl-hostile
STRESS := PYTHONPATH=tests:benchmarks:docs $(BIN)/python -m stress
# Every install reads the constraints: `torch==2.13.0` and the rest are pinned there and nowhere else.
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

# Measured by a study, or by a script in benchmarks/; the rows go into results/.
STUDIES := atari ptq low-bits spread d4pg qat-bits qat-bits-falling qat-bits-long $(addprefix qat-bits-finetuned-,ppo-CartPole \
	dqn-CartPole a2c-CartPole dqn-Acrobot ppo-LunarLander ddpg-Hopper ddpg) qat-repair mixed-precision-learning mixed-precision-updates \
	$(addprefix actorq-,staleness final-return throughput wide breakdown time-to-reward free-ratio) $(addprefix weight-decay-,0 1e-4 1e-3 1e-2)
SCRIPTS := latency actor-loop eval-speed fidelity parity qat-correctness qat-cost study-speed install-size verdicts gpu-actorq \
	cluster-simulation go1 off-path
BENCHES := $(addprefix bench-,$(STUDIES) auto boards cluster distill-pong kinds off-path-returns paper-ptq robust $(SCRIPTS))
# Trained agents in the zoo's layout, and other policies as files; jobs and minutes of a call.
AGENTS ?= ../shared/agents
WILD ?= ../shared/agents-wild
JOBS ?= 2
MINUTES ?= 1000000

.PHONY: demo test test-slow test-all coverage docs-test check format reference pages docs package boards runtimes fuzz hostile chaos kills $(BENCHES) clean

demo: $(VENV)/.core
	$(BIN)/quarl demo -o $(OUT)

# what starts no process and trains briefly, and a few that do (tests/tiers.py); what `test` leaves out, at TESTS; everything
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: WHICH := -m 'not slow or smoke'
test-slow: WHICH = -m 'slow and not smoke' $(TESTS) || [ $$? -eq 5 ] # pytest's code where TESTS has none
test test-slow test-all: $(VENV)/.dev
	$(PYTEST) $(WHICH)

coverage: $(VENV)/.dev
	$(PYTEST) -m 'not slow or smoke' --cov quarl --cov-report json:runs/coverage.json
	$(BIN)/python .ci/coverage.py runs/coverage.json

docs-test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 2 --durations 20 tests/docs

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_prose.py

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: $(VENV)/.dev
	$(BIN)/python docs/reference_pages.py

pages: $(VENV)/.dev
	$(BIN)/python docs/pages.py

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html --doctree-dir docs/_build/doctrees docs docs/_build/html
	@echo docs/_build/html/index.html

package: $(VENV)/.dev
	$(BIN)/python .ci/package.py

# seconds are measured, so one cell at a time
bench-mixed-precision-updates $(addprefix bench-actorq-,throughput wide breakdown time-to-reward free-ratio): JOBS := 1
$(STUDIES:%=bench-%): bench-%: $(VENV)/.dev
	$(call study,studies/$*.yml,$*)

bench-paper-ptq: $(VENV)/.dev
	$(call study,paper-ptq,paper-ptq)

# $(call study,FILE,NAME): goes on where it was stopped
define study
	$(BIN)/quarl study run $(1) --agents $(AGENTS) --jobs $(JOBS) --minutes $(MINUTES) -o runs/$(2)
	$(BIN)/quarl study report runs/$(2)
	$(BIN)/python benchmarks/results.py runs/$(2) --command 'make bench-$(2)'
endef

# the agents that results/ptq shows to be non-inferior at 8 bits; other fresh episodes, of seed 1000, judge the choice
AUTO := $(addprefix sb3/,a2c/CartPole-v1 a2c/HalfCheetahBulletEnv-v0 ddpg/MountainCarContinuous-v0 dqn/Acrobot-v1 \
	dqn/CartPole-v1 dqn/MountainCar-v0 ppo/CartPole-v1 ppo/HalfCheetah-v3 ppo/HalfCheetahBulletEnv-v0 \
	ppo/LunarLander-v2 ppo/MountainCarContinuous-v0) $(addprefix sb2/,a2c/CartPole-v1 \
	ddpg/HalfCheetahBulletEnv-v0 ddpg/MountainCarContinuous-v0 dqn/CartPole-v1)
bench-auto: $(VENV)/.dev
	mkdir -p runs/auto
	for agent in $(AUTO); do \
		set -- $$(echo $$agent | tr / ' '); out=runs/auto/$$1-$$2-$$3; test -f $$out-chosen.json && continue; \
		$(BIN)/quarl ptq $$2 $$3 -f $(AGENTS)/$$1 --auto --max-loss 2% -o $$out --json $$out.json || continue; \
		$(BIN)/quarl eval $$out/fp32.safetensors --seed 1000 --json $$out-fp32.json; \
		chosen=$$(test -f $$out/mixed.safetensors && echo mixed || echo int8); \
		$(BIN)/quarl eval $$out/$$chosen.safetensors --seed 1000 --json $$out-chosen.json; \
	done
	$(BIN)/python benchmarks/results.py runs/auto --command 'make bench-auto'

# tasks without velocities, for agents with a memory
NOVEL := CartPoleNoVel-v1 PendulumNoVel-v1
# one agent of each kind that QuaRL reads and does not train, as RL Zoo trains it; MODULE:ID is a task that a module registers
KINDS := maskableppo/kinds:MaskedCliff-v0 ppo/kinds:Identity-v0 qrdqn/CartPole-v1 ars/CartPole-v1 trpo/CartPole-v1 \
	crossq/Pendulum-v1 tqc/Pendulum-v1 sac/FetchReach-v4 $(NOVEL:%=ppo_lstm/rl_zoo3.import_envs:%)
# levels of disturbances, fixed before any was run
NOISE_DELAY := --levels noise:0.1,0.3,0.6,1 delay:1,2,4
DYNAMICS := push:0.5,1,2 mass:0.8,1.2 friction:0.5,2 damping:0.5,2 gravity:0.9,1.1
bench-robust: export PYTHONPATH = examples/go1
bench-robust: $(VENV)/.dev
	$(BIN)/quarl robust $(AGENTS)/sb3/dqn/Acrobot-v1_1 $(NOISE_DELAY) LINK_MASS_2:0.5,2 --jobs $(JOBS) -o runs/robust-acrobot
	$(BIN)/quarl robust $(AGENTS)/sb3/ppo/LunarLander-v2_1 $(NOISE_DELAY) gravity:0.8,1.1 --jobs $(JOBS) -o runs/robust-lunarlander
	$(BIN)/quarl robust $(AGENTS)/sb3/a2c/Hopper-v3_1 $(NOISE_DELAY) $(DYNAMICS) control-hz:62.5,83.3,250 --jobs $(JOBS) -o runs/robust-hopper
	$(BIN)/quarl robust $(AGENTS)/sb3/a2c/HalfCheetahBulletEnv-v0_1 $(NOISE_DELAY) push:0.5,1,2 --jobs $(JOBS) -o runs/robust-halfcheetahbullet
	$(BIN)/quarl robust $(AGENTS)/sb3/ppo/HalfCheetah-v3_1 $(NOISE_DELAY) $(DYNAMICS) control-hz:10,14.3,33.3 --jobs $(JOBS) -o runs/robust-halfcheetah
	$(BIN)/quarl robust $(WILD)/onnx/playground-go1.onnx --env go1_joystick:Go1Joystick-v0 $(NOISE_DELAY) $(DYNAMICS) control-hz:31.25,41.7,83.3 --jobs $(JOBS) -o runs/robust-go1
	for run in acrobot lunarlander hopper halfcheetahbullet halfcheetah go1; do \
		$(BIN)/python benchmarks/results.py runs/robust-$$run --command 'make bench-robust'; \
	done

bench-off-path-returns: $(VENV)/.dev
	mkdir -p runs/off-path-returns
	for agent in $(patsubst $(AGENTS)/%,%,$(wildcard $(AGENTS)/sb3/*/*_1) $(basename $(wildcard $(AGENTS)/sb2/*/*.pkl))); do \
		set -- $$(echo $${agent%_1} | tr / ' '); for envelope in path env; do \
			out=runs/off-path-returns/$$1-$$2-$$3.$$envelope; test -f $$out.json && continue; \
			$(BIN)/quarl ptq $$2 $$3 -f $(AGENTS)/$$1 --bits fp32 8 4 2 --mode static --envelope $$envelope --episodes 50 -o $$out --json $$out.json; \
		done; \
	done
	$(BIN)/python benchmarks/results.py runs/off-path-returns --command 'make bench-off-path-returns'

bench-kinds: export PYTHONPATH = benchmarks
bench-kinds: $(VENV)/.dev
	$(BIN)/pip install -q -c constraints.txt -e '.[robotics]'
	$(BIN)/python benchmarks/kinds.py runs/kinds/agents
	for kind in $(KINDS); do \
		set -- $$(echo $$kind | tr / ' '); env=$${2#*:}; out=runs/kinds/$$1-$$env; test -f $$out.json && continue; \
		test -d runs/kinds/agents/$$1/$${env}_1 || $(BIN)/python -m rl_zoo3.train --algo $$1 --env $$env -f runs/kinds/agents \
			--gym-packages kinds --seed 0 --eval-freq -1 --num-threads 1 \
			$$(grep -q "^$$env:" benchmarks/kinds.yml && echo --conf-file benchmarks/kinds.yml); \
		$(BIN)/quarl ptq $$1 $$env -f runs/kinds/agents --env $$2 --bits fp32 8 6 4 -o $$out --json $$out.json; \
	done
	for env in $(NOVEL); do \
		set -- ppo_lstm $$env -f runs/kinds/agents --env rl_zoo3.import_envs:$$env --mode static --episodes auto; out=runs/kinds/ppo_lstm-$$env; \
		test -f $$out-static.json || $(BIN)/quarl ptq $$@ --bits fp32 8 6 4 -o $$out-static --json $$out-static.json; \
		test -f $$out-distilled.json || $(BIN)/quarl distill $$@ --bits 4 -o $$out-distilled --json $$out-distilled.json; \
	done
	$(BIN)/python benchmarks/results.py runs/kinds --command 'make bench-kinds'

# an agent that plays from pixels, trained elsewhere
PONG ?= runs/pong/model.zip
bench-distill-pong: $(VENV)/.dev
	$(BIN)/quarl distill $(PONG) --env PongNoFrameskip-v4 --bits 4 2 --validation 10 --episodes 20 -o runs/distill-pong
	$(BIN)/python benchmarks/results.py runs/distill-pong --command 'make bench-distill-pong'

# two raylets on this machine, and the parts that bench-cluster-simulation makes more machines of
bench-cluster: $(VENV)/.dev
	$(STRESS).cluster

$(SCRIPTS:%=bench-%): bench-%: $(VENV)/.dev
	$(BIN)/python benchmarks/$(subst -,_,$*).py

fuzz: $(VENV)/.dev
	$(STRESS).fuzz.campaign

hostile: $(VENV)/.dev
	$(STRESS).hostile.corpus $(HOSTILE) --load

# exported agents, held to the reference: bits and instructions as C, what other runtimes give
boards: $(VENV)/.dev
	$(STRESS).boards $(AGENTS) $(wildcard $(WILD)) --times --keep
	$(STRESS).float_c $(AGENTS) $(wildcard $(WILD))

# instructions of one layer, and of CMSIS-NN's if CMSIS is a checkout of it
bench-boards: $(VENV)/.dev
	$(STRESS).boards --only layers/ --keep
	$(if $(CMSIS),$(STRESS).cmsis_nn $(CMSIS))

runtimes: $(VENV)/.dev
	$(STRESS).runtimes $(AGENTS) --episodes 0 --keep

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
	$(INSTALL) --editable '.[train]'
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo 'installing into $(VENV); the first time takes a few minutes'
	$(INSTALL) --editable '.[atari,box2d,cluster,dev,dm-control,energy,hub,mujoco,pybullet]'
	touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) build dist docs/_build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
