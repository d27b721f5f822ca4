"""Write the measured tables and figures of README.md and docs/ from baselines/ and results/.

Each table, and each link to a figure, stands between `<!-- name:begin -->` and `<!-- name:end -->`.
With --check nothing is written, and the exit code is 1 where one is not what the files say, or
where a file names a commit that this repository has not. It measures nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimate_radeon import radeon_tables
from figure_data import SECTIONS, Figure, figures, is_usual, model_name
from figures import is_current, svg
from gpu_tables import (
    GEMV,
    newest_products,
    op_tables,
    peer_table,
    readme_peer,
    speed_tables,
    stored_commit,
    stored_commits,
    stored_median,
    two_gpus_tables,
)
from markdown_table import table, table_row
from measured_commits import commits_in_words, lost_commits

from rocmforge.bench.asv_results import read_benchmarks
from rocmforge.bench.baseline import metric_suffix
from rocmforge.bench.files import read_json, write_bytes
from rocmforge.bench.formatting import NA, digits, scale_for
from rocmforge.bench.noise import load_noise
from rocmforge.bench.statistics import percentile
from rocmforge.bench.tables import MARK
from rocmforge.gguf.formats import FORMATS as WEIGHT_FORMATS

REPO = Path(__file__).resolve().parent.parent
RESULTS = REPO / "results"
PEER = "*/llama.cpp/*.json"  # below baselines/: what compare_llama_cpp.py wrote
FORMATS = "*/formats.json"  # what compare_formats.py wrote
GPU_PEER = "*/compare_table.json"  # what compare_table.py wrote
TWO_GPUS = "*/two_gpus.json"  # what two_gpus.py wrote
GPUS = "*/gpu_speed.json"  # what gpu_speed.py wrote
BASELINES = "*/baseline.json"  # what bench run --save-baseline wrote
ROOFLINE = "roofline.Matmul.track_inverse_roofline_fraction('{}', {}, 'cpu')"
ISA = "matmul.InstructionSet.track_cold_ms('{}', {}, '{}')"
ISAS = ("avx512", "avx2", "portable")
NOISE = "*/noise.json"  # what bench noise --save wrote
ALARMS = "*/false_alarms.json"  # what false_alarms.py --json wrote
TRIALS = "*/gate_trials*.json"  # what gate_trials.py --json wrote
COMMITS = "*/compare_commits*.json"  # what bench confirm --json wrote
DETECTORS = "*/detectors.json"  # what compare_detectors.py --json wrote
SLOWEST = "<slowest>"  # in coverage.txt, instead of a parameter's value
RULES = {
    "check_regressions.py": "`bench compare`",
    "check_regressions.py --confirm": "`bench confirm`",
}
"""What rules are called in reports that are kept, and what the commands are called."""
NOISY = 0.05  # spread from which a benchmark is listed
README_ROWS = ("1.1B-Q4_0", "1.1B-Q4_K_M", "1.1B-Q6_K", "1.1B-Q8_0", "1.1B-F16")


def main(argv: Sequence[str] | None = None) -> int:
    """Render all of them; 0, or 1 with --check where one is stale or a commit is unknown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing, fail on a stale table or figure, or an unknown commit",
    )
    args = parser.parse_args(argv)
    reports, formats, gpus = (_read(pattern) for pattern in (PEER, FORMATS, GPUS))
    baselines = _read(BASELINES)
    docs = REPO / "docs"
    drawn = figures(RESULTS, REPO / "baselines")
    stale = _draw(drawn, docs / "figures", args.check)
    for path, name, text in (
        (docs / "PERFORMANCE.md", "peer", _peer_table(reports)),
        (docs / "PERFORMANCE.md", "formats", _formats_table(formats)),
        (docs / "PERFORMANCE.md", "gpu-peer", "\n".join(map(peer_table, _read(GPU_PEER)))),
        (docs / "PERFORMANCE.md", "two-gpus", "\n".join(map(two_gpus_tables, _read(TWO_GPUS)))),
        (docs / "PERFORMANCE.md", "gpu", "".join(map(speed_tables, gpus))),
        (docs / "PERFORMANCE.md", "radeon", "".join(map(radeon_tables, gpus))),
        (
            docs / "PERFORMANCE.md",
            "ops",
            "".join(map(_ops, baselines)),
        ),
        (docs / "PERFORMANCE.md", "suites", _suites_table(baselines, coverage())),
        (docs / "PERFORMANCE.md", "rooflines", "\n".join(map(_rooflines, baselines))),
        (docs / "PERFORMANCE.md", "isas", "\n".join(map(_isas, baselines))),
        (docs / "VALIDATION.md", "noise", "".join(map(_noise_table, _paths(NOISE)))),
        (docs / "VALIDATION.md", "alarms", "".join(map(_alarms, _read(ALARMS)))),
        (docs / "VALIDATION.md", "trials", "\n".join(map(_trials, _read(TRIALS)))),
        (docs / "EXPERIMENTS.md", "commits", "\n".join(map(_commits, _read(COMMITS)))),
        (docs / "VALIDATION.md", "steps", "\n".join(map(_detectors, _read(DETECTORS)))),
        *((docs / "FIGURES.md", name, _figure_links(drawn, name)) for name in SECTIONS),
        (REPO / "README.md", "speed", _readme_table(reports)),
        (REPO / "README.md", "gpu", readme_peer(_read(GPU_PEER))),
    ):
        before = path.read_text("utf-8")
        after = _replace(before, name, text)
        if after != before:
            stale = True
            print(f"{path.relative_to(REPO)}: {'stale' if args.check else 'written'}")
            if not args.check:
                write_bytes(path, after.encode())
    if args.check:
        stale |= not _commits_exist()
    return 1 if stale and args.check else 0


def _draw(drawn: Sequence[Figure], folder: Path, check: bool) -> bool:
    """Draw what is not current, remove what has no numbers any more; whether there was any."""
    wanted = {folder / f"{one.name}.svg": one for one in drawn}
    stale = [path for path, one in wanted.items() if not is_current(one, path)]
    odd = [path for path in folder.glob("*.svg") if path not in wanted]
    for path in (*stale, *odd):
        print(f"{path.relative_to(REPO)}: {'stale' if check else 'written'}")
    if not check:
        for path in stale:
            folder.mkdir(exist_ok=True)
            write_bytes(path, svg(wanted[path]).encode())
        for path in odd:
            path.unlink()
    return bool(stale or odd)


def _figure_links(drawn: Sequence[Figure], section: str) -> str:
    """The figures of a section with what they show and where they are from."""
    return "\n".join(
        f"![{one.alt}](figures/{one.name}.svg)\n\n{one.alt} From {one.source}.\n"
        for one in drawn
        if one.section == section
    )


def _commits_exist() -> bool:
    """Whether this repository has all commits that measurements name; prints those it has not."""
    lost = lost_commits(REPO)
    if lost is None:
        print("commits of the measurements: not checked, this is no clone with the whole history")
    for line in lost or ():
        print(line)
    return not lost


def _paths(pattern: str) -> list[Path]:
    return sorted((REPO / "baselines").glob(pattern))


def _read(pattern: str) -> list[dict[str, Any]]:
    return [read_json(path) for path in _paths(pattern)]


def _ops(baseline: dict[str, Any]) -> str:
    """The ops of a GPU's baseline, with what gpu_speed.py and newer runs have of its machine."""
    meta = baseline["metadata"]
    tag = meta["hardware_tag"]
    speeds = _read(f"{tag}/{Path(GPUS).name}")
    known = read_benchmarks(RESULTS / "benchmarks.json")
    stored = baseline["baselines"].get(GEMV.format("Q4_K"), {})
    since = stored.get("timestamp", meta["commit_date"])
    products = newest_products(RESULTS / tag, known, since)
    return op_tables(baseline, speeds[0] if speeds else None, products)


def _replace(document: str, name: str, text: str) -> str:
    pattern = rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)"
    if not re.search(pattern, document, re.S):
        raise SystemExit(f"render_tables: no place for the table {name!r}")
    return re.sub(pattern, lambda m: m[1] + text + m[2], document, count=1, flags=re.S)


def _peer_table(reports: list[dict[str, Any]]) -> str:
    columns = (
        *("model", "threads", "sequences", "prompt", "phase"),
        *("ROCmForge tokens/s", "llama.cpp tokens/s"),
        *("ratio", "min … max", "hardware", "commit", "date"),
    )
    lines = table(columns, ())
    for report in reports:
        for phase, row in report["phases"].items():
            cells = (
                *(model_name(report) + _variables(report), report["threads"]),
                report.get("sequences", 1),
                *(report["prompt_tokens"], phase),
                *(f"{row['rocmforge']:.1f}", f"{row['llama.cpp']:.1f}", f"**{row['ratio']:.2f}**"),
                f"{row['ratio_min']:.2f} … {row['ratio_max']:.2f}",
                *(report["hardware_tag"], report["commit"][:8], report["date"][:10]),
            )
            lines.append(table_row(cells))
    return "\n".join(lines) + "\n"


def _variables(report: dict[str, Any]) -> str:
    return "".join(f", {name}={value}" for name, value in report.get("variables", {}).items())


def _formats_table(reports: list[dict[str, Any]]) -> str:
    lines = []
    for report in reports:
        columns = (
            *("format", "bits/weight", "perplexity", "±", f"KL to {report['reference']}, nats"),
            *("same top-1", "prefill tokens/s", "decode tokens/s"),
        )
        source = f"`{report['hardware_tag']}`, commit {report['commit'][:8]}, {report['date'][:10]}"
        text = f"{report['tokens']} tokens in windows of {report['window']}"
        lines += [f"{source}; {text}:", "", *table(columns, ())]
        for name, row in report["formats"].items():
            cells = (
                *(name, f"{row['bits_per_weight']:.2f}", f"{row['perplexity']:.2f}"),
                *(f"{row['standard_error']:.2f}", f"{row['kl_nats']:.4f}"),
                f"{100 * row['top1_agreement']:.1f} %",
                f"{row['prefill_tokens_per_second']:.0f}",
                f"{row['decode_tokens_per_second']:.0f}",
            )
            lines.append(table_row(cells))
    return "\n".join(lines) + "\n" if lines else ""


def coverage() -> list[tuple[str, str]]:
    """What the suites cover, and the benchmark that stands for it."""
    lines = (REPO / "benchmarks" / "coverage.txt").read_text("utf-8").splitlines()
    rows = (line.split(" | ") for line in lines if line and not line.startswith("#"))
    return [(what, label) for what, label in rows]


def _suites_table(baselines: list[dict[str, Any]], rows: list[tuple[str, str]]) -> str:
    """One measured value of each thing that the suites cover, on every machine.

    A machine's head names the commit of most values; the others name their own. What no machine has
    is named once below the table, instead of rows of n/a.
    """
    if not baselines:
        return ""
    heads, columns = [], []
    for baseline in baselines:
        values = [_measured(baseline, label) for _, label in rows]
        commits = Counter(commit for _, commit in values if commit)
        most = commits.most_common(1)[0][0] if commits else baseline["metadata"]["commit"][:8]
        heads.append(f"`{baseline['metadata']['hardware_tag']}`, {most}")
        columns.append(
            [text if commit in (None, most) else f"{text} ({commit})" for text, commit in values]
        )
    cells, absent = [], []
    for (what, label), *own in zip(rows, *columns, strict=True):
        if {*own} == {NA}:
            absent.append(label)
        else:
            cells.append([what, f"`{label}`", *own])
    lines = table(["what", "benchmark", *heads], cells)
    if absent:
        lines += ["", f"In no baseline yet: {', '.join(f'`{label}`' for label in absent)}."]
    return "\n".join(lines) + "\n"


def _rooflines(baseline: dict[str, Any]) -> str:
    """How many times as long as the ideal products of each format take on a CPU.

    Nothing of a baseline with few formats: the median of those would say little.
    """
    meta, entries = baseline["metadata"], baseline["baselines"]
    if meta["hardware"]["gpu_architecture"]:
        return ""
    found: dict[int, dict[str, float]] = {}
    for fmt in WEIGHT_FORMATS:
        for tokens in (1, 128):
            entry = entries.get(ROOFLINE.format(fmt, tokens))
            if entry:
                found.setdefault(tokens, {})[fmt] = stored_median(entry)
    measured = [fmt for fmt in WEIGHT_FORMATS if all(fmt in times for times in found.values())]
    if len(found) < 2 or len(measured) < len(WEIGHT_FORMATS) // 2:
        return ""
    usual = {tokens: percentile(sorted(times.values()), 0.5) for tokens, times in found.items()}
    cells = [
        [
            fmt,
            *(
                f"{found[n][fmt]:.2f} | {100 * (found[n][fmt] / usual[n] - 1):+.0f} %"
                for n in found
            ),
        ]
        for fmt in measured
    ]
    heads = ("format", "one token", "from the median", "128 tokens", "from the median")
    labels = [ROOFLINE.format(fmt, tokens) for fmt in measured for tokens in found]
    commits = commits_in_words(stored_commits(baseline, labels))
    intro = f"`{meta['hardware_tag']}`, {commits}:"
    return "\n".join([intro, "", *table(heads, cells)]) + "\n"


def _isas(baseline: dict[str, Any]) -> str:
    """How many times as long as with AVX-512 products take with lesser instruction sets."""
    meta, entries = baseline["metadata"], baseline["baselines"]
    cells = []
    for fmt in WEIGHT_FORMATS:
        ratios = []
        for isa in ISAS[1:]:
            for tokens in (1, 128):
                best, own = (entries.get(ISA.format(fmt, tokens, one)) for one in (ISAS[0], isa))
                if best and own:
                    ratios.append(f"{stored_median(own) / stored_median(best):.2f}")
        if len(ratios) == 4:
            cells.append([fmt, *ratios])
    heads = ("format", "AVX2, one token", "128 tokens", "portable, one token", "128 tokens")
    labels = [ISA.format(fmt, n, one) for fmt, *_ in cells for n in (1, 128) for one in ISAS]
    commits = commits_in_words(stored_commits(baseline, labels))
    intro = f"`{meta['hardware_tag']}`, {commits}:"
    return "\n".join([intro, "", *table(heads, cells)]) + "\n" if cells else ""


def _measured(baseline: dict[str, Any], label: str) -> tuple[str, str | None]:
    """Median and unit of a benchmark in a baseline, on its GPU where it has one; and its commit.

    A label with `SLOWEST` as a parameter stands for the slowest of its benchmarks, which is named.
    """
    gpu = baseline["metadata"]["hardware"]["gpu_architecture"]
    own = label.replace("'cpu'", "'gpu'") if gpu else label
    entries, name = baseline["baselines"], ""
    if SLOWEST in own:
        own, name = _slowest(entries, own)
    if own not in entries:
        return NA, None
    return _value(entries[own]) + name, stored_commit(baseline, own)


def _slowest(entries: dict[str, Any], label: str) -> tuple[str, str]:
    """The slowest benchmark of a pattern, and the parameter that it has there, in brackets."""
    pattern = re.escape(label).replace(re.escape(SLOWEST), "'([^']*)'")
    found = {name: hit[1] for name in entries if (hit := re.fullmatch(pattern, name))}
    if not found:
        return label, ""
    rates = entries[next(iter(found))]["metadata"]["unit"].endswith("/s")
    name = (min if rates else max)(found, key=lambda name: stored_median(entries[name]))
    return name, f" ({found[name]})"


def _value(entry: dict[str, Any]) -> str:
    unit = entry["metadata"]["unit"]
    median = stored_median(entry) / metric_suffix(unit)[1]
    scale, name = scale_for((median,), unit)
    mark = f"{MARK} " if entry["metadata"].get("marked") else ""
    return f"{mark}{digits(median / scale)} {name}"


def _noise_table(path: Path) -> str:
    """What runs of one commit differ by: the median, and the benchmarks that differ most."""
    document, spreads = read_json(path), load_noise(path)
    ordered = sorted(spreads.items(), key=lambda item: -item[1].spread)
    middle = percentile(sorted(one.spread for one in spreads.values()), 0.5)
    runs = max(len(one.medians) for one in spreads.values())
    loud = [
        (f"`{label}`", f"{100 * one.spread:.1f} %", f"{100 * one.floor:.1f} %", one.marked)
        for label, one in ordered
        if one.spread > NOISY
    ]
    intro = (
        f"`{document['hardware_tag']}`, commit {document['commit'][:8]}, {runs} runs of "
        f"{len(spreads)} benchmarks: median spread {100 * middle:.1f} %, "
        f"{len(loud)} above {100 * NOISY:.0f} %."
    )
    columns = ("benchmark", "spread", "largest change", "marked runs")
    return "\n".join([intro, *(["", *table(columns, loud)] if loud else [])]) + "\n"


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({100 * count / total:.2f} %)"


def _alarms(report: dict[str, Any]) -> str:
    """What each rule calls a regression in runs of one commit."""
    verdicts, comparisons = report["verdicts"], report["comparisons"]
    rows = [
        (
            RULES.get(name, name),
            _share(row["regressions"], verdicts),
            f"{row['comparisons_with_any']} of {comparisons}",
        )
        for name, row in report["rules"].items()
    ]
    intro = f"`{report['hardware_tag']}`, commit {report['commit'][:8]}, {report['runs']} runs:"
    columns = ("rule", "called regressions", "comparisons with any")
    return "\n".join([intro, "", *table(columns, rows)]) + "\n"


def _trials(report: dict[str, Any]) -> str:
    """What each rule calls in commits that are the same, and in slower ones."""
    rows = [
        (
            (f"{kind['planted_percent']:g} %" if kind["planted_percent"] else "nothing")
            + (", by a stored baseline" if kind.get("stored_baseline") else ""),
            RULES.get(rule, rule),
            _share(row["regressions"], kind["verdicts"]),
            f"{row['comparisons_with_any']} of {kind['comparisons']}",
            f"{kind['confirm_seconds']:.0f} s" if "--confirm" in rule else "",
        )
        for kind in report["trials"]
        for rule, row in kind["rules"].items()
    ]
    intro = f"`{report['hardware_tag']}` ({report['cpu_name']}), commit {report['commit'][:8]}:"
    columns = ("planted", "rule", "called regressions", "comparisons with any", "to confirm")
    return "\n".join([intro, "", *table(columns, rows)]) + "\n"


def _commits(report: dict[str, Any]) -> str:
    """By how much a commit is faster than another, benchmark by benchmark."""
    rows = [
        (
            f"`{one['benchmark']}`",
            f"{1 / one['slowdown']:.2f}",
            f"{1 / one['high']:.2f} … {1 / one['low']:.2f}",
        )
        for one in report["benchmarks"]
    ]
    after, before = report["after"][:8], report["before"][:8]
    intro = f"`{report['hardware_tag']}`, commit {after} against {before}, {report['date'][:10]}:"
    return "\n".join([intro, "", *table(("benchmark", "times faster", "99 %"), rows)]) + "\n"


def _detectors(report: dict[str, Any]) -> str:
    """What each detector finds of what was planted, and what drifts and steps are taken for."""
    measured = {
        f"{name}, {commits}": found
        for name, lengths in report["detectors"].items()
        for commits, found in lengths.items()
    }
    figures = list(next(iter(measured.values())))
    rows = [[what, *(f"{found[what]:g}" for found in measured.values())] for what in figures]
    taken = [
        (commits, planted, *(f"{row[kind]:g}" if kind in row else "" for kind in _kinds(report)))
        for commits, found in report["drifts"].items()
        for planted, row in found.items()
    ]
    intro = (
        f"`{report['hardware_tag']}`, noise of commit {report['commit'][:8]}, "
        f"{report['benchmarks']} benchmarks, {report['repeats']} histories of each; "
        f"threshold {100 * report['threshold']:g} %; columns name detector and commits:"
    )
    return "\n".join(
        [
            *(intro, "", *table(["", *measured], rows), ""),
            *("What `rocmforge bench history` calls each, in percent of the histories:", ""),
            *table(["commits", "planted", *_kinds(report)], taken),
            "",
        ]
    )


def _kinds(report: dict[str, Any]) -> list[str]:
    rows = (row for found in report["drifts"].values() for row in found.values())
    return list(dict.fromkeys(kind for row in rows for kind in row))


def _readme_table(reports: list[dict[str, Any]]) -> str:
    """Of the machine that has the most of the rows; of equals, whose oldest row is the newest."""
    machines: dict[str, dict[str, dict[str, Any]]] = {}
    for report in sorted(reports, key=lambda report: str(report["date"])):
        if is_usual(report) and model_name(report) in README_ROWS:
            machines.setdefault(report["hardware_tag"], {})[model_name(report)] = report
    if not machines:
        return ""
    tag, newest = max(
        machines.items(),
        key=lambda of: (len(of[1]), min(str(row["date"]) for row in of[1].values())),
    )
    chosen = [newest[model] for model in README_ROWS if model in newest]
    intro = f"Runs interleaved with llama.cpp on `{tag}`, median tokens/s"
    columns = ("model (random weights)", "decode", "llama.cpp", "ratio")
    columns += ("prefill of 128", "llama.cpp", "ratio")
    lines = [
        f"{intro} ([more](docs/PERFORMANCE.md#beside-llamacpp-on-a-cpu)):",
        "",
        *table(columns, ()),
    ]
    for report in chosen:
        cells = [model_name(report)]
        for row in (report["phases"]["decode"], report["phases"]["prefill"]):
            cells += [
                f"{row['rocmforge']:.0f}",
                f"{row['llama.cpp']:.0f}",
                f"**{row['ratio']:.2f}**",
            ]
        lines.append(table_row(cells))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
