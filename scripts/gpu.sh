#!/usr/bin/env bash
# Everything that needs a GPU:
#
#   scripts/gpu.sh FOLDER            build, figures of docs/performance.md, tests, the kernel lab, compute-sanitizer
#   scripts/gpu.sh FOLDER tests      build and tests only: every test, C++ and Python, on the CPU and on the GPU
#   scripts/gpu.sh FOLDER figures    build and figures only
#   scripts/gpu.sh FOLDER sanitize   build, the kernel lab's check and compute-sanitizer only
#
# FOLDER gets the output of each step. A line each is printed, with the end of the output where a step failed or was
# stopped at its limit; the exit status is 1 if one was. Builds are in build-gpu (and build-gpu-plain, for initcheck).
# PYTHON (python3) names a Python whose torch has CUDA and that has pytest; GOOGLETEST the sources of GoogleTest and
# TOMLPLUSPLUS the folder of toml++'s headers, where no packages of them are installed; JOBS limits parallel work (all
# cores); LIMIT the seconds of a step of the tests (300). BUILT=1 takes build-gpu as it is, built before or elsewhere.
# Nothing else should use the GPU: programs that share it take turns, and many small tests then run into the limit.
# CONTEXTPOOL_CUDA=OFF tries the script where there is no GPU: the tests mode, on the CPU alone.
set -uo pipefail
out=$(realpath -m "${1:?usage: scripts/gpu.sh FOLDER [tests|figures|sanitize]}") mode=${2:-all}
case $mode in all | tests | figures | sanitize) ;; *)
  echo "scripts/gpu.sh: $mode is not one of tests, figures, sanitize" >&2
  exit 2
  ;;
esac
googletest=${GOOGLETEST:+$(realpath "$GOOGLETEST")} toml=${TOMLPLUSPLUS:+$(realpath "$TOMLPLUSPLUS")}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} cuda=${CONTEXTPOOL_CUDA:-ON} jobs=${JOBS:-$(nproc)} limit=${LIMIT:-300} failed=$(mktemp)
trap 'rm -f "$failed"' EXIT
mkdir -p "$out"

step() { # NAME COMMAND...: its output to FOLDER/NAME.txt; a line of how it ended, and of a failure the last lines
  local name=$1 rc=0 start=$SECONDS log=$out/$1.txt how
  shift
  "$@" >"$log" 2>&1 || rc=$?
  how="[$SECONDS s] $name ($((SECONDS - start)) s)"
  if [[ $rc == 0 ]]; then
    echo "$how: $(tail -n 1 "$log" | cut -c 1-150)"
  else
    echo "$name" >>"$failed"
    # At once, so that the lines of another step do not come between.
    echo "$how: FAILED ($rc), see $log"$'\n'"$(tail -n 15 "$log" | cut -c 1-160 | sed 's/^/    /')"
  fi
}

build() { # FOLDER TARGETS OPTIONS...
  cmake -S . -B "$1" -G Ninja -DCONTEXTPOOL_CUDA="$cuda" -DCONTEXTPOOL_QUICK_BUILD=ON -DPython3_EXECUTABLE="$(
    command -v "$python"
  )" "${@:3}" && cmake --build "$1" -j "$jobs" --target $2
}

plain=$("$python" -c 'import torch; print("%d%d-real" % torch.cuda.get_device_capability())' 2>/dev/null) ||
  [[ $cuda == OFF && $mode == tests ]] || {
  echo "scripts/gpu.sh: the torch of $python sees no GPU; name another Python in PYTHON" >&2
  exit 2
}
targets="contextpool_ops contextpool_ops_test"
[[ $mode == all || $mode == tests ]] && targets=all
if [[ $mode == all || $mode == sanitize ]]; then
  step build-plain build build-gpu-plain contextpool_ops -DCONTEXTPOOL_TESTS=OFF \
    -DCONTEXTPOOL_CUDA_ARCHITECTURES="$plain" ${toml:+-DCONTEXTPOOL_TOMLPLUSPLUS="$toml"} &
fi
[[ -n ${BUILT:-} ]] || step build build build-gpu "$targets" ${googletest:+-DCONTEXTPOOL_GOOGLETEST="$googletest"} \
    ${toml:+-DCONTEXTPOOL_TOMLPLUSPLUS="$toml"}
wait
[[ -s $failed ]] && exit 1
export PYTHONPATH=$PWD/build-gpu/python

figures() {
  local lab=("$python" bench/cuda/lab.py)
  for round in 1 2; do step time-$round "${lab[@]}" time; done
  step linear "${lab[@]}" linear
  step few "${lab[@]}" few
  step parts "${lab[@]}" parts
  step host "${lab[@]}" host
  step maps "$python" bench/cuda/pool2d.py
  step short "$python" bench/cuda/short_convolution.py
  step short-parts "$python" bench/cuda/short_convolution.py --parts
  step dynamic "$python" bench/cuda/dynamic_convolution.py
}

limited() { # NAME COMMAND...: a step of the tests; one that hangs costs its own time only
  local few=(OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive TORCHINDUCTOR_COMPILE_THREADS=2)
  step "$1" timeout -k 10 "$limit" env "${few[@]}" "${@:2}"
}

native() { # NAME LAYER DEVICE [PARTS PART]: a program of C++ tests. Those of kernels and ops run on all devices.
  limited "$1" env CONTEXTPOOL_TEST_DEVICE="$3" GTEST_TOTAL_SHARDS="${4:-1}" GTEST_SHARD_INDEX="${5:-0}" \
    "build-gpu/tests/contextpool_$2_test" --gtest_brief=1
}

pytest() { # NAME FILES...: where a test stands is printed before the limit
  limited "$1" "$python" -m pytest -q --tb=short --disable-warnings -p no:cacheprovider \
    -o faulthandler_timeout=$((limit * 3 / 4)) "${@:2}"
}

python_tests() { # the files, the long ones first: those that compile, then by size
  local first=(tests/python/test_{bench,context_pool_torch,pool1d_torch,pool2d}.py)
  ls "${first[@]}"
  ls -S tests/python/test_*.py | grep -vxF "$(printf '%s\n' "${first[@]}")" |
    grep -v -e _packaging.py -e _docs.py # about a fresh checkout, its build/ and a network
}

tests() { # two threads each; no more at a time than three quarters of the cores, as they are not always at work
  local slots=$((jobs * 3 / 4 > 1 ? jobs * 3 / 4 : 1)) devices=(cpu) files file part
  [[ $cuda == OFF ]] || devices+=(cuda)
  mapfile -t files < <(python_tests)
  start() {
    while (($(jobs -pr | wc -l) >= slots)); do wait -n; done
    "$@" &
  }
  file_step() { start pytest "$(basename "$1" .py | tr _ -)" "$1"; }
  for file in "${files[@]:0:4}"; do file_step "$file"; done
  for part in 0 1 2; do start native cpp-ops-$part ops cpu 3 $part; done
  start native cpp-kernels kernels cpu
  start native cpp-cuda-kernels cuda_kernels cpu
  for layer in train nn models eval runtime; do
    for device in "${devices[@]}"; do start native "cpp-$layer-$device" "$layer" "$device"; done
  done
  if [[ $cuda != OFF ]]; then # Python's modules, on the GPU; below, all of Python on the CPU, operators on both
    local modules="tests/python/test_context_pool.py tests/python/test_steps.py tests/python/test_block.py"
    CONTEXTPOOL_TEST_DEVICE=cuda start pytest modules-cuda $modules
  fi
  for file in "${files[@]:4}"; do file_step "$file"; done
  for layer in io data reproduce; do start native "cpp-$layer" "$layer" cpu; done
  wait
}

sanitize() { # NAME TOOL WHAT...
  step "$1" compute-sanitizer --error-exitcode 9 --tool "$2" "$python" bench/cuda/sanitize.py "${@:3}"
}

sanitizers() {
  step check "$python" bench/cuda/lab.py check &
  step check-short "$python" bench/cuda/short_convolution.py --check &
  sanitize memcheck memcheck 70 200 1300 8500 60000 groups maps short dynamic windows &
  sanitize racecheck-short racecheck 70 200 &
  sanitize racecheck-long racecheck 1300 &
  sanitize racecheck-maps racecheck groups maps short dynamic windows &
  PYTHONPATH=$PWD/build-gpu-plain/python sanitize initcheck initcheck 70 200 1300 groups short dynamic windows &
  wait
}

[[ $mode == all || $mode == figures ]] && figures
[[ $mode == all || $mode == tests ]] && tests
[[ $mode == all || $mode == sanitize ]] && sanitizers
if [[ -s $failed ]]; then
  echo "failed:" $(<"$failed")
  exit 1
fi
