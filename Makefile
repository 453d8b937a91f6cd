# One command each; every target makes what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
INSTALLED_DEV = $(VENV)/.installed-dev
# Tests run in parallel, more than there are cores: most wait for a socket or a process.
PARALLEL = -n $$(( 3 * $$(nproc) + 1 )) --dist worksteal

# Strict: a link to a page or a heading that is not there fails.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Keep compiled test modules: without them, collecting the tests takes twice as long in every worker.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-vllm test-chromium test-cluster test-cluster-vllm test-faults test-others faults faults-vllm machines test-lowest explore fuzz lint check lock dist wheelhouse test-dist docs bench screenshot schema clean

run: $(INSTALLED)  ## the cockpit on the embedded simulator (without a terminal: the same run, headless)
	$(BIN)/vramp profiles/simulator.toml

test: $(INSTALLED_DEV)  ## every test that needs neither vLLM, nor a browser, nor root
	$(BIN)/python -m pytest $(PARALLEL)

test-vllm: $(INSTALLED_DEV)  ## the tests on a real vLLM; installs its CPU build into a cache folder the first time
	VRAMP_VLLM_CACHE="$$(sh tests/vllm/install.sh)" $(BIN)/python -m pytest -m vllm tests/vllm

test-chromium: $(INSTALLED_DEV)  ## the tests that open pages in a headless Chromium; installs it if it is missing, as root
	command -v chromedriver >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; }
	$(BIN)/python -m pytest -m chromium tests

test-cluster: $(INSTALLED_DEV) machines  ## the tests on several machines, which are network namespaces, as root
	$(BIN)/python -m pytest -m 'cluster and not vllm' tests/cluster

test-cluster-vllm: $(INSTALLED_DEV) machines  ## the same with a real vLLM; installs its CPU build as test-vllm does
	VRAMP_VLLM_CACHE="$$(sh tests/vllm/install.sh)" $(BIN)/python -m pytest -m 'cluster and vllm' tests/cluster

test-others: $(INSTALLED_DEV)  ## the tests with proxies and other engines next to a real vLLM; installs them the first time, as root
	for command in nginx haproxy; do command -v $$command >/dev/null || missing=1; done; [ -z "$$missing" ] || \
		{ apt-get update -qq && apt-get install -y -qq nginx haproxy; }
	VRAMP_VLLM_CACHE="$$(UV=$(BIN)/uv sh tests/others/install.sh)" $(BIN)/python -m pytest -m others tests/others

test-faults: $(INSTALLED_DEV) machines  ## sixty faults that vramp has to survive, as root
	$(BIN)/python -m pytest -m faults tests/faults

faults: $(INSTALLED_DEV) machines  ## a thousand of them, about 40 minutes; goes on where it was interrupted
	mkdir -p build
	$(BIN)/python -m tests.faults.campaign --seed 16 --count 1000 --resume build/faults.jsonl --keep build/faults

faults-vllm: $(INSTALLED_DEV)  ## forty kills of a real vLLM's processes, about half an hour; goes on where it was interrupted
	mkdir -p build
	VRAMP_VLLM_CACHE="$$(sh tests/vllm/install.sh)" $(BIN)/python -m tests.vllm.faults --resume build/faults-vllm.jsonl --keep build/faults-vllm

machines:  ## install the Debian packages that those tests need
	for command in sshd ip iptables cc; do command -v $$command >/dev/null || missing=1; done; [ -z "$$missing" ] || \
		{ apt-get update -qq && apt-get install -y -qq openssh-server iproute2 iptables gcc libc6-dev; }

lint: $(INSTALLED_DEV)  ## format, lint, types, import contracts, links of the manual
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy .ci/*.py
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/layout.py > /dev/null
	$(MKDOCS) --quiet

check: lint  ## lint, the locks, known vulnerabilities, and the tests with their coverage
	$(BIN)/python .ci/lock.py
	$(BIN)/python -m pytest $(PARALLEL) --cov

PIN = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --custom-compile-command 'make lock'
lock: $(INSTALLED_DEV)  ## lock the newest versions that pyproject.toml allows, with their hashes
	$(PIN) --extra web --extra parquet --extra cluster --extra build pyproject.toml --output-file requirements.lock
	$(PIN) --extra dev --constraint requirements.lock pyproject.toml --output-file requirements-dev.lock
	echo ziglang | $(PIN) - --output-file requirements-cc.lock

dist: $(INSTALLED_DEV)  ## the files of a release in dist/: sdist, wheel, SBOM, licences, checksums
	$(BIN)/python .ci/release.py

wheelhouse: dist  ## the wheel and its dependencies in build/wheelhouse, for machines without a network (WHEELS='--extras web')
	$(BIN)/python .ci/wheelhouse.py $(WHEELS)

test-dist: $(INSTALLED_DEV) dist  ## the wheelhouse installed without a network by pip and uv, on each Python from 3.11 to 3.14 that is here
	$(BIN)/python .ci/wheelhouse.py --tools $(WHEELS)
	$(BIN)/python .ci/try_dist.py

docs: $(INSTALLED_DEV)  ## write the profile reference and the manual page, and build the manual as a site in build/site
	$(BIN)/python -m loadgen.profile.reference
	$(BIN)/python -m tui.cli.manual > docs/vramp.1
	$(MKDOCS)

bench: $(INSTALLED_DEV)  ## accuracy and cost of vramp: against ground truth, other clients and a minimal one (with cc); half an hour on a quiet machine
	$(BIN)/python -m benchmarks.truth
	$(BIN)/python -m benchmarks.screen load
	$(BIN)/python -m benchmarks.arrivals
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.published
	$(BIN)/python -m benchmarks.extras
	$(BIN)/python -m benchmarks.hosts
	$(BIN)/python -m benchmarks.peers

screenshot: $(INSTALLED_DEV)  ## take the manual's screenshots
	$(BIN)/python -m benchmarks.screenshot

explore: $(INSTALLED_DEV)  ## the property tests with new examples, ten times as many
	$(BIN)/python -m pytest $(PARALLEL) -m hypothesis --hypothesis-profile=explore

fuzz: $(INSTALLED_DEV)  ## a million damaged inputs to each reader of bytes from outside, three hours of a core; FUZZ="--seconds 60" is an hour
	$(BIN)/python -m tests.fuzz.test_sockets 3000
	$(BIN)/python -m tests.fuzz.campaign --extremes $(FUZZ)
	$(BIN)/python -m tests.fuzz.campaign --inputs 1000000 $(FUZZ)

test-lowest: $(INSTALLED_DEV)  ## the tests with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-lowest
	$(BIN)/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev]'
	.venv-lowest/bin/python -m pytest $(PARALLEL)

schema: $(INSTALLED)  ## write the JSON Schemas of result, certificate and summary
	$(BIN)/python -m loadgen.schema.result
	$(BIN)/python -m loadgen.schema.certificate
	$(BIN)/python -m loadgen.schema.summary

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

PIP_INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check

$(INSTALLED): $(VENV)/bin/python requirements.lock pyproject.toml
	$(PIP_INSTALL) --require-hashes --requirement requirements.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

$(INSTALLED_DEV): $(INSTALLED) requirements-dev.lock requirements-cc.lock
	$(PIP_INSTALL) --require-hashes --requirement requirements-dev.lock
	# A compiler, for the stand-ins of GPU libraries. Its first library takes long, as it compiles its own runtime then.
	command -v cc >/dev/null || { $(PIP_INSTALL) --require-hashes --requirement requirements-cc.lock && \
		echo 'int nothing;' | $(BIN)/python -m ziglang cc -shared -x c - -o $(VENV)/.compiled; }
	touch $@

clean:
	rm -rf $(VENV) .venv-lowest dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
