"""Documented commands that `test_documented_commands.py` does not run: why, and what covers them.

A key covers every command that begins with its words, unless a longer key does. A name of a place
is a test file, a test as `file::name`, or a step of CI: a line of .ci/run or of what that calls.
"""

from __future__ import annotations

CI = ".ci/run"
LONG = "takes minutes"
ELSEWHERE = "needs a program of others"
CARD = "needs a GPU"

NOT_RUN: dict[str, tuple[str, str]] = {
    "make": (LONG, ".ci/run::make check"),
    "make .venv/ready": (LONG, "Makefile::check: .venv/ready-check"),
    "make bench": ("measures, two minutes", "tests/bench/test_run.py::test_the_whole_way"),
    "make check": (LONG, ".ci/run::make check"),
    "make docs": ("part of make check", "Makefile::$(MAKE) --no-print-directory docs"),
    "make test": (LONG, ".ci/run::make test"),
    "make test-all": ("half an hour", "Makefile::test-all: test"),
    "make coverage": ("half an hour", "Makefile::coverage: .venv/ready-test"),
    "make dashboard": (
        "as rocmforge bench dashboard",
        "tests/bench/test_dashboard.py::test_the_committed_results_and_baselines_are_published",
    ),
    "rocmforge bench baseline": (
        "changes what is committed",
        "tests/bench/test_baseline_command.py",
    ),
    "rocmforge bench ci": ("builds two commits", "tests/bench/test_ci.py"),
    "rocmforge bench compare": (
        "of commits that a reader measured",
        "tests/bench/test_compare_command.py",
    ),
    "rocmforge bench confirm": (
        "builds two commits",
        "tests/bench/test_confirm.py::test_with_asv_and_builds_of_both_commits",
    ),
    "rocmforge bench dashboard": (
        "takes half a minute",
        "tests/bench/test_dashboard.py::test_the_committed_results_and_baselines_are_published",
    ),
    "rocmforge bench gate": (
        "measures, and builds a commit",
        "tests/bench/test_gate.py::test_suspects_are_measured_again_beside_the_commit_of_the_baseline",
    ),
    "rocmforge bench history": (
        "of a branch that a reader measured",
        "tests/bench/test_history_command.py",
    ),
    "rocmforge bench model": ("of a reader's model", "tests/bench/test_bench_model.py"),
    "rocmforge bench noise": ("measures ten times", "tests/bench/test_noise_command.py"),
    "rocmforge bench run": ("measures", "tests/bench/test_run.py::test_the_whole_way"),
    "rocmforge generate 'A hammer is' --device": (CARD, "tests/gpu/test_engine_on_gpu.py"),
    "rocmforge generate model.gguf 'The moon is' --device": (
        CARD,
        "tests/gpu/test_engine_on_gpu.py",
    ),
    "rocmforge generate model.gguf 'Once upon a time'": (
        "an argument of others",
        "tests/test_cli.py",
    ),
    "rocmforge info FILE": ("of a reader's file", "tests/test_info.py"),
    "rocmforge perplexity": ("reads 90 kB, minutes", "tests/test_perplexity.py"),
    "rocmforge profile": ("of a reader's model", "tests/test_profile_command.py"),
    "rocmforge profile --with perf": (
        ELSEWHERE,
        "tests/profiling/test_external.py::test_perf_makes_a_flame_graph",
    ),
    "rocmforge profile model.gguf --tokens 200 --with perf": (
        ELSEWHERE,
        "tests/profiling/test_external.py::test_perf_makes_a_flame_graph",
    ),
    "rocmforge profile model.gguf --with rocprof-compute": (
        ELSEWHERE,
        "tests/profiling/test_external.py::test_rocprof_compute_is_run_and_read_too",
    ),
    "rocmforge profile model.gguf --with rocprofv3": (
        ELSEWHERE,
        "tests/profiling/test_external.py::test_kernels_of_rocprofv3_are_joined_with_our_ops",
    ),
    "rocmforge tune": (
        CARD,
        "tests/gpu/test_tune.py::test_the_command_writes_a_table_that_later_devices_take",
    ),
    "studies/compare_detectors.py": (LONG, "tests/studies/test_compare_detectors.py"),
    "studies/dashboard_load.py": (LONG, "tests/bench/test_dashboard_load.py"),
    "studies/false_alarms.py": ("of runs that a reader kept", "tests/studies/test_false_alarms.py"),
    "studies/gate_trials.py": ("half an hour", "tests/studies/test_gate_trials.py"),
    "tools/baselines.py": (
        "changes what is committed",
        "tests/bench/test_compare_command.py::test_baseline_there_and_back",
    ),
    "tools/demo_talk.py": ("a module", "tests/test_train_demo_model.py"),
    "tools/demo_text.py": ("a module", "tests/test_train_demo_model.py"),
    "tools/compare_formats.py": (LONG, "tests/test_compare_formats.py"),
    "tools/compare_llama_cpp.py": ("needs llama.cpp", "tests/test_compare_llama_cpp.py"),
    "tools/compare_table.py": ("needs llama.cpp and a GPU", "tests/test_compare_table.py"),
    "tools/estimate_radeon.py": (LONG, "tests/test_estimate_radeon.py"),
    "tools/gpu_check.sh": (CARD, "no test: it is run by hand on a GPU"),
    "tools/gpu_speed.py": (CARD, "tests/gpu/test_gpu_speed.py"),
    "tools/kernel_resources.py": ("compiles for minutes", "tests/gpu/test_code_objects.py"),
    "tools/make_model.py": (
        "writes up to gigabytes",
        "tests/model/test_synthetic.py::test_tool_writes_and_refuses",
    ),
    "tools/render_tables.py": ("part of make check", "tests/test_render_tables.py"),
    "tools/train_demo_model.py": ("trains on a GPU", "tests/test_train_demo_model.py"),
    "asv": (ELSEWHERE, "tests/bench/test_with_asv.py::test_planted_slowdown"),
    "asv check": ("part of make check", "Makefile::asv check -E existing"),
    "git commit": (ELSEWHERE, "tests/bench/test_run.py::test_a_changed_tree_makes_no_baseline"),
    "pytest": ("tests of a card, or of shared data", "Makefile::pytest"),
    "pip install": (ELSEWHERE, "tests/test_gpu_packages.py"),
    "python": ("a name", ".ci/run::make test"),
    "apt-get install": (ELSEWHERE, ".ci/run::apt-get install"),
    "printf": ("the shell's", "tests/test_documented_commands.py"),
    "sudo": ("changes the machine", "tests/profiling/test_tools.py"),
    "rocprofv3": (ELSEWHERE, "tests/test_profiling_guide.py"),
    "rocprofv3-avail": (ELSEWHERE, "no test: it comes with ROCm"),
    "rocprof-compute": (ELSEWHERE, "no test: it comes with ROCm"),
}
"""By the words that a command begins with: the reason, and what covers it."""
