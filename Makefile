# The two commands of the README, `make demo` and `make test`, work on a fresh machine: all that
# they need is python3 (>= 3.10), and each makes .venv first.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help .venv demo test matrix faults lint bench bench-guard bench-halo bench-rings bench-memory

help: ## Say what can be made
	@awk -F ':.*## ' '/^[.a-z-]+:.*## / { printf "make %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: .venv/installed ## Make the virtual environment, or bring it up to date

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv ## Train the same model in Lightning, Fabric and torchrun (RANKS=2, PRECISION=64)
	$(BIN)/python -m examples.demo

test: .venv ## Run the tests (ARGS="-k ring" runs some of them)
	$(BIN)/python -m pytest $(ARGS)

.venv/matrix: .venv/installed
	$(BIN)/python -m pip install -c constraints.txt -e '.[matrix]'
	touch $@

# MPI apart: Lightning asks mpi4py for ranks, which starts MPI in every process that has a Trainer.
# All else is that of .venv, found through a .pth file.
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
.venv-mpi/installed: .venv/installed
	$(PYTHON) -m venv --without-pip .venv-mpi
	$(BIN)/python -c '$(PURELIB)' > "$$(.venv-mpi/bin/python -c '$(PURELIB)')/dependencies.pth"
	$(BIN)/python -m pip --python .venv-mpi/bin/python install -c constraints.txt -e '.[mpi]'
	touch $@

matrix: .venv .venv/matrix .venv-mpi/installed ## Run every cell of the README's runtime matrix, slow ones too (ARGS="-k elastic": some of them)
	MPI_BIN=$(CURDIR)/.venv-mpi/bin $(BIN)/python -m pytest tests/matrix -m "matrix or not matrix" $(ARGS)

faults: .venv ## Play every fault that is looked after, and print what came of it (ARGS=SIGKILL: some of them)
	$(BIN)/python -m tests.faults $(ARGS)

lint: .venv ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

bench: .venv ## Compare the cost of an exchange with the function that people copy
	$(BIN)/python -m benchmarks.exchange

bench-guard: .venv ## Measure what the guard adds to bare calls of the process group
	$(BIN)/python -m benchmarks.guard

bench-halo: .venv ## Compare halos into a padded array with gathering the slabs
	$(BIN)/python -m benchmarks.halo

bench-rings: .venv ## Compare ring loops with those around the copied function
	$(BIN)/python -m benchmarks.rings

bench-memory: .venv ## Count what autograd keeps of ring loops, for 1 to 8 ranks
	$(BIN)/python -m benchmarks.ring_memory
