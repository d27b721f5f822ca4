#!/bin/sh
# Runs the tests of gpu/hip.py, over the tests' stand-in of the HIP runtime, with each supported
# version of hip-python (300 MB each, taken away again). Prints which test makes which call.
# It needs no GPU and no ROCm.
set -eu
cd "$(dirname "$0")/.."
mkdir -p build
folder=$(mktemp -d build/hip-python-XXXXXX)
trap 'rm -rf "$folder"' EXIT
for version in 10.0 7.2 7.1 7.0 6.4; do
    .venv/bin/python -m pip install -q --target "$folder/$version" "hip-python==$version.*"
    echo "hip-python $version:"
    PYTHONPATH="$folder/$version" .venv/bin/python - "$version" <<'PYTHON'
import sys
import hip
if f"/{sys.argv[1]}/" not in hip.__file__:
    raise SystemExit(f"hip-python {sys.argv[1]} is not the one that is imported: {hip.__file__}")
PYTHON
    PYTHONPATH="$folder/$version" .venv/bin/python -m pytest -q -s -m "not gpu" \
        tests/gpu/test_runtime.py tests/gpu/test_hip_runtime.py \
        tests/gpu/test_standin.py tests/gpu/test_runtime_calls.py
    rm -rf "${folder:?}/$version"
done
