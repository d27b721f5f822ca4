#!/bin/sh
# Creates or refreshes .venv with the package (editable, compiled) and the tools of extra `dev`.
# Says plainly what the machine lacks. Called by the Makefile; usage: tools/setup_env.sh PYTHON
set -eu
python=${1:-python3}

lacks() {
    printf 'rocmforge: %s\n' "$@" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    lacks "no '$python' on this machine: install Python 3.10 or newer, or name one: make PYTHON=python3.12 …"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    lacks "'$python' is Python $version, 3.10 or newer is needed: make PYTHON=python3.12 …"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    lacks "'$python' cannot make virtual environments: apt-get install python3-venv"
"$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    lacks "the headers of '$python' (Python.h) are missing: apt-get install python3-dev"
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null 2>&1 ||
    lacks "no C++ compiler ('$compiler'): apt-get install g++, or name one: make CXX=clang++ …"
echo 'int main() { return 0; }' | "$compiler" -std=c++20 -x c++ - -o /dev/null 2>/dev/null ||
    lacks "'$compiler' does not compile C++20: g++ 11 or newer does (apt-get install g++)"

if [ ! -x .venv/bin/python ]; then
    echo "rocmforge: creating .venv with Python $version"
    "$python" -m venv .venv
fi
pip=".venv/bin/python -m pip --disable-pip-version-check"
echo "rocmforge: installing the tools and building the CPU kernels (first time: three to five minutes)"
$pip install -q 'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.24' 'ninja>=1.11'
$pip install -q --no-build-isolation -e '.[dev]'
touch .venv/ready
