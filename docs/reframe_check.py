"""A check for ReFrame that wraps one suite of the benchmarks; docs/FLEET.md says how to run it.

It runs `rocmforge bench run` in a checkout that is set up, and takes each benchmark's median as
a performance figure. A site's reference values then judge it, beside the project's own gate.
"""

import json
import re
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable


@rfm.simple_test
class RocmforgeSuite(rfm.RunOnlyRegressionTest):
    """One suite on each partition, on a node alone."""

    descr = "one suite of ROCmForge's benchmarks"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    checkout = variable(str, value=".")
    suite = variable(str, value="matmul")
    max_load = variable(int, value=20)
    sourcesdir = None
    exclusive_access = True
    time_limit = "2h"

    @run_before("run")
    def measure_in_the_checkout(self):
        """Run the suite where its `.venv` is, as docs/FLEET.md makes it."""
        self.prerun_cmds = [f"cd {Path(self.checkout).resolve()}"]
        self.executable = ".venv/bin/rocmforge"
        chosen = ["--bench", rf"'^{self.suite}\.'", "--max-load", str(self.max_load)]
        self.executable_opts = ["bench", "run", *chosen]

    @sanity_function
    def was_measured(self):
        """Fail where nothing was measured or a benchmark failed, which the exit code says."""
        return sn.and_(sn.assert_eq(self.job.exitcode, 0), self._stored())

    @run_before("performance")
    def read_medians(self):
        """Take the median of every benchmark; a figure's name has letters and digits alone."""
        path = Path(self.checkout, sn.evaluate(self._stored()))
        for label, stored in json.loads(path.read_text("utf-8"))["baselines"].items():
            name = re.sub(r"\W+", "_", label).strip("_")
            if name in self.perf_variables:
                raise ValueError(f"{path}: got a second benchmark of the figure {name}: {label}")
            for metric, value in stored["metrics"].items():
                if metric.startswith("p50_"):
                    unit = metric.removeprefix("p50_")
                    figure = sn.make_performance_function(sn.defer(value), unit)
                    self.perf_variables[name] = figure

    def _stored(self):
        """Return the file that the run says it wrote."""
        said = Path(self.stagedir, sn.evaluate(self.stdout))
        return sn.extractsingle(r"^as JSON +(.+)$", str(said), 1)
