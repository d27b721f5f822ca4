// The time to the first token: its parts, stacked, and over the length of the prompt.
"use strict";

const PART_NAMES = {
  tokenize: "tokenize the text",
  embedding: "embedding",
  host_to_device: "copy to the device",
  "rest of prefill": "rest of the prompt's pass",
  device_to_host: "copy to the host",
  first_token: "choose the token",
};

rocmforge.page(async (state) => {
  const { machines, command } = await rocmforge.load("ttft");
  const content = document.getElementById("content");
  if (!machines.length) {
    content.replaceChildren(points.absent("no machine was measured", command));
    return;
  }
  const machine = points.machine(machines, state.machine, ["splits"]);
  const devices = points.values([...machine.splits, ...machine.prompts], "device");
  const device = points.picked(devices, state.device);
  rocmforge.controls(document.getElementById("controls"), [
    points.machines(machines, machine),
    devices.length > 1 && rocmforge.choice("Device", "device", devices, device),
  ].filter(Boolean));
  const splits = machine.splits.filter((one) => one.device === device);
  const prompts = machine.prompts.filter((one) => one.device === device);
  content.replaceChildren(
    ...(splits.length ? drawnSplits(splits) : [points.absent("the parts were not measured on this machine", command)]),
    ...(prompts.length ? drawnPrompts(prompts, state)
      : [points.absent("the time was not measured over the prompt's length on this machine", "rocmforge bench run --bench inference.Prompt")]),
  );
});

function drawnSplits(splits) {
  const { element, NA, value } = rocmforge;
  const parts = Object.keys(PART_NAMES);
  const names = Object.values(PART_NAMES);
  const bars = splits.flatMap((one) => one.parts.filter(([, ms]) => ms !== null)
    .map(([part, ms]) => ({ model: one.model, part: PART_NAMES[part], ms })));
  const models = points.values(splits, "model");
  const plot = (width) => Plot.plot({
    width, style: rocmforge.style, color: rocmforge.colour(names),
    height: 60 + 44 * models.length, marginTop: 34, marginLeft: points.room(models, width), marginRight: 24,
    x: { label: "ms", grid: true, axis: "top", ticks: width / 90 }, y: { label: null, domain: models },
    marks: [
      Plot.barX(bars, { x: "ms", y: "model", fill: "part", order: names, title: (one) => `${one.part}: ${value(one.ms, "ms")}` }),
      Plot.ruleX([0]),
    ],
  });
  const total = (one) => one.parts.reduce((sum, [, ms]) => sum + (ms ?? 0), 0);
  const share = (one, ms) => (ms === null ? NA : `${value(ms, "ms")} (${rocmforge.percent(ms / total(one))})`);
  const label = splits.map((one) => `${one.model}: ${value(total(one), "ms")} to the first token`).join("; ");
  const table = rocmforge.table("Parts of the time to the first token", [
    { name: "Model", of: (one) => one.model },
    ...parts.map((part, at) => ({ name: names[at], number: true, of: (one) => share(one, one.parts[at][1]) })),
    { name: "Sum", number: true, of: (one) => value(total(one), "ms") },
    { name: "Load, once a start", number: true, of: (one) => value(one.load, "ms") },
    ...points.provenance.slice(0, 2),
  ], splits);
  const passes = splits.map((one) => `${rocmforge.percent(one.prefill / total(one))} of it for ${one.model}`).join(", ");
  return [
    element("h2", {}, "By its parts"), rocmforge.legend(names),
    rocmforge.chart("The split of the first token, ms, lower is better", `${label}.`, plot, table),
    element("p", {}, `The prompt's pass, with the embedding and both copies, takes ${passes}. In the table, ${NA} is what a device does not do or what was not measured.`),
  ];
}

function drawnPrompts(prompts, state) {
  const { element, number, value } = rocmforge;
  const models = points.values(prompts, "model");
  const lengths = points.values(prompts, "tokens").sort((a, b) => a - b);
  const plot = (width) => Plot.plot({
    width, height: 340, style: rocmforge.style, color: rocmforge.colour(models), marginLeft: 62, marginRight: 24, marginTop: 28, marginBottom: 38,
    x: { label: "tokens of the prompt", type: "point", domain: lengths, tickFormat: points.count },
    y: { label: "ms, log", type: "log", grid: true, ticks: 5, tickFormat: number },
    marks: [
      Plot.ruleX(prompts.filter((one) => one.low !== null), { x: "tokens", y1: "low", y2: "high", stroke: "model", strokeWidth: 2 }),
      Plot.line(prompts, { x: "tokens", y: "value", stroke: "model", z: "model", sort: "tokens", strokeWidth: 2 }),
      Plot.dot(prompts, { x: "tokens", y: "value", fill: "model", r: 4, title: (one) => `${one.model}, ${points.count(one.tokens)} tokens: ${value(one.value, "ms")}, ${one.commit}` }),
    ],
  });
  const label = `Time to the first token of ${models.join(", ")} over prompts of ${lengths.map(points.count).join(", ")} tokens.`;
  const table = rocmforge.table("Time to the first token over the prompt", [
    { name: "Model", of: (one) => one.model },
    { name: "Tokens", number: true, of: (one) => points.count(one.tokens), by: (one) => one.tokens },
    { name: "ms", number: true, of: (one) => number(one.value), by: (one) => one.value },
    { name: "99 % interval", number: true, of: (one) => points.interval(one, number), by: (one) => one.low },
    ...points.provenance,
  ], prompts, { order: state.sort, name: "sort" });
  return [
    element("h2", {}, "Over the length of the prompt"), rocmforge.legend(models),
    rocmforge.chart("Time to the first token, ms, lower is better", label, plot, table),
  ];
}
