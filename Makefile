# Each target sets up what it needs in .venv-* folders of this checkout. Needed beforehand: make, bash, Python 3.10 or newer.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
export PYTHON
PIP := -m pip install --quiet --disable-pip-version-check --no-input
MS := .venv-mindspore/bin/python
NP := .venv-numpy2/bin/python
# checked in full: what users and other tools call
STRICT := bcvm/__init__.py bcvm/__main__.py bcvm/config.py bcvm/errors.py bcvm/bytecode bcvm/shapes bcvm/tools bcvm/vm/function.py bcvm/vm/cache.py bcvm/vm/explain.py

.PHONY: help demo test test-all lint docs bench bench-peers bench-plot clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "make %-13s %s\n", $$1, $$2}'

demo: .venv-mindspore/.ready ## the main job: NumPy alone, then an unedited nn.Cell in every mode of MindSpore and in bcvm
	@.venv-mindspore/bin/bcvm run examples/dynamic_matmul.py
	@$(MS) examples/mindspore_dynamic_matmul.py

test: .venv-numpy2/.ready .venv-mindspore/.ready ## the suite on the newest NumPy without MindSpore, and on NumPy 1.26 with it
	@$(NP) -c 'import sys, numpy; print("== Python", sys.version.split()[0], "NumPy", numpy.__version__, "without MindSpore")'
	@$(NP) -m pytest tests
	@$(MS) -c 'import sys, numpy, importlib.metadata as m; print("== Python", sys.version.split()[0], "NumPy", numpy.__version__, "MindSpore", m.version("mindspore"))'
	@$(MS) -m pytest tests

test-all: .venv-mindspore/.ready ## the suite on every CPython from 3.10 to 3.13 that is found here, and with MindSpore
	@failed=; while read -r version python; do \
	    echo "== Python $$version"; \
	    $(MAKE) --no-print-directory .venv-$$version/.ready PYTHON="$$python" && .venv-$$version/bin/python -m pytest tests || failed="$$failed $$version"; \
	done < <(.ci/pythons); \
	echo "== with MindSpore"; $(MS) -m pytest tests || failed="$$failed mindspore"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

lint: .venv-numpy2/.ready ## style, types, import directions, file lengths, generated pages
	@$(NP) -m ruff check .
	@$(NP) -m mypy bcvm
	@$(NP) -m mypy --strict --follow-imports=silent $(STRICT)
	@$(NP) -m bcvm.tools.isa_page --check docs/instructions.md
	@$(NP) -m pytest tests/test_structure.py

docs: .venv-numpy2/.ready .venv-mindspore/.ready ## write the generated pages anew
	@$(NP) -m bcvm.tools.isa_page > docs/instructions.md
	@$(MS) -m bcvm.frameworks.mindspore_page > docs/mindspore-ops.md

bench: .venv-numpy2/.ready .venv-mindspore/.ready ## every budget with its figure, then the nine workloads against the peers that are set up
	@code=0; $(NP) bench/budgets.py || code=1; $(MS) bench/budgets.py --only mindspore || code=1; \
	$(NP) bench/workloads_run.py || code=1; exit $$code

bench-peers: .venv-peers/.ready ## set up the peers: torch, jax, onnxruntime

bench-plot: .venv-peers/.ready .venv-mindspore/.ready ## run every workload and peer, and write docs/bench.png
	@.venv-peers/bin/python bench/plot.py --run

clean: ## remove the environments and caches that make has written
	rm -rf .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

# -- environments; a stamp says that one is complete

define venv  # $(1): python   $(2): what to install besides
	@echo "setting up $(@D) ($(2))"
	@$(1) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version.split()[0] + "; name another: make PYTHON=/path/to/python3")'
	@rm -rf $(@D)
	@$(1) -m venv $(@D)
	@$(@D)/bin/python $(PIP) $(2)
	@touch $@
endef

.venv-numpy2/.ready: pyproject.toml
	$(call venv,$(PYTHON),-e '.[test$(,)lint]' 'numpy>=2')

# MindSpore has no file for every Python: take one that it has been run on.
.venv-mindspore/.ready: pyproject.toml
	@.ci/pythons -1 3.11 3.10 3.12 > /dev/null
	@echo "MindSpore is about 800 MB to fetch"
	$(call venv,$$(.ci/pythons -1 3.11 3.10 3.12 | cut -d' ' -f2-),-e '.[test$(,)mindspore]')

.venv-peers/.ready: pyproject.toml
	$(call venv,$$(.ci/pythons -1 3.11 3.12 3.10 | cut -d' ' -f2-),torch==2.13.0 jax onnxruntime onnx scipy numpy matplotlib)

.venv-3.%/.ready: pyproject.toml
	$(call venv,$(PYTHON),-e '.[test]')

, := ,
