# make demo, make test: all they need is Python 3.11 or newer with venv, and make itself.
# ARGS goes to the command behind the target: make demo ARGS=--for=20s, make test ARGS="-k roster -x".

PYTHON ?= python3
ARGS ?=
# Each worker of the tests has servers of its own, unless the environment names some.
WORKERS ?= $(if $(DATABASE_URL)$(KAFKA_BOOTSTRAP_SERVERS),0,2)
BIN := $(CURDIR)/.venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test bench lint lock clean environment

help:
	@echo 'make demo   the whole service on its own PostgreSQL and Kafka, with a simulated crm (Ctrl-C stops it)'
	@echo 'make test   the whole test suite, on servers of the same kind'
	@echo 'make bench  how many times faster a batch is than one transaction an event'
	@echo 'make lint   format, lint, types, import contracts, migrations'
	@echo 'make lock   bring the locks up to pyproject.toml (needs uv; ARGS=--upgrade takes newer versions)'
	@echo 'make clean  remove the virtual environment and every cache in this folder'

# Tied to make itself: if it is killed, the demo ends, and takes its servers with it.
demo: environment
	@exec "$(BIN)/python" demo/servers/tied_exec.py $$PPID 15 - - "$(BIN)/python" manage.py demo $(ARGS)

test: environment
	@"$(BIN)/python" -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

bench: environment
	@"$(BIN)/python" -m tests.bench.roster_throughput

lint: export MESSENGER_ENVIRONMENT = development
lint: environment
	"$(BIN)/ruff" format --check
	"$(BIN)/ruff" check
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"
	"$(BIN)/python" manage.py makemigrations --check --dry-run

environment:
	@command -v $(PYTHON) >/dev/null || { echo 'Python is not here ($(PYTHON)): install 3.11 or newer.' >&2; exit 1; }
	@$(PYTHON) demo/environment.py

COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet $(ARGS)
lock:
	@command -v uv >/dev/null || { echo 'uv is not here: install it (pip install uv).' >&2; exit 1; }
	$(COMPILE) pyproject.toml -o requirements.lock
	$(COMPILE) pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
