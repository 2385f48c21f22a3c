# Everything needs only python3 with pip and venv: `.venv` is made on first use.
PY := .venv/bin/python

.PHONY: run test lint bench clean

.venv/ready: pyproject.toml constraints.txt
	python3 -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch .venv/ready

run: .venv/ready
	.venv/bin/gateway serve --config config.toml

test: .venv/ready
	$(PY) -m pytest

lint: .venv/ready
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
