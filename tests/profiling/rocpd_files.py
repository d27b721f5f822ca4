"""Makes databases in the shape of rocprofv3's rocpd: tables named with a UUID, and views of them.

Kernels, numbers and times are our own.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

GUID = "0000aaaa-1111-2222-3333-444455556666"
UUID = "_0000aaaa_1111_2222_3333_444455556666"

TABLES = {
    "metadata": "tag TEXT, value TEXT",
    "string": "guid TEXT, string TEXT",
    "info_process": "guid TEXT, pid INTEGER, command TEXT",
    "info_thread": "guid TEXT, tid INTEGER",
    "info_agent": "guid TEXT, type TEXT, absolute_index INTEGER, logical_index INTEGER,"
    " type_index INTEGER, name TEXT, product_name TEXT, extdata TEXT",
    "info_queue": "guid TEXT, name TEXT",
    "info_stream": "guid TEXT, name TEXT",
    "info_pmc": "guid TEXT, name TEXT",
    "info_kernel_symbol": "guid TEXT, display_name TEXT, group_segment_size INTEGER,"
    " private_segment_size INTEGER, sgpr_count INTEGER, arch_vgpr_count INTEGER,"
    " accum_vgpr_count INTEGER",
    "event": "guid TEXT, category_id INTEGER, stack_id INTEGER, correlation_id INTEGER,"
    " extdata TEXT",
    "pmc_event": "guid TEXT, event_id INTEGER, pmc_id INTEGER, value REAL",
    "region": "guid TEXT, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER,"
    " event_id INTEGER",
    "sample": "guid TEXT, timestamp BIGINT, name_id INTEGER, event_id INTEGER",
    "kernel_dispatch": "guid TEXT, pid INTEGER, tid INTEGER, agent_id INTEGER, kernel_id INTEGER,"
    " dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT,"
    " private_segment_size INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER,"
    " workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER,"
    " grid_size_y INTEGER, grid_size_z INTEGER, region_name_id INTEGER, event_id INTEGER",
    "memory_copy": "guid TEXT, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT,"
    " name_id INTEGER, size INTEGER, event_id INTEGER",
    "memory_allocate": "guid TEXT, pid INTEGER, tid INTEGER, type TEXT, level TEXT, start BIGINT,"
    " end BIGINT, size INTEGER, event_id INTEGER",
}

_CATEGORY = "(SELECT string FROM rocpd_string s WHERE s.id = e.category_id) AS category"
_RUN = """
    FROM rocpd_kernel_dispatch k JOIN rocpd_event e ON e.id = k.event_id
    JOIN rocpd_info_agent a ON a.id = k.agent_id JOIN rocpd_info_process p ON p.id = k.pid
    JOIN rocpd_info_thread t ON t.id = k.tid JOIN rocpd_info_kernel_symbol s ON s.id = k.kernel_id
"""
VIEWS = {
    "kernels": f"""
        SELECT k.id, k.guid, t.tid, {_CATEGORY}, r.string AS region, s.display_name AS name, p.pid,
            a.absolute_index AS agent_abs_index, a.logical_index AS agent_log_index,
            a.type AS agent_type, k.kernel_id, k.dispatch_id, k.stream_id, k.queue_id,
            q.name AS queue, st.name AS stream, k.start, k.end, k.end - k.start AS duration,
            k.grid_size_x AS grid_x, k.grid_size_y AS grid_y, k.grid_size_z AS grid_z,
            k.workgroup_size_x AS workgroup_x, k.workgroup_size_y AS workgroup_y,
            k.workgroup_size_z AS workgroup_z, k.group_segment_size AS lds_size,
            k.private_segment_size AS scratch_size, s.arch_vgpr_count AS vgpr_count,
            s.accum_vgpr_count, s.sgpr_count, s.group_segment_size AS static_lds_size,
            e.stack_id, e.correlation_id AS corr_id
        {_RUN} JOIN rocpd_string r ON r.id = k.region_name_id
        LEFT JOIN rocpd_info_stream st ON st.id = k.stream_id
        LEFT JOIN rocpd_info_queue q ON q.id = k.queue_id""",
    "top_kernels": """
        SELECT s.display_name AS name, COUNT(k.kernel_id) AS total_calls,
            SUM(k.end - k.start) / 1000.0 AS total_duration,
            (SUM(k.end - k.start) / COUNT(k.kernel_id)) / 1000.0 AS average
        FROM rocpd_kernel_dispatch k JOIN rocpd_info_kernel_symbol s ON s.id = k.kernel_id
        GROUP BY name ORDER BY total_duration DESC""",
    "memory_copies": f"""
        SELECT m.id, m.guid, {_CATEGORY}, p.pid, t.tid, m.start, m.end, n.string AS name, m.size
        FROM rocpd_memory_copy m JOIN rocpd_event e ON e.id = m.event_id
        JOIN rocpd_string n ON n.id = m.name_id JOIN rocpd_info_process p ON p.id = m.pid
        JOIN rocpd_info_thread t ON t.id = m.tid""",
    "memory_allocations": f"""
        SELECT m.id, m.guid, {_CATEGORY}, p.pid, t.tid, m.start, m.end, m.type, m.level, m.size
        FROM rocpd_memory_allocate m JOIN rocpd_event e ON e.id = m.event_id
        JOIN rocpd_info_process p ON p.id = m.pid JOIN rocpd_info_thread t ON t.id = m.tid""",
    "counters_collection": f"""
        SELECT MIN(c.id) AS id, c.guid, k.dispatch_id, k.kernel_id, e.id AS event_id,
            e.correlation_id, p.pid, t.tid, k.agent_id, a.absolute_index AS agent_abs_index,
            a.logical_index AS agent_log_index, k.queue_id, k.grid_size_x, k.grid_size_y,
            k.grid_size_z, k.grid_size_x * k.grid_size_y * k.grid_size_z AS grid_size,
            s.display_name AS kernel_name, k.workgroup_size_x, k.workgroup_size_y,
            k.workgroup_size_z, k.group_segment_size AS lds_block_size,
            k.private_segment_size AS scratch_size, s.arch_vgpr_count AS vgpr_count,
            s.accum_vgpr_count, s.sgpr_count, i.name AS counter_name, SUM(c.value) AS value,
            k.start, k.end
        {_RUN} JOIN rocpd_pmc_event c ON c.event_id = k.event_id
        JOIN rocpd_info_pmc i ON i.id = c.pmc_id
        GROUP BY c.guid, k.dispatch_id, i.name, k.agent_id""",
    "regions": f"""
        SELECT r.id, r.guid, {_CATEGORY}, n.string AS name, p.pid, t.tid, r.start, r.end,
            r.end - r.start AS duration, e.extdata
        FROM rocpd_region r JOIN rocpd_event e ON e.id = r.event_id
        JOIN rocpd_string n ON n.id = r.name_id JOIN rocpd_info_process p ON p.id = r.pid
        JOIN rocpd_info_thread t ON t.id = r.tid""",
    "regions_and_samples": f"""
        SELECT * FROM regions UNION ALL
        SELECT m.id, m.guid, {_CATEGORY}, n.string, 1, 1, m.timestamp, m.timestamp, 0, e.extdata
        FROM rocpd_sample m JOIN rocpd_event e ON e.id = m.event_id
        JOIN rocpd_string n ON n.id = m.name_id""",
}
"""In the shape of schema 3."""

VIEWS_4 = {
    "kernels": """
        SELECT k.id, k.guid, a.absolute_index AS agent_absolute_index, s.display_name AS name,
            k.kernel_id, k.dispatch_id, k.queue_id, k.stream_id, k.start, k.end,
            k.grid_size_x AS grid_x, k.grid_size_y AS grid_y, k.grid_size_z AS grid_z,
            k.grid_size_x * k.grid_size_y AS ocl_grid_size, k.workgroup_size_x AS workgroup_x,
            k.workgroup_size_y AS workgroup_y, k.workgroup_size_z AS workgroup_z,
            k.grid_size_x / k.workgroup_size_x AS grid_size_x, k.grid_size_y AS grid_size_y,
            k.grid_size_z AS grid_size_z, k.grid_size_x / k.workgroup_size_x AS grid_size,
            k.group_segment_size AS lds_block_size, k.private_segment_size AS scratch_size,
            s.arch_vgpr_count, s.accum_vgpr_count, s.sgpr_count
        FROM rocpd_kernel_dispatch k JOIN rocpd_info_agent a ON a.id = k.agent_id
        JOIN rocpd_info_kernel_symbol s ON s.id = k.kernel_id""",
    "kernel_pmc_events": """
        SELECT n.*, i.name AS pmc_name, c.value AS pmc_value
        FROM kernels n JOIN rocpd_kernel_dispatch k ON k.id = n.id
        JOIN rocpd_pmc_event c ON c.event_id = k.event_id JOIN rocpd_info_pmc i ON i.id = c.pmc_id
    """,
    "memory_copies": VIEWS["memory_copies"],
    "memory_allocations": VIEWS["memory_allocations"],
    "regions": VIEWS["regions"],
}

STRINGS = (
    *("KERNEL_DISPATCH", "MEMORY_COPY", "HIP_RUNTIME_API_EXT", "MARKER_CORE_RANGE_API"),
    *("MEMORY_ALLOCATION", "decode", "MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST"),
    *("hipLaunchKernel", "hipMemcpyAsync", "pc_sample", "token 7"),
)
EVENTS = {"kernel": 1, "copy": 2, "call": 3, "marker": 4, "allocation": 5}
KERNELS = (
    ("void matmul_q4_k<64, 128>(char const*, float*)", 8192, 0, 48, 96, 8),
    ("rmsnorm(float const*, float*)", 512, 0, 16, 24, 0),
)
COUNTERS = ("SQ_WAVES", "TCC_HIT_sum")
START = 5_000_000_000_000


def make(
    path: Path, runs: int = 12, version: str | None = "3", views: dict[str, str] | None = None
) -> Path:
    """Write a database of a run with so many runs of kernels; every third has counters."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA page_size = 1024")
        for name, columns in TABLES.items():
            declared = f"id INTEGER PRIMARY KEY, {columns}".replace(" end BIGINT", ' "end" BIGINT')
            database.execute(f"CREATE TABLE rocpd_{name}{UUID} ({declared})")
            database.execute(f"CREATE VIEW rocpd_{name} AS SELECT * FROM rocpd_{name}{UUID}")
        for name, query in (VIEWS if views is None else views).items():
            database.execute(f"CREATE VIEW {name} AS {query}")
        _fill(database, runs, version)
        database.commit()
    return path


def add(database: sqlite3.Connection, table: str, *values: object) -> int:
    """Add a row to one of the tables named with the UUID; return its id."""
    marks = ", ".join("?" for _ in values)
    names = [part.split()[0] for part in TABLES[table].split(",")]
    columns = ", ".join(f'"{name}"' for name in names)
    query = f"INSERT INTO rocpd_{table}{UUID} ({columns}) VALUES ({marks})"
    return int(database.execute(query, values).lastrowid or 0)


def _fill(database: sqlite3.Connection, runs: int, version: str | None) -> None:
    if version is not None:
        add(database, "metadata", "schema_version", version)
    add(database, "metadata", "guid", GUID)
    for string in STRINGS:
        add(database, "string", GUID, string)
    add(database, "info_process", GUID, 4711, "rocmforge generate")
    add(database, "info_thread", GUID, 4712)
    cpu = "CPU", 0, 0, 0, "Some CPU", "A processor", '{"cu_count": 16, "caches": [1, 2]}'
    gpu = "GPU", 4, 1, 0, "gfx1100", "A card", '{"cu_count": 96, "wave_front_size": 32}'
    add(database, "info_agent", GUID, *cpu)
    add(database, "info_agent", GUID, *gpu)
    add(database, "info_queue", GUID, "Queue 1")
    add(database, "info_stream", GUID, "Stream 1")
    for counter in COUNTERS:
        add(database, "info_pmc", GUID, counter)
    for kernel in KERNELS:
        add(database, "info_kernel_symbol", GUID, *kernel)
    for index in range(runs):
        _run(database, index)
    for index in range(4):
        start = START + index
        times = start, start + 700 + index
        event = add(database, "event", GUID, EVENTS["copy"], 0, 100 + index, "{}")
        name = 7 + index % 2
        add(database, "memory_copy", GUID, 1, 1, *times, name, 4096 * (index + 1), event)
        event = add(database, "event", GUID, EVENTS["call"], 0, 200 + index, '{"args": []}')
        add(database, "region", GUID, 1, 1, *times, 9 + index % 2, event)
    event = add(database, "event", GUID, EVENTS["marker"], 0, 300, "{}")
    add(database, "region", GUID, 1, 1, START, START + 9000, 12, event)
    add(database, "sample", GUID, START + 5, 11, event)
    for kind, size in (("ALLOC", 1 << 20), ("FREE", 0)):
        event = add(database, "event", GUID, EVENTS["allocation"], 0, 400, "{}")
        times = START - 50, START - 10
        add(database, "memory_allocate", GUID, 1, 1, kind, "REAL", *times, size, event)


def _run(database: sqlite3.Connection, index: int) -> None:
    event = add(database, "event", GUID, EVENTS["kernel"], 0, index + 1, "{}")
    start = START + 1000 * index
    times = start, start + 100 + 7 * index
    sizes = 256, 1, 1, 256 * (index + 1), 2, 1
    kernel = 1 + index % 2
    add(
        *(database, "kernel_dispatch", GUID, 1, 1, 2, kernel, index + 1, 1, 1, *times),
        *(16, 8192, *sizes, 6, event),
    )
    if index % 3 == 0:
        for counter in (1, 2):
            for instance in range(2):
                value = 1000.0 * index + 10 * counter + instance
                add(database, "pmc_event", GUID, event, counter, value)
