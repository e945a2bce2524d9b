# All targets of the project; `make help` lists them. Each does its own set-up, once. JOBS=n limits parallel compiling.
.PHONY: help demo build test check test-cpus bench lint format cuda asan tsan fuzz wheel clean
.DEFAULT_GOAL := help
READY := .venv/.ready

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: build ## trains three small language models on this machine and compares them, in minutes
	.venv/bin/python scripts/demo.py $(ARGS)

build: build/build.ninja ## the library; then .venv/bin/python can import contextpool
	cmake --build --preset default $(JOBS:%=-j%)

test: build cuda ## format and types, then every test, C++ and Python; where there is nvcc, the CUDA sources are compiled
	scripts/lint.sh quick
	.venv/bin/python scripts/test.py

check: build ## everything slow: lint, sanitizers, fuzzing, other CPUs; a line for each
	.venv/bin/python scripts/check.py

test-cpus: build ## the tests of operators and modules with other CPU instructions, ours and PyTorch's
	.venv/bin/python scripts/test_cpus.py

bench: build ## speed and memory beside plain PyTorch (ARGS=--quick for a short run)
	.venv/bin/python bench/pool1d.py $(ARGS)
	.venv/bin/python bench/pool2d.py $(filter --quick,$(ARGS))

lint: build ## clang-format, ruff, mypy and clang-tidy; silence is success
	scripts/lint.sh

format: $(READY) ## rewrite the files in the house format
	scripts/lint.sh fix

cuda: build/build.ninja ## where there is nvcc but torch has no CUDA, compile the CUDA sources all the same
	if grep -q contextpool_cuda_check build/build.ninja; then \
	  cmake --build --preset default --target contextpool_cuda_check $(JOBS:%=-j%); fi

asan: build-asan/build.ninja ## every C++ test under the address and undefined-behaviour sanitizers
	cmake --build --preset asan $(JOBS:%=-j%)
	ctest --preset asan

tsan: build-tsan/build.ninja ## C++ tests of kernels, operators, files and data under the thread sanitizer
	cmake --build --preset tsan $(JOBS:%=-j%)
	ctest --preset tsan

fuzz: ## the parser of untrusted files on made-up ones, for FUZZ_SECONDS (60)
	scripts/fuzz.sh

wheel: $(READY) ## dist/contextpool-*.whl, for the torch in .venv
	CXX=$${CXX:-c++} .venv/bin/python -m pip wheel -q --no-build-isolation --no-deps --wheel-dir dist .

clean: ## remove everything built; .venv stays
	rm -rf build build-asan build-tsan build-fuzz build-wheel dist

$(READY): requirements.txt scripts/setup.sh
	scripts/setup.sh

build/build.ninja: $(READY) CMakePresets.json
	cmake --preset default --fresh

build-%/build.ninja: $(READY) CMakePresets.json
	cmake --preset $* --fresh
