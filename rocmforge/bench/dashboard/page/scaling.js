// Decoded tokens per second over sequences and over the depth of the context.
"use strict";

const CURVES = {
  batches: { title: "Over sequences", at: "sequences at once" },
  depths: { title: "Over the context", at: "tokens of context" },
};

rocmforge.page(async (state) => {
  const { machines, commands } = await rocmforge.load("scaling");
  const content = document.getElementById("content");
  if (!machines.length) {
    content.replaceChildren(points.absent("no machine was measured", commands.batches));
    return;
  }
  const machine = points.machine(machines, state.machine, ["batches", "depths"]);
  const every = [...machine.batches, ...machine.depths];
  const models = points.values(every, "model");
  const line = (one) => (one.kv === null ? one.model : `${one.model}, ${one.kv} cache`);
  const fits = new Set(every.map(line)).size <= rocmforge.colours.length;
  const model = ["all", ...models].includes(state.model) ? state.model : fits ? "all" : models[0];
  const devices = points.values(every, "device");
  const device = points.picked(devices, state.device);
  const log = state.scale === "log";
  rocmforge.controls(document.getElementById("controls"), [
    points.machines(machines, machine),
    devices.length > 1 && rocmforge.choice("Device", "device", devices, device),
    models.length > 1 && rocmforge.choice("Model", "model", ["all", ...models], model),
    rocmforge.choice("Scale", "scale", [["", "linear"], ["log", "logarithmic"]], log ? "log" : ""),
  ].filter(Boolean));
  const on = (list) => list.filter((one) => one.device === device && (model === "all" || one.model === model))
    .map((one) => ({ ...one, line: line(one) }));
  content.replaceChildren(...Object.keys(CURVES).flatMap((name) => {
    const shown = on(machine[name]);
    const { title } = CURVES[name];
    return [rocmforge.element("h2", {}, title), ...(shown.length ? drawnCurve(name, shown, log, state)
      : [points.absent("nothing of it was measured on this machine", commands[name])])];
  }));
});

function drawnCurve(name, shown, log, state) {
  const { number, value } = rocmforge;
  const { title, at } = CURVES[name];
  const unit = "tokens/s";
  const lines = points.values(shown, "line");
  const places = points.values(shown, "at").sort((a, b) => a - b);
  const plot = (width) => Plot.plot({
    width, height: 360, style: rocmforge.style, color: rocmforge.colour(lines), marginLeft: 62, marginRight: 24, marginTop: 28, marginBottom: 38,
    x: { label: at, type: "point", domain: places, tickFormat: points.count },
    y: { label: log ? `${unit}, log` : unit, grid: true, tickFormat: number, ...(log ? { type: "log", ticks: 5 } : { zero: true }) },
    marks: [
      Plot.ruleX(shown.filter((one) => one.low !== null), { x: "at", y1: "low", y2: "high", stroke: "line", strokeWidth: 2 }),
      Plot.line(shown, { x: "at", y: "value", stroke: "line", z: "line", sort: "at", strokeWidth: 2 }),
      Plot.dot(shown, { x: "at", y: "value", fill: "line", r: 4, title: (one) => `${one.line}, ${points.count(one.at)} ${at}: ${value(one.value, unit)}, ${one.commit}` }),
    ],
  });
  const best = shown.reduce((a, b) => (b.value > a.value ? b : a));
  const label = `${title}: ${unit} of ${lines.join("; ")}. The most is ${value(best.value, unit)}, ${best.line}, ${points.count(best.at)} ${at}.`;
  const table = rocmforge.table(`${title}: ${unit}`, [
    { name: "Model", of: (one) => one.line },
    { name: at, number: true, of: (one) => points.count(one.at), by: (one) => one.at },
    { name: unit, number: true, of: (one) => number(one.value), by: (one) => one.value },
    { name: "99 % interval", number: true, of: (one) => points.interval(one, number), by: (one) => one.low },
    ...points.provenance,
  ], shown, { order: state[name], name });
  return [rocmforge.legend(lines), rocmforge.chart(`Decoded ${unit}, higher is better`, label, plot, table)];
}
