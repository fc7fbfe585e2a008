# Every target sets up what it needs: a Python of at least 3.11 is enough to start.
# What is built lies in .venv/ and _build/, both ignored by git.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
EXTRAS ?= book,test
CONSTRAINTS ?= constraints.txt

# The first interpreter that is new enough; PYTHON=... overrides it.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$python"; break; }; done)

TEST_ARGS ?= -n 2 --dist worksteal
SUITE ?= glyphs8
DEVICE ?= cpu
ONLY  ?=
comma := ,
SITE  := _build/html

unexport PYTHONDONTWRITEBYTECODE # or every process would compile all modules again

.DEFAULT_GOAL := help
.PHONY: help setup test faults bare oldest lint notebooks executed compared nbval alternate book site site-test demo bench table1 constraints clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install everything (the other targets do it too)

$(READY): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "mergelib needs Python 3.11 or newer, and none was found." \
		"Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check \
		$(addprefix -c ,$(CONSTRAINTS)) -e ".[$(EXTRAS)]"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # some packages hold templates
	@touch $@

test: $(READY) ## run the tests of the package, the notebooks' pairing and the tools
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TEST_ARGS) --ignore=tests/site tests

faults: $(READY) ## the long suites of kills, races and damaged files (MERGELIB_FAULTS=0.1: a tenth of them)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults tests/library/faults

bare: $(READY) ## run the library's tests against the built wheel with what it requires and nothing more
	rm -rf .venv-bare build
	$(BIN)/python -m venv .venv-bare
	$(BIN)/python tools/bare.py .venv-bare
	.venv-bare/bin/pip wheel -q --disable-pip-version-check --no-deps -w .venv-bare/dist .
	.venv-bare/bin/pip install -q --disable-pip-version-check --no-index .venv-bare/dist/*.whl
	OMP_NUM_THREADS=1 .venv-bare/bin/python -P -m pytest $(TEST_ARGS) --first-cases tests/library

oldest: ## run the tests with the oldest versions that pyproject.toml allows
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

lint: $(READY) ## check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

notebooks: $(READY) ## execute the notebooks and refresh the committed twins (ONLY="04-low-rank-merging 10-cart")
	$(BIN)/python tools/execute.py --write $(ONLY)

executed: $(READY) ## execute the notebooks into _build/executed, changing nothing else
	$(BIN)/python tools/execute.py $(ONLY)

compared: $(READY) ## the same, and fail where a checked cell is not as committed
	$(BIN)/python tools/execute.py --compare $(ONLY)

nbval: $(READY) ## re-run committed notebooks as tests, with nbval (ONLY="04-low-rank-merging 10-cart")
	TQDM_DISABLE=1 OMP_NUM_THREADS=2 $(BIN)/python -m pytest --nbval-lax --nbval-current-env \
		$(if $(ONLY),$(ONLY:%=notebooks/%.ipynb),notebooks)

alternate: $(READY) ## run the notebooks that depend on it with another seed at the smallest profile
	$(BIN)/python tools/execute.py --output _build/alternate -p SEED 1 -p PROFILE smoke

book: executed ## execute every notebook and build the site into _build/html
	$(MAKE) site

site: $(READY) ## build the site from what lies in _build/executed
	$(BIN)/python tools/stage.py
	$(BIN)/jupyter-book build _build/stage --path-output _build/sphinx --all -W -n --keep-going
	rm -rf $(SITE) && mv _build/sphinx/_build/html $(SITE)
	@echo "The book: $(SITE)/index.html"

site-test: $(READY) ## check the built site in Chromium
	$(BIN)/python -m pytest -n 2 tests/site

demo: $(READY) ## fine-tune, merge and compare eight experts (SUITE=glyphs8)
	$(BIN)/mergebook demo --suite $(SUITE)

bench: $(READY) ## time rules, procedures, CoGraM and stacked networks, and measure memory
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.procedures
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.cogram
	$(BIN)/python -m benchmarks.stacking

# Studies, and entries of mergebook/results.toml whose settings are measured on another suite.
TABLE_1 = baselines adaptation fresh_heads
TABLE_1 += glyphs8-since-ridge glyphs8-boosting glyphs8-svc glyphs8-ace glyphs8-larv
TABLE_1 += glyphs8-esm glyphs8-symerge glyphs8-fresh_heads-since

table1: $(READY) ## CART's Table 1 with CLIP's towers (a network and a GPU; DEVICE=cuda)
	$(BIN)/python -m pip install -q --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS)) -e ".[hub]"
	for model in clip-vit-base-patch32 clip-vit-large-patch14; do for suite in clip8 clip14 clip20; do \
		for study in $(TABLE_1); do \
		$(BIN)/mergebook measure $$study --suite $$suite --model $$model --seeds 1 --device $(DEVICE) \
			-o results/$$suite-$${study#glyphs8-}-$$model.json || exit 1; \
	done; done; done

constraints: $(READY) ## write the versions in .venv to constraints.txt, and the oldest beside it
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check uv
	$(BIN)/uv pip compile -q --resolution lowest-direct --python-version 3.11 --no-annotate \
		--no-header pyproject.toml $(addprefix --extra ,$(subst $(comma), ,$(EXTRAS))) -o constraints-oldest.txt

clean: ## remove .venv and everything built
	rm -rf $(VENV) .venv-oldest _build .pytest_cache .hypothesis .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
