"""Run with Debian's ROCm libraries on LD_LIBRARY_PATH: compiles builds with hiprtc, in hip-python.

Standard input: JSON lists of file, defines and architecture. For each, one JSON line comes out:
the kernels that the code object holds, or the compiler's log. A process of its own, since this
hiprtc aborts on architectures that it does not know.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from rocmforge.errors import CompileError
from rocmforge.gpu import hip
from rocmforge.gpu.code_object import read_code_object
from rocmforge.gpu.compiler import compile_options, wave_size
from rocmforge.gpu.kernel_files import kernels_folder, read_kernel


def main() -> None:
    """Compile what stands on standard input."""
    for file, defines, architecture in json.load(sys.stdin):
        source, headers = read_kernel(kernels_folder(), file)
        options = compile_options(wave_size(architecture), defines)
        try:
            code = hip.compile_code_object(source, file, headers, options, architecture)
        except CompileError as error:
            print(json.dumps(str(error)), flush=True)
            continue
        kernels = [dataclasses.asdict(kernel) for kernel in read_code_object(code)]
        print(json.dumps(kernels), flush=True)


if __name__ == "__main__":
    main()
