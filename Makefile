# Two commands on a fresh machine: `make run` and `make test`. Both make .venv first; a second call reuses it.
# PYTHON picks the interpreter (3.11 or newer). TORCH_INDEX may name a pip index with CPU builds of torch.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
# What `make bench` runs; planted and explore make pages of docs/results and take a file (see their --help).
BENCHES := loop world fast tune fuzz votes
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# What CI has no time for; docs/testing.md says of each when it was last run. Set them to look further.
FUZZ_SECONDS := 600
FUZZ_SEED := 0
BUG_SECONDS := 60

.PHONY: help run test test-all lint unit long campaign planted explore bench bench-long clean

help:
	@echo "make run    install the simulator (no torch), simulate the shipped trace: a table, a picture and a page"
	@echo "make test   install everything, then ruff, mypy --strict and all tests"
	@echo "make test-all  that, and the long things: more examples, campaigns, planted bugs, exploration (docs/testing.md)"
	@echo "make bench  install everything, then the benchmarks of bench/"
	@echo "make bench-long  what a run costs up to 100,000 requests and 64 stages: about an hour"
	@echo "make clean  remove $(VENV) and the tools' caches; runs/ stays"

run: $(VENV)/.simulator
	$(BIN)/ppsim run mooncake
	$(BIN)/ppsim plot latest
	$(BIN)/ppsim report latest

test: lint unit

# Hours on two cores; each line is a target of its own.
test-all: test long campaign planted explore bench bench-long

# Ten times the examples of the pipelines of hand-driven ranks, and the tests that `make test` leaves out by their mark.
long: $(VENV)/.everything
	PPSIM_EXAMPLES=10 $(BIN)/python -m pytest -n 2 --timeout 3600 tests/interactions
	PPSIM_LONG=1 $(BIN)/python -m pytest -n 2 -m long

campaign: $(VENV)/.everything
	$(BIN)/ppsim fuzz --profile all --seed $(FUZZ_SEED) --budget $(FUZZ_SECONDS) --jobs 2

planted: $(VENV)/.everything
	$(BIN)/ppsim bugs --all --budget $(BUG_SECONDS)

# The page as it would be today is runs/explore.md; docs/results/explore.md is left alone.
explore: $(VENV)/.everything
	@mkdir -p runs && rm -f runs/explore.jsonl
	$(BIN)/python bench/bench_explore.py --measure runs/explore.jsonl
	$(BIN)/python bench/bench_explore.py runs/explore.jsonl > runs/explore.md

lint: $(VENV)/.everything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

unit: $(VENV)/.everything
	$(BIN)/python -m pytest -n 2

bench: $(VENV)/.everything
	@for name in $(BENCHES); do echo "== $$name"; $(BIN)/python "bench/bench_$$name.py" || exit 1; done

# The page as it would be today is runs/scaling.md; docs/results/scaling.md is left alone. What runs/scaling.jsonl has is
# not measured again: an interrupted run goes on.
bench-long: $(VENV)/.everything
	@mkdir -p runs
	$(BIN)/python bench/bench_scaling.py --measure runs/scaling.jsonl --long
	$(BIN)/python bench/bench_scaling.py runs/scaling.jsonl --picture runs/scaling.png > runs/scaling.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "ppsim needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "no virtual environment without the venv module; on Debian: apt install python3-venv"; exit 2; }
	@touch $@

$(VENV)/.simulator: $(VENV)/.made pyproject.toml
	$(PIP) -e '.[report]'
	@touch $@

# The pin comes first: the CPU build is enough, and parity with transformers is tested to the token.
$(VENV)/.everything: $(VENV)/.made pyproject.toml
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) -e '.[executor,dev]'
	@touch $@ $(VENV)/.simulator
