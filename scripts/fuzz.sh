#!/usr/bin/env bash
# Fuzzes each parser of untrusted files for FUZZ_SECONDS (60), from small files made by tests/fuzz/seeds.py and what
# earlier runs found worth keeping (build-fuzz/corpus). Fails, leaving the input in build-fuzz, if anything is found.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh fuzz

cmake -S tests/fuzz -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++-19 >/dev/null
cmake --build build-fuzz ${JOBS:+-j"$JOBS"}
python3 tests/fuzz/seeds.py build-fuzz/seeds
for name in safetensors text; do
  mkdir -p build-fuzz/corpus/$name
  [ ! -e tests/fuzz/$name.dict ] || dict=-dict=tests/fuzz/$name.dict
  build-fuzz/${name}_fuzz -max_total_time="${FUZZ_SECONDS:-60}" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
    ${dict:-} -artifact_prefix=build-fuzz/ -print_final_stats=1 build-fuzz/corpus/$name build-fuzz/seeds/$name
  dict=
done
