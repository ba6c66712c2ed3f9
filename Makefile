# Every target installs what it needs into .venv, from pyproject.toml.
PYTHON ?= python3
TLITE := .venv/bin/tlite
# Use huge pages if Linux lets the program choose (glibc 2.35 and newer; ignored by others): each step
# allocates large arrays, and small pages are slow in a virtual machine.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: help setup demo test test-all test-newest test-versions attack mutation lint bench notebooks
.PHONY: docs gpu-check pictures readme documents
.PHONY: shakespeare shakespeare-post tiny-shakespeare copy number-words multi30k
.PHONY: record-shakespeare record-tiny-shakespeare record-tiny-shakespeare-long scaling hybrid
.PHONY: masked-diffusion optimizers
.PHONY: logistic reviews reviews-post reviews-binary reviews-sentences reviews-pretrained
.PHONY: record-reviews record-reviews-binary record-sst2 record-trec
.PHONY: reviews-demo sst2 trec finetune-trec finetune-shakespeare gpt2 gpt2-xl

help:
	@echo "make demo               train a small generator for a few minutes and print a sample"
	@echo "make test               the tests; make test-all: also the system tests"
	@echo "make test-newest        a subset of the tests on the newest installed Python"
	@echo "make test-versions      the tests with other versions of Python and packages"
	@echo "make attack             kill and resume runs for MINUTES=15, from SEED=0"
	@echo "make mutation           count random changes of the code that no test detects (hours)"
	@echo "make shakespeare        train on all of Shakespeare's plays"
	@echo "make tiny-shakespeare   nanoGPT's CPU setting on tiny Shakespeare, five seeds"
	@echo "make record-shakespeare few parameters, Muon and convolutions, five seeds; also"
	@echo "                        record-tiny-shakespeare, record-tiny-shakespeare-long"
	@echo "make scaling            a scaling law of 24 small generators, and its picture"
	@echo "make hybrid             softmax attention, a gated delta rule and both, four seeds"
	@echo "make optimizers         six optimizers, each tuned, with effective speedups"
	@echo "make masked-diffusion   a masked diffusion language model of characters"
	@echo "make reviews-demo       a classifier of synthetic reviews; nothing to download"
	@echo "make reviews            stars from reviews; also reviews-binary, reviews-sentences,"
	@echo "                        reviews-pretrained, reviews-post, logistic, sst2, trec"
	@echo "make record-reviews     beside a linear model of n-grams; also record-reviews-binary,"
	@echo "                        record-sst2, record-trec"
	@echo "make finetune-trec      from a BERT, OPTIONS=\"--init-from PATH\"; also finetune-shakespeare"
	@echo "make copy               an encoder-decoder in two minutes, nothing to download; also number-words"
	@echo "make multi30k           English to German captions (hours on a laptop)"
	@echo "make gpt2               GPT-2 small on a corpus (see experiments/gpt2.py); also gpt2-xl"
	@echo "make notebooks          run the notebooks and save them as .ipynb"
	@echo "make docs               build the documentation site, build/docs"
	@echo "make bench              time tlite and PyTorch in turn on the same work (installs PyTorch)"
	@echo "make gpu-check          compare a GPU with a CPU, and time it (installs CUDA's JAX)"
	@echo "make pictures           draw the README's pictures (trains the demo)"
	@echo "make readme             check links, commands and figures of README and RESULTS"
	@echo "make documents          follow README, guides and notebooks in a fresh clone"
	@echo "make lint               check style and the order of the packages"
	@echo "make setup              only install; EXTRAS=gpu for a GPU"

# pip prints errors only: with a mirror it warns of every file from another host.
EXTRAS ?=
setup: .venv/core
	@test -z "$(EXTRAS)" || .venv/bin/pip install -qq -e ".[$(EXTRAS)]"
	@echo "installed; next: source .venv/bin/activate; tlite --help"

.venv/core: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tlite needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -qq -e .
	@touch $@

.venv/test: .venv/core
	.venv/bin/pip install -qq -e ".[test,text]"
	@touch $@

# With PyTorch and transformers, to compare with. The browser is the system's chromium.
.venv/system: .venv/test
	.venv/bin/pip install -qq -e ".[bench,docs]"
	@touch $@

.venv/text: .venv/core
	.venv/bin/pip install -qq -e ".[text]"
	@touch $@

.venv/bench: .venv/core
	.venv/bin/pip install -qq -e ".[bench]"
	@touch $@

bench: .venv/bench
	.venv/bin/python -m experiments.benchmarks.bench $(OPTIONS)

.venv/gpu: .venv/core
	.venv/bin/pip install -qq -e ".[gpu]"
	@touch $@

gpu-check: .venv/gpu
	.venv/bin/python -m experiments.benchmarks.gpu_check

.venv/notebooks: .venv/core
	.venv/bin/pip install -qq -e ".[notebooks,text]"
	@touch $@

# One: NOTEBOOKS=notebooks/08_inside.py. What they compile is kept for the next time.
notebooks: export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.pytest_cache/notebooks
notebooks: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
notebooks: .venv/notebooks
	.venv/bin/python notebooks/build.py $(NOTEBOOKS)

.venv/docs: .venv/core
	.venv/bin/pip install -qq -e ".[docs]"
	@touch $@

# A broken reference is an error.
docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/docs
	.venv/bin/mkdocs build --config-file notebooks/site/mkdocs.yml
	@echo "a browser opens build/docs/index.html"

demo: .venv/core
	$(TLITE) train demo

# One worker for each core; WORKERS=0 runs the tests in this process, for a debugger.
WORKERS ?= auto
PYTEST = .venv/bin/python -m pytest -n $(WORKERS) --dist loadfile

test: .venv/test
	$(PYTEST) --ignore=tests/system

test-all: .venv/system
	$(PYTEST)

# The newest Python that is installed gets the newest release of JAX. Without one there is no test.
# A subset: GitHub runs make test on 3.13 too, and make test-versions runs all.
NEWEST_TESTS = tests/test_golden.py tests/functional tests/comparison tests/runs/test_run.py \
	tests/runs/test_api.py tests/training/test_checkpoints.py tests/cli/test_pretrained.py
test-newest:
	@python=$$(.ci/newest-python $(PYTHON)) || \
		{ echo "test-newest: skipped, no Python newer than $(PYTHON) is installed"; exit 0; }; \
		$(MAKE) --no-print-directory .venv-newest/test NEWEST="$$python" && \
		.venv-newest/bin/python -m pytest -n $(WORKERS) --dist loadfile $(NEWEST_TESTS)

.venv-newest/test: pyproject.toml
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/pip install -qq -e ".[test,text]"
	@touch $@

# The lowest versions of pyproject.toml and each installed Python. Takes hours: run by hand.
test-versions:
	$(PYTHON) tests/versions.py $(OPTIONS)

MINUTES ?= 15
SEED ?= 0
attack: .venv/test
	.venv/bin/python -m tests.attack --minutes $(MINUTES) --seed $(SEED)

.venv/mutation: .venv/test
	.venv/bin/pip install -qq -e ".[mutation]"
	@touch $@

# After a stop the same command resumes; OPTIONS="--groups models --number 100 --seed 1".
mutation: .venv/mutation
	.venv/bin/python tests/mutation.py $(OPTIONS)

# Check links, commands, Python and figures of README, RESULTS and the guides, in a few minutes.
readme: .venv/test
	.venv/bin/python -m pytest -n 0 tests/test_documents.py tests/system/test_readme.py \
		tests/system/test_guides.py

# Follow README, guides and notebooks line by line in a fresh clone of the last commit.
documents:
	rm -rf build/clone
	git clone --quiet . build/clone && $(MAKE) -C build/clone readme notebooks

pictures: .venv/test
	.venv/bin/python -m experiments.tools.pictures $(OPTIONS)

lint: .venv/test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports --no-cache --no-logo

shakespeare shakespeare-post tiny-shakespeare hybrid masked-diffusion: .venv/core
	$(TLITE) train $(subst -,_,$@) $(OPTIONS)

record-shakespeare record-tiny-shakespeare record-tiny-shakespeare-long: .venv/core
	$(TLITE) train $(subst -,_,$@) $(OPTIONS)

# After a kill the same command resumes the study; another STUDY=FOLDER starts a new one.
STUDY ?= runs/scaling/study
scaling: .venv/core
	@if test -e $(STUDY); then $(TLITE) train --resume $(STUDY); \
		else $(TLITE) train scaling --run $(STUDY) $(OPTIONS); fi
	.venv/bin/python -m experiments.tools.scaling $(STUDY)

# Six optimizers, each with a tuned learning rate: more than an hour; resumes after a kill.
optimizers: .venv/core
	.venv/bin/python -m experiments.tools.optimizer_study runs/optimizers

record-reviews record-reviews-binary record-sst2 record-trec: .venv/text
	$(TLITE) train $(subst -,_,$@) $(OPTIONS)

copy: .venv/text
	$(TLITE) train copy_task $(OPTIONS)

number-words multi30k logistic reviews reviews-post reviews-binary reviews-sentences reviews-pretrained reviews-demo sst2 trec finetune-trec finetune-shakespeare gpt2 gpt2-xl: .venv/text
	$(TLITE) train $(subst -,_,$@) $(OPTIONS)
