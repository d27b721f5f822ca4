"""ROCmForge: a GGUF inference engine inside an asv benchmark and regression suite.

`Engine`, `SamplingParams`, `Tokenizer` and every error can be imported from here. Each is loaded at
its first use, so that ``import rocmforge`` takes no time.
"""

TYPE_CHECKING = False  # true for type checkers, as typing.TYPE_CHECKING, which takes time to load

__all__ = [
    "CompileError",
    "DeviceError",
    "Engine",
    "EngineInUseError",
    "GGUFError",
    "MeasurementError",
    "ModelError",
    "NoSuchFileError",
    "OutOfMemoryError",
    "OutOfPagesError",
    "ProfilerError",
    "ResultFileError",
    "RocmforgeError",
    "SamplingParams",
    "TextError",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModelError",
]

if TYPE_CHECKING:
    from rocmforge.engine import Engine
    from rocmforge.errors import (
        CompileError,
        DeviceError,
        EngineInUseError,
        GGUFError,
        MeasurementError,
        ModelError,
        NoSuchFileError,
        OutOfMemoryError,
        OutOfPagesError,
        ProfilerError,
        ResultFileError,
        RocmforgeError,
        TextError,
        TokenizerError,
        UnsupportedModelError,
    )
    from rocmforge.sampling_params import SamplingParams
    from rocmforge.text.tokenizer import Tokenizer
else:
    _MODULES = {
        "Engine": "rocmforge.engine",
        "SamplingParams": "rocmforge.sampling_params",
        "Tokenizer": "rocmforge.text.tokenizer",
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULES.get(name, "rocmforge.errors")), name)

    def __dir__():
        return sorted({*globals(), *__all__})
