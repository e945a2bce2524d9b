# Every door of the project; `make help` lists them. Each does its own set-up, once. JOBS=n limits parallel compiling.
.PHONY: help demo build test bench lint format asan fuzz wheel clean
.DEFAULT_GOAL := help
READY := .venv/.ready

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: build ## trains three small language models on this machine and compares them, in minutes
	.venv/bin/python scripts/demo.py

build: build/build.ninja ## the library; then .venv/bin/python can import contextpool
	cmake --build --preset default $(JOBS:%=-j%)

test: build ## every test, C++ and Python; where there is nvcc, the CUDA sources are compiled too
	if grep -q contextpool_cuda_check build/build.ninja; then \
	  cmake --build --preset default --target contextpool_cuda_check $(JOBS:%=-j%); fi
	.venv/bin/python scripts/test.py

bench: build ## speed and memory beside plain PyTorch (ARGS=--quick for a short run)
	.venv/bin/python bench/pool1d.py $(ARGS)
	.venv/bin/python bench/pool2d.py $(filter --quick,$(ARGS))

lint: build/build.ninja ## clang-format and clang-tidy; silence is success
	scripts/lint.sh

format: ## rewrite the C++ files in the house format
	scripts/lint.sh --fix

asan: build-asan/build.ninja ## C++ tests of kernels, operators and files under the address and undefined-behaviour sanitizers
	cmake --build --preset asan $(JOBS:%=-j%) --target contextpool_kernels_test contextpool_ops_test contextpool_io_test
	ctest --preset asan

fuzz: ## the parser of untrusted files on made-up ones, for FUZZ_SECONDS (60)
	scripts/fuzz.sh

wheel: $(READY) ## dist/contextpool-*.whl, for the torch in .venv
	CXX=$${CXX:-c++} .venv/bin/python -m pip wheel -q --no-build-isolation --no-deps --wheel-dir dist .

clean: ## remove everything built; .venv stays
	rm -rf build build-asan build-fuzz build-wheel dist

$(READY): requirements.txt scripts/setup.sh
	scripts/setup.sh

build/build.ninja: $(READY) CMakePresets.json
	cmake --preset default --fresh

build-asan/build.ninja: $(READY) CMakePresets.json
	cmake --preset asan --fresh
