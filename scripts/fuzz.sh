#!/usr/bin/env bash
# Fuzzes the parsers of untrusted files for FUZZ_SECONDS (60) each, or those named (safetensors, text, jpeg, png,
# archives), from small files made by tests/fuzz/seeds.py and what earlier runs found worth keeping (build-fuzz/corpus).
# Fails, leaving the input in build-fuzz, if anything is found.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh fuzz

cmake -S tests/fuzz -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 >/dev/null
cmake --build build-fuzz ${JOBS:+-j"$JOBS"}
python3 tests/fuzz/seeds.py build-fuzz/seeds
fuzz() { # NAME LONGEST_INPUT OPTIONS...
  local corpus=build-fuzz/corpus/$1
  mkdir -p "$corpus"
  echo "fuzz: $1"
  build-fuzz/"$1"_fuzz -max_total_time="${FUZZ_SECONDS:-60}" -max_len="$2" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix=build-fuzz/"$1"- -print_final_stats=1 "${@:3}" "$corpus" build-fuzz/seeds/"$1"
}
for name in ${*:-safetensors text jpeg png archives}; do
  case $name in
  safetensors) fuzz safetensors 4096 -dict=tests/fuzz/safetensors.dict ;;
  archives) fuzz archives 8192 ;; # two records of CIFAR, sixteen blocks of tar
  *) fuzz "$name" 4096 ;;
  esac
done
