# Two commands are enough on a fresh machine: `make reproduce` and `make test`. Each sets up .venv when it is missing or out of date.
#
#   make reproduce   run the workflow on config.yaml, then write results/<experiment>/report.html
#   make sample      draw PROMPT="a large red circle on grass" with a few methods, from the trained weights or the finished run
#   make train       train the embedded world's models for hours and write models/embedded/ (for maintainers)
#   make test        run the tests
#   make figures     redraw the figures from stored results; never generates
#   make readme      write the results into README.md and docs/ (for maintainers)
#   make report      write results/<experiment>/report.html from stored results
#   make gpu-check   check and time decoding on a GPU (ten minutes; ARGS="--device cpu --tiny" tries it without one)
#   make lint        ruff, codespell, import-linter, pyright, snakefmt, snakemake --lint
#   make format      let ruff and snakefmt rewrite the files
#   make rulegraph   draw docs/rulegraph.svg (needs graphviz)
#   make resume      go on after a crash or a kill -9
#   make lock        remake requirements.lock.txt and environment.yml's pins from pyproject.toml (needs uv)
#   make clean       remove results/ and Snakemake's records; `make distclean` removes .venv too
#
# ARGS adds arguments to Snakemake:  make reproduce ARGS="--configfile experiments/quick.yaml"
# PYTHON names the interpreter:      make reproduce PYTHON=/opt/python3.12/bin/python3

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help arguments reproduce sample train test figures report readme rulegraph gpu-check lint format resume lock clean distclean

# First of all, unexpanded: make itself would run a $(shell ...) in it.
override PROMPT := $(value PROMPT)
export PROMPT

CORES ?= all
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# The stamp carries a checksum of what was asked for: a changed lock file means a new stamp, hence a new installation.
WANTED := $(shell cat requirements.lock.txt pyproject.toml | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/installed-$(WANTED)
# A profile in ARGS, such as that of a cluster, sets the cores.
SNAKEMAKE := $(BIN)/snakemake $(if $(findstring -profile,$(ARGS)),,--cores $(CORES))

# Nothing is downloaded from a model hub, and no pip setting of the user's account changes what is installed.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hash randomisation and user site-packages are two ways to make two machines differ.
export PYTHONNOUSERSITE := 1

help:
	@sed -n 's/^#   make/make/p' Makefile

# What ARGS mean to Snakemake: sets `results` to results/<experiment>, to nothing in a dry run; one sentence for a wrong one.
FIND_RESULTS = results=$$($(BIN)/python workflow/results_folder.py $(ARGS)) || exit 1

# Snakemake writes the report after a run, also if there was nothing to do. With a dry run it would write one of files that may be missing.
REPORT = $${results:+--report "$$results/report.html" --report-stylesheet workflow/report/stylesheet.css}
AFTER_RUN = $(REPORT) $${results:+--report-after-run}

arguments: $(STAMP)
	@$(FIND_RESULTS)

reproduce: $(STAMP)
	@$(FIND_RESULTS); trap 'echo "interrupted: run the same command again to resume" >&2; exit 130' INT; \
	set -x; $(SNAKEMAKE) $(AFTER_RUN) $(ARGS)

# The shell gets the prompt from the environment, as text, and never as a part of a command.
sample: $(STAMP)
	@$(BIN)/lantern sample $(ARGS) -- "$$PROMPT"

report: $(STAMP)
	@$(FIND_RESULTS); [ -z "$$results" ] || $(SNAKEMAKE) $(REPORT) $(ARGS)

train: arguments $(STAMP)
	$(SNAKEMAKE) --configfile experiments/embedded_training.yaml $(ARGS) --forcerun publish_weights -- publish_weights

readme: arguments $(STAMP)
	$(SNAKEMAKE) $(ARGS) --forcerun publish_readme -- publish_readme

# Three processes side by side; the outputs of the second and third are printed last. The third, a Slurm of one node, mostly waits.
# Jobs that are forks take GOMP_SPINCOUNT from here.
WORKFLOW_TESTS := $(filter-out %/test_families.py,$(wildcard tests/workflow/test_*.py))
CLUSTER_TESTS := tests/cluster
test: $(STAMP)
	@folder=$$(mktemp -d); trap 'rm -rf $$folder' EXIT; code=0; \
	export OMP_NUM_THREADS=1 GOMP_SPINCOUNT=2000 LANTERN_TINY_RUN=$$folder; \
	set -m; $(BIN)/python -m pytest $(WORKFLOW_TESTS) > $$folder/workflow.log 2>&1 & workflow=$$!; \
	$(BIN)/python -m pytest $(CLUSTER_TESTS) > $$folder/cluster.log 2>&1 & cluster=$$!; \
	$(BIN)/python -m pytest $(addprefix --ignore=,$(WORKFLOW_TESTS) $(CLUSTER_TESTS)) & others=$$!; set +m; \
	trap 'kill -- -$$others -$$workflow -$$cluster 2>/dev/null; wait; exit 130' INT TERM; \
	for process in $$others $$workflow $$cluster; do wait $$process || code=1; done; \
	cat $$folder/cluster.log $$folder/workflow.log; exit $$code

# Only the drawing rules are allowed, so whatever else is missing or out of date stops the command instead of being generated.
# Which those are depends on the config: a figure of an ablation that is off has no rule.
figures: arguments $(STAMP)
	@rules=$$($(SNAKEMAKE) --list-rules $(ARGS) | grep -o 'draw_[a-z_]*'); \
	$(SNAKEMAKE) --rerun-triggers mtime --allowed-rules $$rules figures --forcerun $$rules $(ARGS) -- figures

# The training overlay, because the default run trains no model and so has no rules that do.
rulegraph: $(STAMP)
	$(SNAKEMAKE) --configfile experiments/embedded_training.yaml --rulegraph dot | $(BIN)/python docs/rulegraph.py | dot -Tsvg > docs/rulegraph.svg

gpu-check: $(STAMP)
	$(BIN)/python benchmarks/gpu_check.py --output results/gpu_check $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint

format: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/rules

# Only if no run goes on in this folder. A job that ended after a kill -9 of Snakemake left files without a record of what they were made
# with, so that no later change of the config would make them again: they are made again now.
resume: arguments $(STAMP)
	$(SNAKEMAKE) --unlock $(ARGS)
	@$(FIND_RESULTS); \
	unrecorded=$$($(SNAKEMAKE) --summary $(ARGS) | awk -F'\t' '$$1 ~ "^results/" && $$2 != "-" && $$4 == "-" { print $$1 }'); \
	set -x; $(SNAKEMAKE) $${unrecorded:+--forcerun $$unrecorded} --rerun-incomplete $(AFTER_RUN) $(ARGS)

# --- installation --------------------------------------------------------------------------------------------------------------

# The newest Python from 3.11 on that really starts (a pyenv shim may exist and refuse).
define FIND_PYTHON
found=""; python=""; \
for candidate in $(PYTHON) $(if $(PYTHON),,python3.13 python3.12 python3.11 python3); do \
	version=$$("$$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	found="$$found $$candidate=$$version"; \
	if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then python="$$candidate"; break; fi; \
done; \
if [ -z "$$python" ]; then \
	echo "Lantern needs Python >= 3.11 (Snakemake 9 does) and found$${found:- none}: install one (Ubuntu 22.04: 'apt-get install python3.11 python3.11-venv'; Debian 12: 'apt-get install python3 python3-venv'; conda: 'conda env create -f environment.yml')." >&2; \
	exit 1; \
fi
endef

# A working .venv is kept and brought up to date. Debian splits ensurepip from python3 into python3-venv: without it, the system's pip (if any) fills an empty environment.
define MAKE_VENV
{ $(BIN)/python -m pip --version && $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; } >/dev/null 2>&1 \
|| "$$python" -m venv --clear $(VENV) >/dev/null 2>&1 \
|| { "$$python" -m venv --clear --without-pip $(VENV) && "$$python" -m pip --python $(BIN)/python install --quiet pip; } >/dev/null 2>&1 \
|| { rm -rf $(VENV); echo "$$python cannot make a virtual environment in $(CURDIR)/$(VENV): install its venv module ('apt-get install python3-venv', or python3.11-venv for python3.11) and run make again." >&2; exit 1; }
endef

$(STAMP): requirements.lock.txt pyproject.toml
	@$(FIND_PYTHON); \
	echo "Setting up $(VENV) (about 6 GB on disk, a few minutes)"; \
	$(MAKE_VENV); \
	$(BIN)/python -m pip install --require-hashes -r requirements.lock.txt; \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .; \
	rm -f $(VENV)/installed-*; \
	touch $(STAMP)

# `uv` resolves for all platforms at once; the header of the result names no host. Needs network. It keeps the versions that its
# output file names, hence the copy; ARGS="--upgrade-package torch" raises one, ARGS=--upgrade all.
lock:
	cp requirements.lock.txt .lock.tmp
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --extra pipeline --extra dev $(ARGS) pyproject.toml -o .lock.tmp
	{ echo '# Exact versions and hashes of everything a run, the tests and the linters need, for Python 3.11 to 3.13.' \
		'Made by `make lock`; do not edit by hand.'; cat .lock.tmp; } > requirements.lock.txt
	rm .lock.tmp
	@$(FIND_PYTHON); "$$python" .ci/pin_environment.py

clean:
	rm -rf results .snakemake

distclean: clean
	rm -rf $(VENV) *.egg-info
