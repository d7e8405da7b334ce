## make demo   set up, check every entry, run the real-input example
## make test   set up, then style, types and tests
## make docs   set up, then generate the pages of the site and build it into site/
## make serve  the same, served at http://127.0.0.1:8000/attn_mods/ and built again when a page changes
## make fuzz   20,000 random rules against torch (make test runs 1,500), and a compiled kernel of every case of every entry
## make test-torch TORCH=2.14   the package's tests with another PyTorch than constraints.txt names, in its own environment
## make format put imports and layout in order

SHELL := /bin/sh
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV := .venv/bin/python
TORCH ?= 2.11
OTHER = .venv-torch-$(TORCH)
TYPED := attn_mods $(wildcard benchmarks docs/generate.py docs/generator)

ifneq ($(words $(CURDIR)),1)
$(error torch cannot compile C++ below a path with spaces; move the folder "$(CURDIR)" to a path without)
endif

.PHONY: help demo test test-torch docs pages serve fuzz format clean compiler
.DELETE_ON_ERROR:

help:
	@sed -n 's/^## //p' Makefile

demo: compiler .venv/demo.stamp
	@echo 'Checking every entry; each is compiled for this processor, which takes minutes the first time'
	@$(VENV) -m attn_mods.cli verify
	@printf '%s\n' '' 'Embedding a page of text with a real sentence encoder'
	@$(VENV) docs/examples/packed_sentences.py
	@printf '%s\n' '' 'Where to go next' \
		'  .venv/bin/attn-mods list                   every entry' \
		'  .venv/bin/attn-mods show sliding_window    one entry: picture, rule, parameters, papers, blocks' \
		'  .venv/bin/attn-mods explain alibi          which backends would run it here, and why not the others' \
		'  README.md                                  how to use it from Python' \
		'  CONTRIBUTING.md                            how to add an entry of your own' \
		'  make test                                  style, types and tests'

test: compiler .venv/test.stamp
	$(VENV) -m ruff check .
	$(VENV) -m ruff format --check .
	$(VENV) -m mypy --strict $(TYPED)
	$(VENV) -m pytest -n 2 --dist worksteal

# The theme prints a page of news about its engine unless told not to.
docs serve: export NO_MKDOCS_2_WARNING := 1

pages: .venv/docs.stamp
	$(VENV) -m docs.generate

docs: pages
	$(VENV) -m mkdocs build --strict

serve: pages
	$(VENV) -m mkdocs serve

fuzz: .venv/test.stamp
	ATTN_MODS_FUZZ_RULES=20000 ATTN_MODS_COMPILE_ALL=1 $(VENV) -m pytest -n 2 --dist worksteal \
		tests/tiles/test_random_rules.py tests/test_every_entry.py

# The pages show what PyTorch prints, which is not the same in each version.
test-torch: compiler
	@"$(PYTHON)" -m venv $(OTHER)
	@grep -v -E '^(torch|triton)==' constraints.txt > $(OTHER)/constraints.txt
	@echo "Installing PyTorch $(TORCH) and what make test needs into $(OTHER) (minutes)"
	@$(OTHER)/bin/python -m pip install --disable-pip-version-check --no-compile \
		--constraint $(OTHER)/constraints.txt 'torch==$(TORCH).*' --editable '.[test]'
	$(OTHER)/bin/python -m pytest -n 2 --dist worksteal tests --ignore tests/docs --ignore tests/browser

format: .venv/test.stamp
	$(VENV) -m ruff check --fix .
	$(VENV) -m ruff format .

clean:
	rm -rf .venv .venv-torch-*

.venv/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo 'attn_mods needs Python 3.11 or newer: none of python3.11, python3, python3.12, ... is; name one with make PYTHON=/path/to/python' >&2; exit 1; }
	@echo "Making .venv with $(PYTHON)"
	@"$(PYTHON)" -m venv .venv || { echo 'The venv module of $(PYTHON) does not work: on Debian and Ubuntu, apt-get install python3-venv' >&2; rm -rf .venv; exit 1; }

.venv/%.stamp: .venv/pyvenv.cfg pyproject.toml constraints.txt
	@echo "Installing what make $* needs into .venv (PyTorch is large: minutes)"
	@$(VENV) -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[$*]'
	@touch $@

# Compiled FlexAttention on a CPU is C++ that torch compiles at run time, against the headers of Python.
compiler: .venv/pyvenv.cfg
	@command -v "$${CXX:-g++}" >/dev/null \
		|| { echo "attn_mods needs a C++ compiler to run FlexAttention on a CPU, and $${CXX:-g++} is not there: on Debian and Ubuntu, apt-get install g++; or name one in the environment as CXX" >&2; exit 1; }
	@$(VENV) -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())' \
		|| { echo "attn_mods needs Python's C headers to run FlexAttention on a CPU, and Python.h is not there: on Debian and Ubuntu, apt-get install python3-dev" >&2; exit 1; }
