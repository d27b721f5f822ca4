"""Documented commands that `test_documented_commands.py` does not run: why, and what covers them.

A key covers every command that begins with its words, unless a longer key does. What covers it is a
test, as `file::name`, or "no test: " with the reason.
"""

from __future__ import annotations

LONG = "takes minutes"
ELSEWHERE = "needs a program of others"
CARD = "needs a GPU"

NOT_RUN: dict[str, tuple[str, str]] = {
    "make": (LONG, "no test: CI runs its targets"),
    "make .venv/ready": (LONG, "no test: make check begins with it"),
    "make bench": ("measures, two minutes", "tests/bench/test_run.py::test_the_whole_way"),
    "make check": (LONG, "no test: CI runs it"),
    "make docs": ("a minute", "no test: make check runs it"),
    "make help": (
        "of this machine's make",
        "tests/test_documented_commands.py::test_make_help_lists_the_targets",
    ),
    "make test": (LONG, "no test: CI runs it"),
    "make test-all": ("half an hour", "no test: it is run by hand"),
    "make coverage": ("half an hour", "no test: it is run by hand"),
    "make dashboard": (
        "as rocmforge bench dashboard",
        "tests/bench/test_dashboard.py::test_the_committed_results_and_baselines_are_published",
    ),
    "rocmforge bench baseline": (
        "changes what is committed",
        "tests/bench/test_baseline_command.py::test_refresh_shows_what_moved_and_keeps_the_rest",
    ),
    "rocmforge bench ci": (
        "builds two commits",
        "tests/bench/test_ci.py::test_a_regression_is_confirmed_and_a_dry_run_posts_nothing",
    ),
    "rocmforge bench compare": (
        "of commits that a reader measured",
        "tests/bench/test_compare_command.py::test_regression_is_1_and_named",
    ),
    "rocmforge bench confirm": (
        "builds two commits",
        "tests/bench/test_gate.py::test_confirm_takes_a_baseline_in_place_of_a_commit",
    ),
    "rocmforge bench dashboard": (
        "takes half a minute",
        "tests/bench/test_dashboard.py::test_the_committed_results_and_baselines_are_published",
    ),
    "rocmforge bench fleet": (
        "builds and measures commits",
        "tests/bench/test_fleet_command.py::test_from_commits_to_pages_and_again",
    ),
    "rocmforge bench fleet --engine slurm": (
        ELSEWHERE,
        "tests/bench/test_fleet_slurm.py::test_a_node_that_dies_while_it_measures",
    ),
    "rocmforge bench fleet HEAD --engine slurm": (
        ELSEWHERE,
        "tests/bench/test_fleet_slurm.py::test_all_parts_are_measured_each_copy_on_another_node",
    ),
    "rocmforge bench fleet --engine ray": (
        ELSEWHERE,
        "tests/bench/test_fleet_ray.py::test_a_node_that_dies_while_it_measures",
    ),
    "rocmforge bench gate": (
        "measures, and builds a commit",
        "tests/bench/test_gate.py::test_suspects_are_measured_again_beside_the_commit_of_the_baseline",
    ),
    "rocmforge bench history": (
        "of a branch that a reader measured",
        "tests/bench/test_history_command.py::test_a_step_that_stands_is_named",
    ),
    "rocmforge bench model": (
        "of a reader's model",
        "tests/bench/test_bench_model.py::test_the_demo_model_is_one_line_a_test",
    ),
    "rocmforge bench noise": (
        "measures ten times",
        "tests/bench/test_noise_command.py::test_a_failed_run_is_not_kept_and_the_next_call_goes_on",
    ),
    "rocmforge bench run": ("measures", "tests/bench/test_run.py::test_the_whole_way"),
    "rocmforge generate 'A hammer is' --device": (
        CARD,
        "tests/gpu/test_engine_on_gpu.py::test_generate_is_greedy_and_repeats",
    ),
    "rocmforge generate model.gguf 'The moon is' --device": (
        CARD,
        "tests/gpu/test_engine_on_gpu.py::test_generate_is_greedy_and_repeats",
    ),
    "rocmforge generate model.gguf 'The moon is' --device hip --gpu-layers": (
        CARD,
        "tests/gpu/test_split_on_gpu.py::test_the_command_line_takes_layers_and_devices",
    ),
    "rocmforge generate model.gguf 'The moon is' --device hip:0,hip:1": (
        CARD,
        "tests/gpu/test_split_on_gpu.py::test_the_command_line_takes_layers_and_devices",
    ),
    "rocmforge bench model model.gguf --device": (
        CARD,
        "tests/gpu/test_split_on_gpu.py::test_the_command_line_takes_layers_and_devices",
    ),
    "rocmforge generate model.gguf 'Once upon a time'": (
        "an argument of others",
        "tests/test_cli.py::test_generate_prints_the_text_and_one_line_of_timings",
    ),
    "rocmforge info FILE": ("of a reader's file", "tests/test_info.py::test_every_reason_is_named"),
    "rocmforge perplexity": (
        "reads 90 kB, minutes",
        "tests/test_cli.py::test_perplexity_of_a_text_and_of_formats",
    ),
    "rocmforge profile": (
        "of a reader's model",
        "tests/test_profile_command.py::test_the_answer_comes_first_and_lines_fit_a_terminal",
    ),
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
    "rocmforge tune model.gguf": (
        CARD,
        "tests/gpu/test_tune.py::test_the_command_writes_a_table_that_later_devices_take",
    ),
    "studies/compare_detectors.py": (
        LONG,
        "tests/studies/test_compare_detectors.py::test_the_same_seed_gives_the_same_figures",
    ),
    "studies/dashboard_load.py": (
        LONG,
        "tests/bench/test_dashboard_load.py::test_pages_of_many_series_load_quickly_and_stay_small",
    ),
    "studies/false_alarms.py": (
        "of runs that a reader kept",
        "tests/studies/test_false_alarms.py::test_noise_of_other_runs_keeps_a_loud_benchmark_quiet",
    ),
    "studies/gate_trials.py": (
        "half an hour",
        "tests/studies/test_gate_trials.py::test_a_planted_slowdown_is_counted_where_it_lies",
    ),
    "tools/baselines.py": (
        "changes what is committed",
        "tests/bench/test_compare_command.py::test_baseline_there_and_back",
    ),
    "tools/demo_talk.py": ("a module", "no test: it is no command"),
    "tools/demo_text.py": ("a module", "no test: it is no command"),
    "tools/compare_formats.py": (
        LONG,
        "tests/test_compare_formats.py::test_every_format_is_measured_against_the_reference",
    ),
    "tools/compare_llama_cpp.py": (
        "needs llama.cpp",
        "tests/test_compare_llama_cpp.py::test_beside_llama_bench",
    ),
    "tools/compare_table.py": (
        "needs llama.cpp and a GPU",
        "tests/test_compare_table.py::test_all_cases_are_measured_once",
    ),
    "tools/estimate_radeon.py": (
        LONG,
        "tests/test_estimate_radeon.py::test_the_command_prints_the_tables_or_what_is_wrong",
    ),
    "tools/gpu_check.sh": (CARD, "no test: it is run by hand on a GPU"),
    "tools/gpu_speed.py": (
        CARD,
        "tests/gpu/test_gpu_speed.py::test_a_model_is_decoded_at_a_depth_and_its_prompt_timed",
    ),
    "tools/two_gpus.py": (
        "needs two GPUs",
        "tests/gpu/test_two_gpus_tool.py::test_sums_and_models_are_measured_and_shown",
    ),
    "tools/kernel_resources.py": (
        "compiles for minutes",
        "tests/gpu/test_code_objects.py::test_the_tool_prints_every_kernel_and_fails_on_a_hot_one_that_spills",
    ),
    "tools/make_model.py": (
        "writes up to gigabytes",
        "tests/model/test_synthetic.py::test_tool_writes_and_refuses",
    ),
    "tools/render_tables.py": (
        "part of make check",
        "tests/test_render_tables.py::test_the_committed_tables_are_current",
    ),
    "tools/train_demo_model.py": (
        "trains on a GPU",
        "tests/test_train_demo_model.py::test_export_writes_a_model_that_runs",
    ),
    "asv": (ELSEWHERE, "tests/bench/test_with_asv.py::test_planted_slowdown"),
    "asv check": (
        "part of make check",
        "tests/test_benchmark_profiles.py::test_asv_check_passes",
    ),
    "git pull": (ELSEWHERE, "no test: it asks a server"),
    "git commit": (ELSEWHERE, "tests/bench/test_run.py::test_a_changed_tree_makes_no_baseline"),
    "pytest": ("tests of a card, or of shared data", "no test: it runs the tests"),
    "pip install": (ELSEWHERE, "tests/test_gpu_packages.py::test_what_is_missing_is_installed"),
    "python": ("a name", "no test: it is no command"),
    "apt-get install": (ELSEWHERE, "no test: it changes the machine; CI runs such a line"),
    "printf": ("the shell's", "no test: it is no program of ours"),
    "sudo": ("changes the machine", "no test: it changes the machine"),
    "ray": (ELSEWHERE, "tests/bench/test_fleet_ray.py::test_a_node_that_dies_while_it_measures"),
    "reframe": (ELSEWHERE, "no test: it is run by hand, and is no package of an extra"),
    "rocprofv3": (
        ELSEWHERE,
        "tests/test_profiling_guide.py::test_the_command_for_rocprofv3_is_what_runs",
    ),
    "rocprofv3-avail": (ELSEWHERE, "no test: it comes with ROCm"),
    "rocprof-compute": (ELSEWHERE, "no test: it comes with ROCm"),
}
"""By the words that a command begins with: the reason, and what covers it."""
