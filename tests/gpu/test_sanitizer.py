"""Kernels under AddressSanitizer: planted faults are caught and their line named, and the tests of
all kernels find none.

Every case is a process of its own, with the sanitizer preloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """#include "device.h"
struct Args { const u32x4* x; float* y; int n; };
KERNEL(past_the_end, Args, 64) {
    if (static_cast<int>(thread_x()) <= a.n) {
        a.y[thread_x()] = 1.0f;
    }
}
KERNEL(past_the_lds, Args, 64) {
    SHARED float values[64];
    values[thread_x()] = 1.0f;
    block_sync();
    a.y[thread_x() % 32] = values[thread_x() + static_cast<unsigned>(a.n) - 31u];
}
KERNEL(misaligned, Args, 64) {
    const char* bytes = reinterpret_cast<const char*>(a.x) + a.n / 8;
    a.y[thread_x() % 32] = static_cast<float>(load<u32x4>(bytes).x);
}
KERNEL(freed, Args, 64) {
    a.y[thread_x() % 32] = wave_sum(1.0f);
    block_sync();
}
"""

PROGRAM = """
import sys
from pathlib import Path
repo, kernel, device = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.path.insert(0, str(repo / "tests" / "standin"))
import build_standin
build_standin.load(build_standin.build(asan=True))
from rocmforge.gpu.hip import HipRuntime
from rocmforge.gpu.kernel_arguments import Arguments
runtime = HipRuntime(device)
headers = {"device.h": (repo / "kernels" / "device.h").read_text("utf-8")}
options = ["-std=c++17", f"-DWAVE={runtime.properties.wave_size}"]
code = runtime.compile(sys.stdin.read(), "planted.hip", headers, options)
function = runtime.function(runtime.load_module(code), kernel)
x, y = runtime.allocate(32 * 16), runtime.allocate(32 * 4)
runtime.fill(x, 0, 32 * 16)
arguments = Arguments("PPi", [x, y, 32], "hip")
if kernel == "freed":
    runtime.free(y)
runtime.launch(function, (2, 1, 1), 64, arguments)
runtime.synchronize()
print("survived")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process under AddressSanitizer."""
    library = subprocess.run(
        ["c++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(library).is_absolute():
        pytest.skip("this C++ compiler has no AddressSanitizer")
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "STANDIN_ASAN": "1",
        "STANDIN_TURN": "1",
        "TMPDIR": str(tmp_path_factory.mktemp("modules")),
    }


@pytest.mark.parametrize(
    "device",
    [pytest.param(0, id="wave32"), pytest.param(1, id="wave64", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    ("kernel", "line", "what"),
    [
        ("past_the_end", 5, "AddressSanitizer: heap-buffer-overflow"),
        ("past_the_lds", 12, "runtime error: index 64 out of bounds"),
        ("misaligned", 0, "misaligned address"),
        ("freed", 19, "AddressSanitizer: heap-use-after-free"),
    ],
)
def test_a_planted_fault_is_caught_and_its_line_named(
    environment: dict[str, str], repo: Path, kernel: str, line: int, what: str, device: int
) -> None:
    pytest.importorskip("hip", reason="hip-python is not installed")
    command = [sys.executable, "-c", PROGRAM, str(repo), kernel, str(device)]
    done = subprocess.run(
        command, env=environment, input=SOURCE, capture_output=True, text=True, timeout=200
    )
    assert done.returncode != 0, done.stdout
    assert "survived" not in done.stdout
    assert what in done.stderr
    assert (f"planted.hip:{line}" if line else "device.h:") in done.stderr


@pytest.mark.sanitizer
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("device", ["standin-wave32", "standin-wave64"])
def test_all_kernels_are_clean(environment: dict[str, str], repo: Path, device: str) -> None:
    """Every test that uses the stand-in's device, once more under AddressSanitizer.

    Not those of the runtime, which measure time, and not this one.
    """
    pytest.importorskip("hip", reason="hip-python is not installed")
    others = ["-m", "not sanitizer", "--ignore=tests/gpu/test_runtime.py"]
    selection = ["-k", device, *others, "tests/gpu"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selection],
        env=environment,
        cwd=repo,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    assert " passed" in done.stdout
