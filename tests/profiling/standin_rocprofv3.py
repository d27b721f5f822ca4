"""Plays rocprofv3 where there is none: takes its options, runs the program, and writes its files.

It knows the options and the shapes of files from rocprofv3's documentation and schema, and refuses
an option that rocprofv3 would refuse. `behaviour.json` beside the program says what it plays:
``{"forms": ["csv", "rocpd"], "drop": ["NAME"], "zero": ["NAME"], "exit": 1}``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

FORMS = ("csv", "json", "pftrace", "otf2", "rocpd")

# name, calls, ns of a call, workgroup, LDS, VGPRs, SGPRs
KERNELS: list[tuple[str, int, int, int, int, int, int]] = [
    ("matmul", 64, 21_000, 256, 4352, 88, 48),
    ("matmul", 32, 9_000, 256, 4352, 64, 48),
    ("attention_prompt", 8, 50_000, 128, 16384, 120, 64),
    ("rmsnorm", 65, 3_500, 1024, 128, 24, 16),
    ("__amd_rocclr_copyBuffer", 3, 7_000, 512, 0, 16, 32),
]
RUNS = [(number, kernel) for number, kernel in enumerate(KERNELS) for _ in range(kernel[1])]


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rocprofv3", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="store_true")
    parser.add_argument("-d", "--output-directory")
    parser.add_argument("-o", "--output-file")
    forms = behaviour().get("forms", list(FORMS))
    formats = f"For adding output format (supported formats: {', '.join(forms)})"
    parser.add_argument("-f", "--output-format", nargs="+", choices=forms, help=formats)
    for name in ("kernel-trace", "memory-copy-trace", "stats"):
        parser.add_argument(f"--{name}", nargs="?", const=True)
    parser.add_argument("--pmc", nargs="*")
    parser.add_argument("--kernel-include-regex")
    own = words[: words.index("--")] if "--" in words else words
    args = parser.parse_args(own)
    args.program = words[len(own) + 1 :]
    return args


def behaviour() -> dict[str, Any]:
    file = Path(sys.argv[0]).with_name("behaviour.json")
    played: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return played


def value_of(counter: str, kernel: int) -> float:
    return 0.0 if counter in behaviour().get("zero", ()) else 1000.0 * (kernel + 1) + len(counter)


def dispatches(args: argparse.Namespace) -> list[dict[str, Any]]:
    found, clock = [], 1_000_000
    for number, (kernel, what) in enumerate(RUNS, 1):
        name, _, duration, workgroup, lds, vgprs, sgprs = what
        found.append(
            {
                "number": number,
                "kernel": kernel,
                "name": name,
                "start": clock,
                "end": clock + duration,
                "workgroup": workgroup,
                "lds": lds,
                "vgprs": vgprs,
                "sgprs": sgprs,
            }
        )
        clock += duration + 400
    return found


def write_database(path: Path, args: argparse.Namespace) -> None:
    with sqlite3.connect(path) as db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO rocpd_metadata_u(tag, value) VALUES ('schema_version', '3')")
        for row in dispatches(args):
            db.execute(
                "INSERT INTO dispatch_u VALUES (:number,:kernel,:name,:start,:end,:workgroup,"
                ":lds,:vgprs,:sgprs)",
                row,
            )
            for name in counted(args):
                value = value_of(name, row["kernel"])
                db.execute("INSERT INTO pmc_u VALUES (?,?,?)", (row["number"], name, value))
        if args.memory_copy_trace:
            db.execute("INSERT INTO copy_u VALUES ('MEMORY_COPY_HOST_TO_DEVICE', 10, 110, 4096)")
    db.close()


def counted(args: argparse.Namespace) -> list[str]:
    asked = [name for word in args.pmc or () for name in word.split(",")]
    return [name for name in asked if name not in behaviour().get("drop", ())]


def write_tables(prefix: str, args: argparse.Namespace) -> None:
    common = ["Kernel_Name", "Start_Timestamp", "End_Timestamp", "VGPR_Count", "SGPR_Count"]
    rows = dispatches(args)
    if args.kernel_trace:
        with open(f"{prefix}_kernel_trace.csv", "w", newline="") as file:
            table = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
            table.writerow(["Kind", "Agent_Id", "Queue_Id", "Dispatch_Id", *common, *TRACE])
            for r in rows:
                own = [r["name"], r["start"], r["end"], r["vgprs"], r["sgprs"]]
                size = [r["lds"], 0, r["workgroup"], 1, 1, r["workgroup"] * 64, 1, 1]
                table.writerow(["KERNEL_DISPATCH", "Agent 1", 1, r["number"], *own, *size])
    if args.pmc:
        with open(f"{prefix}_counter_collection.csv", "w", newline="") as file:
            table = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
            table.writerow(["Correlation_Id", "Dispatch_Id", "Agent_Id", *COUNTED, *common])
            for r in rows:
                for name in counted(args):
                    own = [r["name"], r["start"], r["end"], r["vgprs"], r["sgprs"]]
                    size = [r["workgroup"] * 64, r["workgroup"], r["lds"], 0]
                    value = value_of(name, r["kernel"])
                    table.writerow([r["number"], r["number"], "Agent 1", *size, name, value, *own])


TRACE = [
    *("LDS_Block_Size", "Scratch_Size", "Workgroup_Size_X", "Workgroup_Size_Y"),
    *("Workgroup_Size_Z", "Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"),
]
COUNTED = [
    *("Grid_Size", "Workgroup_Size", "LDS_Block_Size", "Scratch_Size"),
    *("Counter_Name", "Counter_Value"),
]
SCHEMA = """
CREATE TABLE rocpd_metadata_u (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE dispatch_u (number, kernel, name, start, "end", workgroup, lds, vgprs, sgprs);
CREATE TABLE pmc_u (number, counter, value);
CREATE TABLE copy_u (name, start, "end", size);
CREATE VIEW rocpd_metadata AS SELECT * FROM rocpd_metadata_u;
CREATE VIEW kernels AS SELECT number AS id, 'g' AS guid, 7 AS tid, 'KERNEL_DISPATCH' AS category,
  name AS region, name, 1 AS nid, 77 AS pid, 4 AS agent_abs_index, 1 AS agent_log_index,
  0 AS agent_type_index, 'GPU' AS agent_type, 1 AS code_object_id, kernel AS kernel_id,
  number AS dispatch_id, 0 AS stream_id, 1 AS queue_id, 'Queue 1' AS queue, 'Stream 0' AS stream,
  start, "end", "end" - start AS duration, workgroup * 64 AS grid_x, 1 AS grid_y, 1 AS grid_z,
  workgroup AS workgroup_x, 1 AS workgroup_y, 1 AS workgroup_z, lds AS lds_size,
  0 AS scratch_size, vgprs AS vgpr_count, 0 AS accum_vgpr_count, sgprs AS sgpr_count,
  lds AS static_lds_size, 0 AS static_scratch_size, 0 AS stack_id, 0 AS parent_stack_id,
  number AS corr_id FROM dispatch_u;
CREATE VIEW counters_collection AS SELECT D.number AS id, 'g' AS guid, D.number AS dispatch_id,
  kernel AS kernel_id, D.number AS event_id, D.number AS correlation_id, 77 AS pid, 7 AS tid,
  4 AS agent_id, 4 AS agent_abs_index, 1 AS agent_log_index, 0 AS agent_type_index,
  'GPU' AS agent_type, 1 AS queue_id, workgroup * 64 AS grid_size_x, 1 AS grid_size_y,
  1 AS grid_size_z, workgroup * 64 AS grid_size, name AS kernel_name,
  workgroup AS workgroup_size_x, 1 AS workgroup_size_y, 1 AS workgroup_size_z,
  workgroup AS workgroup_size, lds AS lds_block_size, 0 AS scratch_size, vgprs AS vgpr_count,
  0 AS accum_vgpr_count, sgprs AS sgpr_count, counter AS counter_name, counter AS counter_symbol,
  value, start, "end", "end" - start AS duration
  FROM dispatch_u D JOIN pmc_u P ON P.number = D.number;
CREATE VIEW memory_copies AS SELECT 1 AS id, 'g' AS guid, 'MEMORY_COPY' AS category, 1 AS nid,
  77 AS pid, 7 AS tid, start, "end", "end" - start AS duration, name, size, 4 AS dst_agent_abs_index
  FROM copy_u;
"""


def main() -> int:
    args = arguments(sys.argv[1:])
    if args.version:
        print(
            "             version: 1.1.0\n        git_revision: none\n        rocm_version: 7.1.0"
        )
        return 0
    code = subprocess.run(args.program, check=False).returncode
    if code or behaviour().get("exit"):
        print("Fatal error: the application failed", file=sys.stderr)
        return code or int(behaviour()["exit"])
    if behaviour().get("silent"):
        return 0
    folder = Path(args.output_directory)
    folder.mkdir(parents=True)
    prefix = str(folder / args.output_file.replace("%pid%", str(os.getpid())))
    if "rocpd" in (args.output_format or ["rocpd"]):
        write_database(Path(f"{prefix}_results.db"), args)
    else:
        write_tables(prefix, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
