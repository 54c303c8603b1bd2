# make setup | demo | test | lint | lab. Everything is installed into .venv; nothing else on the machine is touched.
PY := .venv/bin/python
export IPYTHONDIR := $(CURDIR)/.venv/ipython
NOTEBOOK := $(PY) -m papermill --no-progress-bar --log-level ERROR --execution-timeout 1800
MODEL ?= extractive:
RUN ?= demo

.PHONY: setup demo test test-slow lint lab

setup: .venv/.ok

.venv/.ok: pyproject.toml
	@command -v python3 >/dev/null || { echo "python3 is missing: install Python 3.11 or newer"; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 is $$(python3 -V): install Python 3.11 or newer"; exit 1; }
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js with npm; the documentation to search is fetched with it"; exit 1; }
	@test -x $(PY) || python3 -m venv .venv >/dev/null 2>&1 || python3 -m venv --without-pip .venv
	@$(PY) -m pip --version >/dev/null 2>&1 || python3 -m pip --python $(PY) install --quiet pip
	@$(PY) -m pip install --quiet uv 2>/dev/null || true
	@if $(PY) -m uv --version >/dev/null 2>&1; then $(PY) -m uv pip install --quiet --python $(PY) -e '.[dev,local]'; \
	 else $(PY) -m pip install --quiet -e '.[dev,local]'; fi
	@mkdir -p .venv/ipython/profile_default
	@echo "c.IPKernelApp.log_level = 40  # its warning about unencrypted loopback does not belong in reports" \
	  > .venv/ipython/profile_default/ipython_kernel_config.py
	@touch $@

# The four notebooks, from questions to report. A second call measures nothing again.
demo: setup
	@mkdir -p results/$(RUN)
	$(NOTEBOOK) notebooks/curate.ipynb results/$(RUN)/curate.ipynb
	$(NOTEBOOK) notebooks/run.ipynb results/$(RUN)/run.ipynb -p run_id "$(RUN)" -p model "$(MODEL)"
	$(NOTEBOOK) notebooks/judge.ipynb results/$(RUN)/judge.ipynb -p run_id "$(RUN)"
	$(NOTEBOOK) notebooks/analyze.ipynb results/$(RUN)/analyze.ipynb -p runs "$(RUN)"
	@$(PY) -c "import sys; from evalkit import report; t = report.frame(sys.argv[1]); print(); \
	print(report.headline(t, report.gaps(t, 'correct', 'closed_book'), 'correct'))" results/$(RUN)
	@echo "report: $(CURDIR)/results/$(RUN)/report.html"

test: setup
	$(PY) -m pytest

test-slow: setup
	$(PY) -m pytest -m slow

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check evalkit tests
	$(PY) -m ruff format --check --line-length 96 notebooks
	$(PY) -m nbstripout --verify notebooks/*.ipynb
	$(PY) -m mypy

lab: setup
	$(PY) -m jupyterlab notebooks
