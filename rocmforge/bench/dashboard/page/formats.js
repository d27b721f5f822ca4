// Bits per weight, divergence and speed of each format, with the Pareto fronts that Python found.
"use strict";

const FRONTS = {
  bits: { front: "smallest_front", label: "bits per weight", curve: "step-after", better: "lower is better" },
  decode: { front: "fastest_front", label: "decode, tokens/s", curve: "step-before", better: "higher is better" },
};

rocmforge.page(async (state) => {
  const { element, NA } = rocmforge;
  const { machines, command } = await rocmforge.load("formats");
  const content = document.getElementById("content");
  if (!machines.length) {
    content.replaceChildren(points.absent("no machine was measured", command));
    return;
  }
  const fast = machines.find((one) => one.rows.some((row) => row.decode !== null));
  const machine = points.machine(machines, state.machine ?? fast?.tag, ["rows"]);
  rocmforge.controls(document.getElementById("controls"), [points.machines(machines, machine)]);
  const { rows } = machine;
  if (!rows.length) {
    content.replaceChildren(points.absent("no format was measured on this machine", command));
    return;
  }
  const threads = machine.threads === null ? "" : `, ${machine.threads} threads`;
  content.replaceChildren(
    element("p", {}, `The model is ${machine.model}, the reference its ${machine.reference} weights${threads}; measured at ${machine.commit ?? NA}, ${machine.date ?? NA}: ${machine.source}.`),
    ...drawnFormats(rows, "bits"),
    ...(rows.some((row) => row.decode !== null) ? drawnFormats(rows, "decode")
      : [points.absent("the formats' speed was not measured side by side on this machine", command)]),
    formatsTable(rows, state),
  );
});

function drawnFormats(rows, x) {
  const { front, label, curve, better } = FRONTS[x];
  const known = rows.filter((one) => one[x] !== null && one.kl !== null);
  const shown = known.filter((one) => one.kl > 0);
  const exact = known.filter((one) => one.kl <= 0).map((one) => one.format);
  const on = shown.filter((one) => one[front]).sort((a, b) => a[x] - b[x]);
  const text = { x, y: "kl", text: "format", fill: "currentColor", stroke: "var(--back)", strokeWidth: 4 };
  const plot = (width) => Plot.plot({
    width, height: 420, style: rocmforge.style, marginLeft: 62, marginRight: 46, marginBottom: 40, marginTop: 28,
    x: { label, grid: true, nice: true, ticks: width / 90 },
    y: { label: "divergence, nats", type: "log", grid: true, ticks: 5, tickFormat: (nats) => rocmforge.number(nats) },
    marks: [
      Plot.line(on, { x, y: "kl", stroke: rocmforge.colours[1], strokeWidth: 2, curve }),
      Plot.dot(shown, {
        x, y: "kl", r: 5, stroke: (one) => rocmforge.colours[one[front] ? 1 : 0], strokeWidth: 2,
        fill: (one) => (one[front] ? rocmforge.colours[1] : "var(--back)"),
        title: (one) => `${one.format}: ${rocmforge.number(one[x])} ${label}, ${rocmforge.number(one.kl)} nats`,
      }),
      Plot.text(on, { ...text, dy: -12 }),
      width > 700 ? Plot.text(shown.filter((one) => !one[front]), { ...text, dx: 9, textAnchor: "start" }) : null,
    ],
  });
  const all = known.filter((one) => one[front]).map((one) => one.format);
  const without = exact.length ? ` Without divergence, and so not on the logarithmic axis: ${exact.join(", ")}.` : "";
  const said = `On the front: ${all.join(", ")}.${without}`;
  const caption = `Divergence over ${label}, ${better}`;
  return [
    rocmforge.chart(caption, `${caption}, of ${shown.length} formats. ${said}`, plot, null),
    rocmforge.element("p", {}, said),
  ];
}

function formatsTable(rows, state) {
  const { number, percent } = rocmforge;
  const column = (name, key, text = number) => ({ name, number: true, of: (one) => text(one[key]), by: (one) => one[key] });
  const fronts = (one) => [one.smallest_front && "bits", one.fastest_front && "speed"].filter(Boolean).join(", ");
  return rocmforge.table("Formats", [
    { name: "Format", of: (one) => one.format },
    column("Bits per weight", "bits"),
    column("Divergence, nats", "kl"),
    column("Same likeliest token", "top1", percent),
    column("Perplexity", "perplexity"),
    column("Prefill, tokens/s", "prefill"),
    column("Decode, tokens/s", "decode"),
    { name: "On the front of", of: fronts },
  ], rows, { order: state.sort, name: "sort" });
}
