#!/usr/bin/env bash
# Everything that needs a GPU, in one go: scripts/gpu.sh FOLDER
# Builds (build-gpu; and build-gpu-plain, for initcheck), takes the figures of docs/performance.md with nothing beside
# them, then runs the tests, the lab's check and compute-sanitizer all at once. FOLDER gets their output; one line each
# is printed, and the exit status is 1 if one failed. PYTHON (python3) names a Python whose torch has CUDA; GOOGLETEST
# sources of GoogleTest, where no package is installed.
set -uo pipefail
out=$(realpath -m "${1:?usage: scripts/gpu.sh FOLDER}")
googletest=${GOOGLETEST:+$(realpath "$GOOGLETEST")}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} failed=$(mktemp)
trap 'rm -f "$failed"' EXIT
mkdir -p "$out"

step() {  # NAME COMMAND...: its output to FOLDER/NAME.txt; a line of how it ended
  local name=$1 rc=0
  shift
  "$@" >"$out/$name.txt" 2>&1 || rc=$?
  if [[ $rc == 0 ]]; then
    echo "[$SECONDS s] $name: $(tail -n 1 "$out/$name.txt" | cut -c 1-150)"
  else
    echo "$name" >>"$failed"
    echo "[$SECONDS s] $name: FAILED ($rc), see $out/$name.txt"
  fi
}

build() {  # FOLDER TARGETS OPTIONS...
  cmake -S . -B "$1" -G Ninja -DCONTEXTPOOL_CUDA=ON -DCMAKE_PREFIX_PATH="$("$python" -c \
    'import torch; print(torch.utils.cmake_prefix_path)')" "${@:3}" && cmake --build "$1" --target $2
}

plain=$("$python" -c 'import torch; print("%d%d-real" % torch.cuda.get_device_capability())' 2>/dev/null) || {
  echo "scripts/gpu.sh: the torch of $python sees no GPU; name another Python in PYTHON" >&2
  exit 2
}
step build-plain build build-gpu-plain contextpool_ops -DCONTEXTPOOL_TESTS=OFF \
  -DCONTEXTPOOL_CUDA_ARCHITECTURES="$plain" &
step build build build-gpu "contextpool_ops contextpool_ops_test" \
  ${googletest:+-DCONTEXTPOOL_GOOGLETEST="$googletest"}
wait
[[ -s $failed ]] && exit 1
export PYTHONPATH=$PWD/build-gpu/python

lab=("$python" bench/cuda/lab.py)
for round in 1 2; do step time-$round "${lab[@]}" time; done
step linear "${lab[@]}" linear
step few "${lab[@]}" few
step parts "${lab[@]}" parts
step host "${lab[@]}" host
step maps "$python" bench/cuda/pool2d.py

sanitize() {  # NAME TOOL WHAT...
  step "$1" compute-sanitizer --error-exitcode 9 --tool "$2" "$python" bench/cuda/sanitize.py "${@:3}"
}
step check "${lab[@]}" check &
step tests-cpp build-gpu/tests/contextpool_ops_test --gtest_filter='*cuda*' --gtest_brief=1 &
step tests-pool1d "$python" -m pytest -q tests/python/test_pool1d_cuda.py &
step tests-pool2d "$python" -m pytest -q tests/python/test_pool2d_cuda.py tests/python/test_pool2d_edges.py &
sanitize memcheck memcheck 70 200 1300 8500 60000 maps &
sanitize racecheck-short racecheck 70 200 &
sanitize racecheck-long racecheck 1300 &
sanitize racecheck-maps racecheck maps &
PYTHONPATH=$PWD/build-gpu-plain/python sanitize initcheck initcheck 70 200 1300 &
wait
[[ ! -s $failed ]]
