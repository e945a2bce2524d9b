#!/usr/bin/env bash
# Checks format and habits of the C++ files; with --fix rewrites them in the house format. Quiet when all is well.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh lint

mapfile -t files < <(git ls-files -co --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' | while read -r f; do
  [ -e "$f" ] && echo "$f"
done)
if [ "${1:-}" = --fix ]; then
  exec clang-format -i "${files[@]}"
fi
clang-format --dry-run --Werror "${files[@]}"

# Each file as the build compiles it, but for what clang-tidy's clang does not know: gcc's OpenMP and gcc-only flags.
log=build/clang-tidy.log
run-clang-tidy-19 -quiet -p build -j "${JOBS:-$(nproc)}" -extra-arg=-fno-openmp -extra-arg=-Wno-unknown-warning-option \
  -extra-arg=-Wno-ignored-optimization-argument "$PWD/(src|tests)/.*\.cpp" >"$log" 2>&1 || status=$?
if [ "${status:-0}" != 0 ] || grep -qE ': (warning|error): ' "$log"; then
  grep -E -A3 ': (warning|error): ' "$log" || tail -20 "$log"
  exit 1
fi
