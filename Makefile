# Two commands matter: `make demo` answers a question with the bundled model, `make test` checks everything.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
GPU    := $(wildcard /dev/nvidiactl)
CUDA   := $(if $(GPU),cuda,)

.PHONY: demo test gpu-test lint format clean

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit("ninfer_nb needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.created
	$(BIN)/pip install -q --disable-pip-version-check -e '.$(if $(CUDA),[$(CUDA)],)'
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.created
	$(BIN)/pip install -q --disable-pip-version-check -e '.[convert,test,lint,cuda,ptxas]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/ninfer run mini --prompt 'What is prefill?'

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto tests

gpu-test: $(VENV)/.test
	$(BIN)/python -m pytest -m gpu tests/gpu

lint: $(VENV)/.test
	$(BIN)/ruff check src tests bench

format: $(VENV)/.test
	$(BIN)/ruff check --fix src tests bench
	$(BIN)/ruff format src tests bench

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .hypothesis .ruff_cache
