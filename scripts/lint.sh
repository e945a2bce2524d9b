#!/usr/bin/env bash
# Format and habits of the C++ and Python files; quiet when all is well.
#   scripts/lint.sh          clang-format, ruff, mypy and clang-tidy (which keeps what was clean, see scripts/tidy.py)
#   scripts/lint.sh quick    all but clang-tidy: seconds
#   scripts/lint.sh fix      rewrites the files in the house format
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
for tool in clang-format ruff mypy; do
  [ -x $bin/$tool ] || { echo "lint: $tool is missing; .venv/bin/pip install -r requirements.txt brings it" >&2; exit 1; }
done

mapfile -t files < <(find bench include src tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \))
if [ "${1:-}" = fix ]; then
  $bin/clang-format -i "${files[@]}"
  exec $bin/ruff check --quiet --fix
fi
$bin/clang-format --dry-run --Werror "${files[@]}"
$bin/ruff check --quiet
$bin/mypy --no-error-summary
if [ "${1:-}" != quick ]; then
  scripts/setup.sh lint
  $bin/python scripts/tidy.py
fi
