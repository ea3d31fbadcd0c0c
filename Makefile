# `make run`: the demonstration. `make test`: the tests. Both set everything up in .venv on first use.
# `make test-frameworks`: the frameworks of docs/frameworks.md.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test test-frameworks validate setup clean
run: $(VENV)/installed
	$(BIN)/phantora record-and-simulate --nproc-per-node 8 --cluster dgx-h100 --out runs/demo examples/train_gpt.py

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -q

# torchtitan, Megatron-Core, DeepSpeed, Hugging Face, Lightning ... from their own entry points (requirements/frameworks.txt).
test-frameworks: $(VENV)/installed-frameworks
	PHANTORA_TORCHTITAN_022=$(CURDIR)/$(VENV)/torchtitan-0.2.2 $(BIN)/python -m pytest -q -m frameworks tests/frameworks

# Simulated training steps beside those measured on one H200. SHARED: the folder with workloads/ and reference/.
SHARED ?= $(abspath ../shared)
validate: $(VENV)/installed-test
	PHANTORA_SHARED=$(SHARED) $(BIN)/python -m phantora.validation hardware $(CASES)

setup: $(VENV)/installed

# torch first and exactly: an open range would fetch whatever is newest, and only these versions are known to work.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "$(TORCH)" numpy
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install -q -e ".[test]" "transformers==5.24.0" "accelerate==1.15.0" torch_geometric==2.8.1
	touch $@

$(VENV)/installed-frameworks: $(VENV)/installed-test requirements/frameworks.txt
	$(BIN)/python -m pip install -q --no-deps --ignore-requires-python -r requirements/frameworks.txt
	$(BIN)/python -m pip install -q --no-deps --target $(VENV)/torchtitan-0.2.2 torchtitan==0.2.2
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info
