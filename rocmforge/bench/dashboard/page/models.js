// Every speed of a whole model, as a table.
"use strict";

rocmforge.page(async (state) => {
  const { choice, filter, table, value, number, NA } = rocmforge;
  const rows = await rocmforge.load("models");
  const tags = [...new Set(rows.map((row) => row.tag))];
  const phases = [...new Set(rows.map((row) => row.phase))];
  rocmforge.controls(document.getElementById("controls"), [
    choice("Machine", "machine", [["", "all"], ...tags], state.machine ?? ""),
    choice("Phase", "phase", [["", "all"], ...phases], state.phase ?? ""),
    filter("Filter", "filter", state.filter),
  ]);
  const text = (row) => [row.model, row.format, row.phase, row.setting, row.device, row.source].join(" ");
  const shown = rows.filter((row) => (!state.machine || row.tag === state.machine)
    && (!state.phase || row.phase === state.phase) && rocmforge.matches(text(row), state.filter));
  const columns = [
    { name: "Model", of: (row) => [row.model, row.format].filter(Boolean).join(" ") },
    { name: "Phase", of: (row) => row.phase },
    { name: "Setting", of: (row) => [row.setting, row.device].filter(Boolean).join(", ") },
    { name: "Value", number: true, of: (row) => (row.absent ? `${NA} (${row.absent})` : value(row.value, row.unit)), by: (row) => row.value },
    { name: "99 % interval", number: true, of: (row) => (row.low === null ? NA : `${number(row.low)} … ${value(row.high, row.unit)}`), by: (row) => row.low },
    { name: "llama.cpp", number: true, of: (row) => value(row.peer, row.unit), by: (row) => row.peer },
    { name: "Ratio", number: true, by: (row) => row.ratio,
      of: (row) => (row.ratio === null ? NA : `${row.ratio.toFixed(2)} (${row.ratio_low.toFixed(2)} … ${row.ratio_high.toFixed(2)})`) },
    { name: "Machine", of: (row) => row.tag },
    { name: "Source", of: (row) => [row.source, (row.commit ?? NA).slice(0, 8), (row.date ?? "").slice(0, 10), row.marked].filter(Boolean).join(", ") },
  ];
  const caption = `${shown.length} of ${rows.length} speeds`;
  document.getElementById("rows").replaceChildren(table(caption, columns, shown, { order: state.order, name: "order" }));
});
