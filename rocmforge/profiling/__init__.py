"""Profiling: where a model's time and memory go, and what limits it. For example::

    from rocmforge.profiling import Options, profile_model
    profile = profile_model(Options("model.gguf", "cpu"))
    print(profile.verdicts[0].summary)

Each of these names can be imported from here and is loaded at its first use:

- all at once: `profile_model`, `Profile`; `write_trace`, `write_roofline`, `write_html`
- time: `KernelTimer`, `Telemetry`, `request` and `first_token`, `LaunchTracker`, `recommend`
- memory: `memory_profile`, `device_memory`
- the device meanwhile: `DeviceMonitor`, `Watch`, `EnergyMeter`
- limits: `measure_peaks`, `measure_ceilings`, `phase_verdict`, `kernel_verdict`, `run_verdict`
- profilers of others: `find_tools`, `profile_with`, `read`
"""

TYPE_CHECKING = False  # true for type checkers, as typing.TYPE_CHECKING, which takes time to load

__all__ = [
    "DeviceMemory",
    "DeviceMonitor",
    "Energy",
    "EnergyMeter",
    "ExecutionSummary",
    "ExternalProfile",
    "FirstToken",
    "KernelTimer",
    "KvMemory",
    "LaunchTracker",
    "Look",
    "MemoryProfile",
    "Monitored",
    "Op",
    "Options",
    "Peaks",
    "Phase",
    "Profile",
    "Prompt",
    "Recommendation",
    "Recording",
    "Request",
    "RunEnvironment",
    "Telemetry",
    "Times",
    "Tool",
    "Verdict",
    "Watch",
    "device_memory",
    "find_tools",
    "first_token",
    "kernel_verdict",
    "measure_ceilings",
    "measure_peaks",
    "memory_profile",
    "phase_verdict",
    "profile_model",
    "profile_with",
    "prompt_of",
    "read",
    "recommend",
    "request",
    "run_verdict",
    "write_html",
    "write_roofline",
    "write_trace",
]

if TYPE_CHECKING:
    from rocmforge.profiling.bottleneck import phase_verdict
    from rocmforge.profiling.counter_rules import kernel_verdict, run_verdict
    from rocmforge.profiling.energy import Energy, EnergyMeter
    from rocmforge.profiling.external import ExternalProfile, profile_with
    from rocmforge.profiling.html_report import write_html
    from rocmforge.profiling.launches import LaunchTracker, Recommendation, recommend
    from rocmforge.profiling.memory import (
        DeviceMemory,
        KvMemory,
        MemoryProfile,
        device_memory,
        memory_profile,
    )
    from rocmforge.profiling.monitor import DeviceMonitor, Look, Monitored
    from rocmforge.profiling.profile import FirstToken, Op, Phase, Profile, Verdict
    from rocmforge.profiling.readers.read import read
    from rocmforge.profiling.readers.records import Recording
    from rocmforge.profiling.roofline import Peaks, measure_peaks
    from rocmforge.profiling.roofline_picture import write_roofline
    from rocmforge.profiling.run import Options, profile_model
    from rocmforge.profiling.run_environment import RunEnvironment, Watch
    from rocmforge.profiling.telemetry import ExecutionSummary, Telemetry, measure_ceilings
    from rocmforge.profiling.timer import KernelTimer, Times
    from rocmforge.profiling.tools import Tool, find_tools
    from rocmforge.profiling.trace import write_trace
    from rocmforge.profiling.ttft import Prompt, Request, first_token, prompt_of, request
else:
    _MODULES = {
        "phase_verdict": "rocmforge.profiling.bottleneck",
        "kernel_verdict": "rocmforge.profiling.counter_rules",
        "run_verdict": "rocmforge.profiling.counter_rules",
        "Energy": "rocmforge.profiling.energy",
        "EnergyMeter": "rocmforge.profiling.energy",
        "ExternalProfile": "rocmforge.profiling.external",
        "profile_with": "rocmforge.profiling.external",
        "write_html": "rocmforge.profiling.html_report",
        "LaunchTracker": "rocmforge.profiling.launches",
        "Recommendation": "rocmforge.profiling.launches",
        "recommend": "rocmforge.profiling.launches",
        "DeviceMemory": "rocmforge.profiling.memory",
        "KvMemory": "rocmforge.profiling.memory",
        "MemoryProfile": "rocmforge.profiling.memory",
        "device_memory": "rocmforge.profiling.memory",
        "memory_profile": "rocmforge.profiling.memory",
        "DeviceMonitor": "rocmforge.profiling.monitor",
        "Look": "rocmforge.profiling.monitor",
        "Monitored": "rocmforge.profiling.monitor",
        "FirstToken": "rocmforge.profiling.profile",
        "Op": "rocmforge.profiling.profile",
        "Phase": "rocmforge.profiling.profile",
        "Profile": "rocmforge.profiling.profile",
        "Verdict": "rocmforge.profiling.profile",
        "read": "rocmforge.profiling.readers.read",
        "Recording": "rocmforge.profiling.readers.records",
        "Peaks": "rocmforge.profiling.roofline",
        "measure_peaks": "rocmforge.profiling.roofline",
        "write_roofline": "rocmforge.profiling.roofline_picture",
        "Options": "rocmforge.profiling.run",
        "profile_model": "rocmforge.profiling.run",
        "RunEnvironment": "rocmforge.profiling.run_environment",
        "Watch": "rocmforge.profiling.run_environment",
        "ExecutionSummary": "rocmforge.profiling.telemetry",
        "Telemetry": "rocmforge.profiling.telemetry",
        "measure_ceilings": "rocmforge.profiling.telemetry",
        "KernelTimer": "rocmforge.profiling.timer",
        "Times": "rocmforge.profiling.timer",
        "Tool": "rocmforge.profiling.tools",
        "find_tools": "rocmforge.profiling.tools",
        "write_trace": "rocmforge.profiling.trace",
        "Prompt": "rocmforge.profiling.ttft",
        "Request": "rocmforge.profiling.ttft",
        "first_token": "rocmforge.profiling.ttft",
        "prompt_of": "rocmforge.profiling.ttft",
        "request": "rocmforge.profiling.ttft",
    }

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)

    def __dir__():
        return sorted({*globals(), *__all__})
