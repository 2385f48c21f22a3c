# Everything needs only python3 with pip and venv: `.venv` is made on first use.
PY := .venv/bin/python
INSTALL := install -qq --disable-pip-version-check -c constraints.txt
PIP := $(PY) -m pip $(INSTALL)
PYTEST := $(PY) -m pytest --numprocesses 5 --dist loadfile --no-loadscope-reorder
unexport PYTHONDONTWRITEBYTECODE  # the processes that tests start find modules compiled

.PHONY: run test browser pythons test-slow lint bench soak clean conformance typescript clients python1 screenshots docs

# What running needs; `.venv/ready` has the developers' tools too. The pip that comes with an older
# Python takes three times as long to read the index, so a newer one comes first.
.venv/run: pyproject.toml constraints.txt
	@echo "Setting up .venv, which takes up to half a minute the first time"
	@python3 -m venv --without-pip .venv
	@python3 -m pip --python $(PY) $(INSTALL) pip 2>/dev/null || python3 -m venv --upgrade-deps .venv
	@$(PIP) --no-compile -e .  # modules are compiled as they are first loaded
	@touch .venv/run

.venv/ready: .venv/run
	$(PIP) -e '.[dev]'
	$(PY) -m compileall -q gateway
	touch .venv/ready

run: .venv/run
	.venv/bin/gateway serve --config config.toml

test: .venv/ready
	@command -v npm >/dev/null && $(MAKE) --silent tests/oauth/node_modules/ready || true  # a real OpenID provider
	@$(PY) -m compileall -q gateway tests -x node_modules  # for the processes that tests start
	$(PYTEST) -m "not slow and not browser" --ignore tests/slow --ignore tests/docs

# What people see, in a real browser (Debian's, see .ci/run), and axe-core (from npm) on every page of
# the console, in both themes and at both sizes.
browser: .venv/ready tests/console/node_modules/ready
	$(PYTEST) -m browser tests/console tests/oauth

test-slow: .venv/ready
	$(PY) -m pytest -m "slow or hypothesis" --hypothesis-profile full

# The core of the suite on every other Python of this machine.
pythons: .venv/ready
	$(PY) -m tests.pythons

lint: .venv/ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: .venv/ready
	$(PY) -m bench

# Ten minutes; SOAK="--seconds 90" makes it short, SOAK="--store postgresql" runs it on PostgreSQL.
soak: .venv/ready
	$(PY) -m bench.soak $(SOAK)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

# The official conformance runner and the official TypeScript clients; these need npm.
conformance: .venv/ready tests/conformance/node_modules/ready
	$(PY) -m tests.conformance.run

typescript: .venv/ready tests/typescript/node_modules/ready
	$(PY) -m tests.typescript.run

# Claude Code, Codex and Gemini CLI with a stand-in model; 700 MB from npm.
clients: .venv/ready tests/clients/node_modules/ready
	$(PY) -m tests.clients.run

# The official Python client of the first generation, which has to live by itself.
python1: .venv/ready tests/python1/.venv/ready
	$(PY) -m tests.python1.run

tests/python1/.venv/ready: Makefile
	python3 -m venv tests/python1/.venv
	tests/python1/.venv/bin/python -m pip install --quiet --disable-pip-version-check 'mcp>=1.30,<2'
	touch $@

tests/%/node_modules/ready: tests/%/package.json
	cd tests/$* && npm install --no-package-lock --no-audit --no-fund --silent
	touch $@

# The pictures of the README, taken from a gateway at work; needs Debian's chromium.
screenshots: .venv/ready
	$(PY) -m tests.console.screenshots

# The documentation as a site, in out/site; a broken link fails (not with --quiet, which hides
# warnings from --strict), and so does anything that a page would ask another host for. Every command
# and snippet of it is run.
docs: .venv/docs
	@$(PY) -m compileall -q gateway tests -x node_modules
	$(PYTEST) tests/docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@! grep -rlE '<(script|link|img|iframe)[^>]* (src|href)="?https?:' out/site --include='*.html'
	@echo "The documentation is in out/site: open out/site/index.html"

.venv/docs: .venv/ready
	$(PIP) -e '.[docs]'
	touch .venv/docs
