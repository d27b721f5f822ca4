"""Peak memory of loading a model and generating, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rocmforge.model.synthetic import make_model

_MEASURE = """
import json, sys
from rocmforge.engine import Engine
from rocmforge.profiling.process_memory import peak_memory_bytes
from rocmforge.sampling import SamplingParams
engine = Engine.from_gguf(sys.argv[1], ctx=1024, threads=2)
loaded = peak_memory_bytes()
prompt = [7 * i % 1000 for i in range(700)]
tokens = sum(1 for _ in engine.generate([prompt], SamplingParams(max_tokens=4)))
peak = peak_memory_bytes()
print(json.dumps({"tokens": tokens, "kv": engine.cache.nbytes, "loaded": loaded, "peak": peak}))
"""


def test_peak_memory(tmp_path: Path) -> None:
    """At most the file, the KV cache and 300 MB.

    The vocabulary of 151,936 is tied to the output: 272 MB of 336. Neither a copy of all weights
    nor the whole output matrix beside its packed form has room.
    """
    path = make_model(tmp_path / "big.gguf", "0.5B", "F16", layers=2)
    size = path.stat().st_size
    assert size > 300e6
    try:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, path], capture_output=True, text=True, check=True
        )
    finally:
        path.unlink()
    measured = json.loads(done.stdout)
    assert measured["tokens"] == 4
    assert measured["peak"] > 0.9 * size  # or something else was measured
    assert measured["peak"] <= size + measured["kv"] + 300e6, measured
