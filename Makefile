# make setup | demo | smoke | eval | test | test-browser | test-slow | test-live | lint | lab | bench. Everything is installed into .venv; nothing else on the machine is touched.
PY := .venv/bin/python
export IPYTHONDIR := $(CURDIR)/.venv/ipython
NOTEBOOK := $(PY) -m papermill --no-progress-bar --log-level ERROR --execution-timeout 1800
MODEL ?= extractive:
SUITE ?= docs_qa
demo: RUN ?= demo
eval: RUN ?= $(notdir $(SUITE))
LOCAL := local:smollm2-135m
HEADLINE = $(PY) -c "import json, sys; s = json.load(open(sys.argv[1] + '/summary.json')); print(); print(s['headline']); \
  [print(c) for c in s['cost_per_correct']]; print('report:', sys.argv[1] + '/report.html')" $(CURDIR)/results/$(RUN)

.PHONY: setup demo eval smoke test test-browser test-slow test-live bench lint lab

setup: .venv/.ok

.venv/.ok: pyproject.toml
	@command -v python3 >/dev/null || { echo "python3 is missing: install Python 3.11 or newer"; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 is $$(python3 -V): install Python 3.11 or newer"; exit 1; }
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js with npm; the documentation to search is fetched with it"; exit 1; }
	@test -x $(PY) || python3 -m venv .venv >/dev/null 2>&1 || python3 -m venv --without-pip .venv
	@$(PY) -m pip --version >/dev/null 2>&1 || python3 -m pip --python $(PY) install --quiet pip
	@$(PY) -m pip install --quiet uv 2>/dev/null || true
	@$(PY) -m uv pip install --quiet --python $(PY) -e '.[dev,local]' 2>/dev/null || $(PY) -m pip install --quiet -e '.[dev,local]'
	@mkdir -p .venv/ipython/profile_default
	@echo "c.IPKernelApp.log_level = 50  # neither its warning about loopback nor that it was shut down belongs in reports" \
	  > .venv/ipython/profile_default/ipython_kernel_config.py
	@touch $@
	@echo "evalkit is installed in .venv"

# The notebooks, from questions to report. A second call measures nothing again. Without MODEL the agent is extractive:,
# which needs no key, and a very small local language model answers and judges the first six questions.
demo: setup
	@mkdir -p results/$(RUN)
	$(NOTEBOOK) notebooks/curate.ipynb results/$(RUN)/curate.ipynb
	$(NOTEBOOK) notebooks/run.ipynb results/$(RUN)/run.ipynb -p run_id "$(RUN)" -p model "$(MODEL)"
ifeq ($(MODEL),extractive:)
	$(NOTEBOOK) notebooks/run.ipynb results/$(RUN)/run-local.ipynb -p run_id "$(RUN)" -p model $(LOCAL) -p limit 6
	$(NOTEBOOK) notebooks/judge.ipynb results/$(RUN)/judge.ipynb -p run_id "$(RUN)" -p judge $(LOCAL) -p limit 6 \
	  -p models "$(LOCAL),script:null,script:oracle" -p conditions index_grep
else
	$(NOTEBOOK) notebooks/judge.ipynb results/$(RUN)/judge.ipynb -p run_id "$(RUN)"
endif
	$(NOTEBOOK) notebooks/analyze.ipynb results/$(RUN)/analyze.ipynb -p runs "$(RUN)"
	$(NOTEBOOK) notebooks/explore.ipynb results/$(RUN)/explore.ipynb -p run_id "$(RUN)"
	@$(HEADLINE)

# One model on one suite, all four notebooks: make eval MODEL=anthropic:claude-haiku-4-5 SUITE=docs_qa EFFORT=low
eval: setup
	@mkdir -p results/$(RUN)
	@case "$(SUITE)" in *code_search*) $(PY) -m evalkit corpus build fastify;; esac
	$(NOTEBOOK) notebooks/curate.ipynb results/$(RUN)/curate.ipynb -p suite "$(SUITE)"
	$(NOTEBOOK) notebooks/run.ipynb results/$(RUN)/run.ipynb -p run_id "$(RUN)" -p model "$(MODEL)" -p suite "$(SUITE)" \
	  $(if $(EFFORT),-p effort $(EFFORT)) $(if $(BASE_URL),-p base_url $(BASE_URL)) $(if $(LIMIT),-p limit $(LIMIT))
	$(NOTEBOOK) notebooks/judge.ipynb results/$(RUN)/judge.ipynb -p run_id "$(RUN)"
	$(NOTEBOOK) notebooks/analyze.ipynb results/$(RUN)/analyze.ipynb -p runs "$(RUN)"
	@$(HEADLINE)

# The same on three questions: does everything stand?
smoke:
	@$(MAKE) --no-print-directory eval RUN=smoke LIMIT=3

test: setup
	$(PY) -m pytest -n 2 --dist loadfile

# JupyterLab and report.html in Chromium, which apt-get install chromium brings.
test-browser: setup
	$(PY) -m pytest -m browser

test-slow: setup
	$(PY) -m pytest -m slow

# One tool call and one judgement of the model named by MODEL over the network; skipped without its key or server.
test-live: setup
	EVALKIT_LIVE="$(MODEL)" $(PY) -m pytest -m live

bench: setup
	$(PY) tests/bench/client_cpu.py
	$(PY) tests/bench/code_index.py

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check evalkit tests
	$(PY) -m ruff format --check --line-length 96 notebooks
	$(PY) -m nbstripout --verify --keep-id notebooks/*.ipynb
	$(PY) -m mypy

lab: setup
	$(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/explore.ipynb
