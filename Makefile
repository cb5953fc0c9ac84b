# make demo | make test: each does all the set-up on a fresh machine first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Many tests start a Python of their own, and each would compile the package again where this is set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test long pretrained portable bounds lint docs wheel bench faults mutants clean

install: $(READY)

# constraints.txt holds the versions that were tested; torch is pinned there, so that pip takes the
# build that stands on the machine where there is one.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/stochens toy

# One process more than there are cores: some tests wait for others most of their time.
PARALLEL := -n $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n + 1 : 8))) --dist loadgroup
test: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) --ignore tests/pretrained

# Further cases of what `make test` tests, marked as tests/long.py says: those alone.
long: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) --ignore tests/pretrained -m long

# Networks of torchvision, timm and transformers as they come, and what Lightning, Trainer and FastAPI
# do with ours: minutes, most of them in exports.
pretrained: $(READY)
	$(BIN)/python -m pytest $(PARALLEL) tests/pretrained

# What compares numbers, once more: CAPABILITY is of torch's own loops (default, avx2 or avx512), and
# MKL and oneDNN are held to their oldest code, so that another CPU's rounding is seen on this one.
CAPABILITY := default
# tests/test_tolerance.py sees that whatever imports tests/tolerance.py is here.
NUMERICAL := $(addprefix tests/,estimators figures inputs kernels likelihoods methods metrics posterior program randomness run samplers \
	training lab/data/test_corruptions_oracles.py pretrained/test_programs_of_words.py \
	$(addprefix lab/experiments/test_,$(addsuffix .py,cifar_pool resume tabular)) \
	pretrained/test_real_networks.py) \
	$(addprefix tests/test_,$(addsuffix .py,casts cluster compare conversions cuda data data_rows likelihoods mapped members \
	networks objective prior products recurrent reference_noise replicas swag tolerance toy))
# Minutes of statistics, whose tolerances are standard errors and not rounding; make long has them.
STATISTICS := tests/samplers/test_truth.py tests/samplers/test_calibration_by_simulation.py \
	tests/training/test_natural_fresh.py
portable: $(READY)
	ATEN_CPU_CAPABILITY=$(CAPABILITY) ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE \
		$(BIN)/python -m pytest $(PARALLEL) -m "long or not long" $(NUMERICAL) \
		--ignore tests/samplers/test_samplers_numpyro.py $(addprefix --ignore ,$(STATISTICS))

# The suite on the lowest versions that pyproject.toml accepts, without what has no such old
# company: numpyro and opencv, and what needs them. torch 2.6 brings 3 GB of CUDA along.
LOWEST := build/lowest
bounds:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
		-e '.[arviz,lab,onnx,ray]' pandas pytest pytest-xdist hypothesis torchmetrics selenium
	$(LOWEST)/bin/python -m pytest $(PARALLEL) \
		--ignore tests/lab/data/test_corruptions_oracles.py $(ONLY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Built into build/site, which needs nothing from elsewhere; a warning is an error.
docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

# sdist and wheel into dist/, and the wheel tried in an empty environment. It needs no .venv.
wheel:
	PYTHON=$(PYTHON) .ci/wheel

bench: $(READY)
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/nuts.py

# The long form of tests/faults: 7 to 10 minutes, 10,000 damaged files of either sort.
faults: $(READY)
	$(BIN)/python -m tests.faults.kills --kills 200
	$(BIN)/python -m tests.faults.damage --files 10000

# 300 small faults in the package: which do the tests not notice? (MUTANTS="--only 'training/*'")
mutants: $(READY)
	$(BIN)/python -m tests.mutants.run $(MUTANTS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
