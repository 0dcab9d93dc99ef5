# make demo        from nothing to a running example
# make test        install what the tests need, and pass them        make test-quick  a few of each, while editing
# make test-all    the long random ones too, as CI does              make test-gpu    what needs a GPU
# make test-torch TORCH=2.15.0    what depends on the version of torch, with that version
# make check       format, lint, types, sizes                        make bench       the control plane's figures
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all test-quick test-torch test-gpu check bench clean

demo: .venv/demo
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/train_mlp.py --plot losses.png
	$(BIN)/python -m gt run examples/torch_lstm.py

# one process a core; one that crashes fails its test, and another takes its place; what pytest makes of the files is kept
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: .venv/test
	$(PYTEST) -m "not long"

test-all: .venv/test .venv/programs .venv/browser .venv/sshd .venv/slurm .venv/hosts .venv/ray
	$(PYTEST)

test-quick: .venv/test
	$(PYTEST) -m "not long" --quick

# the tests of the device of torch, of what workers compute with torch, and of torch's names, in an environment of their own
TORCH ?= 2.15.0
TORCH_BIN := .venv-torch-$(TORCH)/bin
TORCH_TESTS := $(wildcard tests/test_torch_*.py) $(addprefix tests/test_,$(addsuffix .py,ops gradients opinfo tensor nn \
	functional optim compile compiled_module hot_levels hot_kept_code saving saving_objects))

test-torch: .venv-torch-$(TORCH)/test
	PYTHONDONTWRITEBYTECODE= $(TORCH_BIN)/python -m pytest --numprocesses auto --dist worksteal $(TORCH_TESTS)

.venv-torch-$(TORCH)/test: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	{ grep -v '^torch' constraints.txt; echo torch==$(TORCH); } > .venv-torch-$(TORCH)/constraints.txt
	$(TORCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c .venv-torch-$(TORCH)/constraints.txt -e '.[worker,test]'
	touch $@

# what needs a GPU, one is enough; the interpreter is the machine's own if it has torch: make test-gpu PYTHON=python3
test-gpu:
	$(PYTHON) -m pytest tests/test_plane_gpu.py tests/test_sharding_gpu.py tests/test_hot_gpu.py tests/test_products_gpu.py tests/test_pipeline_gpu.py tests/test_uploads_gpu.py tests/test_ops.py tests/test_gradients.py tests/test_philox.py

check: .venv/check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/support/sizes.py

bench: .venv/test
	$(BIN)/python benchmarks/control_plane.py

# one stamp an extra: installed when the stamp is older than what it was made from
# (and GT's bytecode is made here once, for machines where Python is told not to write any)
.venv/worker: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[worker]'
	$(BIN)/python -m compileall -q gt
	touch $@

.venv/demo: .venv/worker
	$(PIP) -e '.[worker,demo]'
	touch $@

.venv/test: .venv/worker
	$(PIP) -e '.[worker,test]'
	touch $@

# other people's models and tools, which tests/test_programs.py runs with GT
.venv/programs: .venv/worker
	$(PIP) -e '.[worker,programs]'
	touch $@

# a browser for tests of the dashboard and of traces in Perfetto, where that is easy; without one they are skipped
.venv/browser: | .venv/test
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		{ timeout 120 apt-get update -qq; timeout 240 apt-get install -qq -y --no-install-recommends chromium; } > /dev/null 2>&1; } || \
		echo "no Chromium: the tests in a browser are skipped"
	touch $@

# a server of ssh for tests/test_up.py, in the same way; only its program is used, with settings of the test
.venv/sshd: | .venv/test
	@[ -x /usr/sbin/sshd ] || command -v sshd > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		{ timeout 120 apt-get update -qq; timeout 240 apt-get install -qq -y --no-install-recommends openssh-server; } > /dev/null 2>&1; } || \
		echo "no sshd: the tests of gt up over ssh are skipped"
	touch $@

# Slurm's daemons for tests/test_slurm.py, in the same way
.venv/slurm: | .venv/test
	@command -v sbatch > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		{ timeout 120 apt-get update -qq; timeout 240 apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge; } > /dev/null 2>&1; } || \
		echo "no Slurm: the tests of gt.launch.slurm are skipped"
	touch $@

# network namespaces as hosts for tests/test_hosts.py and test_doctor_cluster.py, in the same way
.venv/hosts: | .venv/test
	@command -v ip > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		{ timeout 120 apt-get update -qq; timeout 240 apt-get install -qq -y --no-install-recommends iproute2; } > /dev/null 2>&1; } || \
		echo "no iproute2: tests on several hosts are skipped"
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 > /dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		{ timeout 120 apt-get update -qq; timeout 240 apt-get install -qq -y --no-install-recommends libfaketime; } > /dev/null 2>&1; } || \
		echo "no libfaketime: the test of a host with a wrong clock is skipped"
	touch $@

# for tests/test_ray.py
.venv/ray: .venv/worker
	$(PIP) -e '.[worker,ray]'
	touch $@

.venv/check: .venv/worker
	$(PIP) -e '.[worker,check]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv .venv-torch-* build *.egg-info
