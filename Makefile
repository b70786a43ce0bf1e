# Two commands on a fresh machine: `make run` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN_DIR ?= runs/demo
JOBS ?= 1

.PHONY: help setup run test test-all test-seeds test-long test-deploy fuzz lint format types contract pytest coverage wheel wheel-extras dist bench mutation paper paper-quick results docs docs-output clean

help:
	@echo "make run      set up, train on the embedded data, say where the results are"
	@echo "make test     set up, then lint, types, import contract, all tests, wheel"
	@echo "make test-all the same with every page, browser and fault of the audit; half an hour"
	@echo "make test-seeds   the tests with other random numbers (SEARCH=3 times)"
	@echo "make coverage all tests, and what none of them reaches"
	@echo "make test-long    10,000 schedules of crashes and losses, on simulated machines"
	@echo "make fuzz         look for bytes that break a reader of messages, ledgers or run folders"
	@echo "make test-deploy  the same federation on real Flower processes, up to twenty clients; up to an hour"
	@echo "make lint     ruff, our format, the budgets of lines      make format   rewrite in our format"
	@echo "make dist     what a release uploads, built and checked (TAG=v0.3.0)"
	@echo "make bench    speed, beside other libraries; five minutes (LONG=1: all of it, and regret)"
	@echo "make mutation  how many small faults the tests notice; hours (JOBS=16)"
	@echo "make paper    the paper's Table 2 and figures      make paper-quick   a corner of them"
	@echo "make results  what the preset 'recommended' and its planner come to; hours (JOBS=16)"
	@echo "make docs     build the documentation      make docs-output   paste what commands print"
	@echo "make clean    remove the environment and everything that was built"

setup: $(VENV)/.ready

# What a run and its report need, and nothing else. Remade from nothing when what it is made of
# changes: no left-overs, no surprises.
$(VENV)/.run: pyproject.toml constraints.txt
	@echo "setting up $(VENV) for the first run (once; about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[sim,report]'
	@touch $@

# The other extras and the tools of development, added to the same environment.
$(VENV)/.ready: $(VENV)/.run
	@echo "adding the tools of development to $(VENV) (once; a minute or two)"
	@$(PIP) install --quiet --quiet --upgrade --constraint constraints.txt pip
	@$(PIP) install --quiet --quiet --constraint constraints.txt --editable '.[all]' --group dev
	@touch $@

run: $(VENV)/.run
	@$(BIN)/bgtplanner run --out $(RUN_DIR) --overwrite

test: lint types contract pytest wheel

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/lines.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

contract: setup
	$(BIN)/lint-imports --no-logo

# A file is one worker's, since its tests share what they compile; long files first.
PYTEST = $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder
pytest: setup
	$(PYTEST)

# Every page and notebook executed, browsers, every fault of the audit, the paper on real data.
test-all: lint types contract wheel
	$(PYTEST) -m 'not deploy'

# Do the tests hold for other random numbers, too? Other seeds for NumPy and JAX, examples, keys.
SEARCH ?= 3
test-seeds: setup
	for turn in $$(seq $(SEARCH)); do \
	  TURN=$$turn $(PYTEST) -m 'not deploy' --hypothesis-profile search || exit 1; done

# The same, with the lines and branches that no test reaches: two fifths slower.
coverage: setup
	$(PYTEST) --cov --cov-report=term

# The same federations under 10,000 schedules of stops, losses and delays; about twenty minutes.
test-long: setup
	BGTPLANNER_SCHEDULES=10000 $(BIN)/pytest -n 2 tests/games/test_schedules.py

$(VENV)/.fuzz: $(VENV)/.ready
	@$(PIP) install --quiet --quiet --constraint constraints.txt --group fuzz
	@touch $@

# Bytes that reach new code, for every reader of foreign bytes; FUZZ_SECONDS for each of them.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.fuzz
	cd tests && for target in $$(ls fuzz/corpus); do \
	  ../$(BIN)/python -m fuzz $$target $(FUZZ_SECONDS) || exit 1; done

$(VENV)/.deploy: $(VENV)/.ready
	@$(PIP) install --quiet --quiet --constraint constraints.txt --group deploy
	@touch $@

# Starts a SuperLink and SuperNodes on this machine, kills them, and runs docs/deployment.md.
test-deploy: $(VENV)/.deploy
	$(BIN)/pytest -m deploy tests/flower

# The wheel, in an environment that has the base dependencies and nothing else.
SOURCE ?= .
wheel: setup
	rm -rf build/wheel && mkdir -p build/wheel
	$(PIP) wheel --quiet --no-deps --wheel-dir build/wheel $(SOURCE)
	$(PYTHON) -m venv --clear build/bare
	build/bare/bin/python -m pip --disable-pip-version-check install --quiet --quiet \
	  --constraint constraints.txt build/wheel/*.whl
	build/bare/bin/python tests/bare_install.py

# The wheel with its extras on another Python: make wheel-extras PYTHON=python3.13 EXTRAS=all
# CONSTRAINTS= installs the newest of everything, as pip and pipx do by default.
EXTRAS ?= all
CONSTRAINTS ?= --constraint constraints.txt
wheel-extras:
	rm -rf build/wheel && mkdir -p build/wheel
	$(PYTHON) -m venv --clear build/extras
	build/extras/bin/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	build/extras/bin/python -m pip --disable-pip-version-check install --quiet --quiet \
	  $(CONSTRAINTS) "$$(ls build/wheel/*.whl)[$(EXTRAS)]"
	build/extras/bin/bgtplanner --version
	build/extras/bin/python -m bgtplanner run --rounds 3 --out build/extras/run

# What a release uploads: the source, and the wheel that is built from it and checked as above.
# TAG=v0.3.0 refuses if that is not the version.
TAG ?=
dist: setup
	rm -rf dist
	$(BIN)/python -m hatchling build --target sdist --directory $(CURDIR)/dist
	$(MAKE) wheel SOURCE="$$(ls dist/*.tar.gz)"
	cp build/wheel/*.whl dist
	@[ -z "$(TAG)" ] || ls "dist/bgtplanner-$(TAG:v%=%)-py3-none-any.whl"

$(VENV)/.bench: $(VENV)/.ready
	@$(PIP) install --quiet --quiet --constraint constraints.txt --group bench
	@touch $@

# Other libraries and the quick questions, under five minutes; LONG=1 for everything. All are run even
# if a target was missed. Regret is kept from run to run in benchmarks/results; the first time takes
# about half an hour on one core (make bench LONG=1 JOBS=8 for eight). Writes docs/benchmarks.md.
LONG ?=
FORM = $(if $(LONG),--long)
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.peers $(FORM); peers=$$?; \
	$(BIN)/python -m benchmarks.speed $(FORM); speed=$$?; \
	$(if $(LONG),OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.regret --jobs $(JOBS) &&) \
	[ $$peers -eq 0 ] && exit $$speed

# One small fault at a time, a sample of every package: do the tests notice?
# make mutation FAULTS="--sample 50 --packages privacy,door"
FAULTS ?=
mutation: setup
	$(BIN)/python -m benchmarks.mutation --jobs $(JOBS) $(FAULTS)

# The paper's Table 2, the other readings of its baselines and its three figures, then the tables of
# docs/paper.md. Says first how long it will take; goes on where it was. Needs the three data sets.
# make paper JOBS=16 SEEDS=0-1 DATASETS=ml-100k: sixteen runs at a time, a part of it (into build).
SEEDS ?= 0-4
DATASETS ?= filmtrust,ml-100k,ml-1m
PAPER = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.paper --run --jobs $(JOBS)
paper: setup
	$(PAPER) --seeds $(SEEDS) --datasets $(DATASETS)

# A corner of each: one data set, one seed; into build/paper-quick.md.
paper-quick: setup
	$(PAPER) --quick

# What the preset `recommended` comes to, what its planner is worth, what each part adds; writes
# docs/results.md. Says first how long it will take; goes on where it was. Needs the three data sets.
results: setup
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.results --run --jobs $(JOBS)

# Warnings are errors; the notebooks are executed. `make test-all` does it, too.
docs: setup
	$(BIN)/sphinx-build -q -E -W --keep-going -b html docs build/docs
	@echo "the documentation is in build/docs/index.html"

# What commands print, into the pages that show it; a minute or two.
docs-output: setup
	cd docs && ../$(BIN)/python -m writing.output

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf .coverage .coverage.* .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
