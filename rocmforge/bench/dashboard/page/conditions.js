// Load, clocks, power and temperature of every run of a machine, and joules per token.
"use strict";

const FIELDS = {
  load: "Other work, of the CPU time",
  load_average: "Load average",
  cpu_clock: "CPU clock",
  gpu_clock: "GPU clock",
  gpu_memory_clock: "GPU memory clock",
  gpu_power: "GPU power",
  gpu_temperature: "GPU temperature",
};

rocmforge.page(async (state) => {
  const { element } = rocmforge;
  const data = await rocmforge.load("conditions");
  const content = document.getElementById("content");
  if (!data.machines.length) {
    content.replaceChildren(points.absent("no machine was measured", "rocmforge bench run"));
    return;
  }
  const machine = points.machine(data.machines, state.machine, ["runs"]);
  rocmforge.controls(document.getElementById("controls"), [points.machines(data.machines, machine)]);
  const { runs } = machine;
  const known = Object.keys(FIELDS).filter((name) => runs.some((one) => one[name]));
  const unknown = Object.keys(FIELDS).filter((name) => !known.includes(name)).map((name) => FIELDS[name]);
  content.replaceChildren(
    ...(known.length ? [element("div", { class: "pair" }, ...known.map((name) => drawnField(name, runs, data.units[name])))] : []),
    ...(runs.length && unknown.length ? [element("p", {}, `${rocmforge.NA}: no process recorded ${unknown.join(", ")}.`)] : []),
    runs.length ? runsTable(runs, known, data.units, state) : points.absent("no run of this machine is stored", "rocmforge bench run --save-results"),
    ...inWords(machine),
    element("h2", {}, "Joules per token"),
    ...(machine.energy.length ? drawnEnergy(machine.energy)
      : [points.absent("the energy was not measured on this machine; it needs a GPU that says its power", data.command)]),
  );
});

const three = (numbers) => (numbers ? numbers.map((x) => rocmforge.number(x)).join(" / ") : rocmforge.NA);

function drawnField(name, runs, unit) {
  const shown = runs.filter((one) => one[name]).map((one) => ({ commit: one.commit, low: one[name][0], middle: one[name][1], high: one[name][2] }));
  const names = points.values(runs, "commit");
  const title = unit ? `${FIELDS[name]}, ${unit}` : FIELDS[name];
  const plot = (width) => Plot.plot({
    width, height: 230, style: rocmforge.style, marginLeft: 56, marginRight: 20, marginTop: 24, marginBottom: 72,
    x: { label: null, type: "point", domain: names, tickRotate: -60, ticks: points.ticks(names, width) },
    y: { label: unit || null, grid: true, zero: true, nice: true, tickFormat: rocmforge.number },
    marks: [
      Plot.areaY(shown, { x: "commit", y1: "low", y2: "high", fill: rocmforge.colours[0], fillOpacity: 0.25 }),
      Plot.ruleX(shown, { x: "commit", y1: "low", y2: "high", stroke: rocmforge.colours[0], strokeOpacity: 0.5 }),
      Plot.line(shown, { x: "commit", y: "middle", stroke: rocmforge.colours[0], strokeWidth: 2 }),
      Plot.dot(shown, { x: "commit", y: "middle", fill: rocmforge.colours[0], r: 3, title: (one) => `${one.commit}: ${three([one.low, one.middle, one.high])} ${unit}` }),
    ],
  });
  const last = shown.at(-1);
  const label = `${title}, of ${shown.length} runs; the newest, ${last.commit}: least, median and most ${three([last.low, last.middle, last.high])}.`;
  return rocmforge.chart(title, label, plot, null);
}

function runsTable(runs, known, units, state) {
  const column = (name) => ({
    name: `${FIELDS[name]}${units[name] ? `, ${units[name]}` : ""}`, number: true, of: (one) => three(one[name]), by: (one) => one[name]?.[1] ?? null,
  });
  const throttling = (one) => (one.throttling === null ? rocmforge.NA : one.throttling.join(", ") || "none");
  return rocmforge.table("Runs: least / median / most of the processes", [
    { name: "Commit", of: (one) => rocmforge.element("a", { href: `commits.html#${one.commit}` }, one.commit) },
    { name: "Commit's date", of: (one) => one.date },
    { name: "Measured on", of: (one) => one.measured },
    { name: "Marked benchmarks", number: true, of: (one) => `${one.marked} of ${one.timed}`, by: (one) => one.marked },
    ...known.map(column),
    { name: "Throttling", of: throttling },
  ], [...runs].reverse(), { order: state.sort, name: "sort" });
}

function inWords({ sides, said, marks }) {
  if (!said.length) return [];
  const { element, table } = rocmforge;
  const columns = [{ name: "Field", of: (row) => row[0] }, ...sides.map((name, at) => ({ name, of: (row) => row[at + 1] }))];
  const reasons = [{ name: "Benchmark", of: (row) => row[0] }, { name: "Why it is not to be trusted", of: (row) => row[1] }];
  return [
    element("h2", {}, "The runs that are compared"),
    table("What was recorded", columns, said),
    marks.length ? table("Marked benchmarks of the newest run", reasons, marks)
      : element("p", {}, "No benchmark of the newest run is marked."),
  ];
}

function drawnEnergy(energy) {
  const { number, value } = rocmforge;
  const models = points.values(energy, "model");
  const names = points.values(energy, "commit");
  const plot = (width) => Plot.plot({
    width, height: 280, style: rocmforge.style, color: rocmforge.colour(models), marginLeft: 56, marginRight: 20, marginTop: 24, marginBottom: 72,
    x: { label: null, type: "point", domain: names, tickRotate: -60, ticks: points.ticks(names, width) },
    y: { label: "J/token", grid: true, zero: true, nice: true, tickFormat: number },
    marks: [
      Plot.line(energy, { x: "commit", y: "value", stroke: "model", z: "model", strokeWidth: 2 }),
      Plot.dot(energy, { x: "commit", y: "value", fill: "model", r: 4, title: (one) => `${one.model}, ${one.commit}: ${value(one.value, "J/token")}` }),
    ],
  });
  const label = `Joules per token of ${models.join(", ")} over ${names.length} commits; the newest is ${value(energy.at(-1).value, "J/token")}.`;
  const table = rocmforge.table("Joules per token", [
    { name: "Model", of: (one) => one.model },
    { name: "J/token", number: true, of: (one) => number(one.value) },
    ...points.provenance,
  ], energy);
  return [rocmforge.legend(models), rocmforge.chart("Joules per token, lower is better", label, plot, table)];
}
