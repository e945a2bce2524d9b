#!/usr/bin/env bash
# Makes this machine able to build and test ContextPool: the Debian packages that are missing, and .venv with torch.
# What is already there is used and nothing is installed; only a missing Debian package needs root.
# Usage: scripts/setup.sh [lint|fuzz]   (what `make lint` or `make fuzz` needs, instead)
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${PATH//"$PWD/.venv/bin:"/} # .venv must not be made from itself
say() { echo "setup: $*"; }
fail() { say "$*" >&2; exit 1; }

missing=()
need() { # need PACKAGE COMMAND...: the package is missing if the command fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

install_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  local root=()
  command -v apt-get >/dev/null || fail "please install what Debian calls: ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    { command -v sudo && { sudo -n true || [ -t 0 ]; }; } >/dev/null 2>&1 ||
      fail "not root: ask for these Debian packages: ${missing[*]}"
    root=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

if [ "${1:-}" = lint ]; then
  # Since 21 it passes over the headers of others, which for torch's is five sixths of the time.
  clang_tidy=23.1.4
  .venv/bin/python -c "from importlib.metadata import version; assert version('clang-tidy') == '$clang_tidy'" 2>/dev/null ||
    .venv/bin/python -m pip install -q --disable-pip-version-check "clang-tidy==$clang_tidy"
  exit
fi
if [ "${1:-}" = fuzz ]; then
  need clang-19 command -v clang++-19
  # The library of libFuzzer is a package of its own.
  need libclang-rt-19-dev sh -c 'test -e "$(clang++-19 -print-runtime-dir)/libclang_rt.fuzzer.a" ||
    test -e "$(clang++-19 -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a"'
  need cmake command -v cmake
  need ninja-build command -v ninja
  need nlohmann-json3-dev sh -c 'echo "#include <nlohmann/json.hpp>" | clang++-19 -E -x c++ -'
  need libjpeg62-turbo-dev sh -c 'printf "#include <stdio.h>\n#include <jpeglib.h>\n" | clang++-19 -E -x c++ -'
  need libpng-dev sh -c 'echo "#include <png.h>" | clang++-19 -E -x c++ -'
  need zlib1g-dev sh -c 'echo "#include <zlib.h>" | clang++-19 -E -x c++ -'
  install_missing
  exit
fi

# The Python to build with: an active environment's, else python3.
python=python3
if [ -n "${VIRTUAL_ENV:-}" ] && [ "$VIRTUAL_ENV" != "$PWD/.venv" ]; then python=$VIRTUAL_ENV/bin/python; fi
command -v "$python" >/dev/null || fail "python3 is needed"

need g++ command -v g++
need cmake command -v cmake
need ninja-build command -v ninja
need ccache command -v ccache
need libgtest-dev sh -c 'echo "#include <gtest/gtest.h>" | g++ -E -x c++ -'
need libcli11-dev sh -c 'echo "#include <CLI/CLI.hpp>" | g++ -E -x c++ -'
need nlohmann-json3-dev sh -c 'echo "#include <nlohmann/json.hpp>" | g++ -E -x c++ -'
need libtomlplusplus-dev sh -c 'echo "#include <toml++/toml.h>" | g++ -std=c++20 -E -x c++ -'
need libjpeg62-turbo-dev sh -c 'printf "#include <stdio.h>\n#include <jpeglib.h>\n" | g++ -E -x c++ -'
need libpng-dev sh -c 'echo "#include <png.h>" | g++ -E -x c++ -'
need zlib1g-dev sh -c 'echo "#include <zlib.h>" | g++ -E -x c++ -'
need libsentencepiece-dev sh -c 'echo "#include <sentencepiece_trainer.h>" | g++ -E -x c++ -'
need python3-venv "$python" -c 'import ensurepip'
need python3-dev "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
install_missing

# The torch to use: one that Torch_DIR or CMAKE_PREFIX_PATH names, else the Python's own, else one of our own.
site_of_torch() {
  local root
  for root in ${Torch_DIR:+"$Torch_DIR/../../.."} $(tr : '\n' <<<"${CMAKE_PREFIX_PATH:-}" | sed 's|$|/../..|'); do
    if [ -e "$root/lib/libtorch_cpu.so" ] && [ -e "$root/__init__.py" ]; then (cd "$root/.." && pwd) && return; fi
  done
  "$python" -c 'import os, importlib.util as u; print(os.path.dirname(os.path.dirname(u.find_spec("torch").origin)))' \
    2>/dev/null || true
}
torch_site=$(site_of_torch)

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  rm -rf .venv
  "$python" -m venv .venv
fi
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$PWD/build/python" >"$site/contextpool_build_tree.pth"
pip=(.venv/bin/python -m pip install -q --disable-pip-version-check)
if [ -n "$torch_site" ]; then
  say "using torch of $torch_site"
  echo "$torch_site" >"$site/other_torch.pth"
  # Other versions of the rest are as good here: what that Python has stays. torchvision, and timm which asks for it,
  # would bring a torch of their own.
  grep -v -e '^torch' -e '^timm' -e '^#' requirements.txt | sed 's/==.*//' | "${pip[@]}" -r /dev/stdin ||
    say "continuing without some of requirements.txt; whatever needs them will say so"
else
  rm -f "$site/other_torch.pth"
  say "installing the packages of requirements.txt into .venv (once; torch is large)"
  "${pip[@]}" -r requirements.txt
fi
.venv/bin/python -c 'import torch; print("setup: ready, torch", torch.__version__)'
touch .venv/.ready
