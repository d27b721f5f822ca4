// How much of the roofline each format, model and context reaches, and the rates behind it.
"use strict";

rocmforge.page(async (state) => {
  const { choice } = rocmforge;
  const { machines, command } = await rocmforge.load("roofline");
  const content = document.getElementById("content");
  if (!machines.length) {
    content.replaceChildren(points.absent("no machine was measured", command));
    return;
  }
  const machine = points.machine(machines, state.machine, ["shares"]);
  const devices = points.values([...machine.shares, ...machine.rates], "device");
  const device = points.picked(devices, state.device);
  const on = (list) => list.filter((one) => one.device === device);
  const works = points.values(on(machine.shares), "work");
  const work = works.includes(state.work) ? state.work : "";
  const rated = points.values(on(machine.rates), "work");
  const rates = points.picked(rated, state.rates);
  rocmforge.controls(document.getElementById("controls"), [
    points.machines(machines, machine),
    devices.length > 1 && choice("Device", "device", devices, device),
    works.length > 1 && choice("Work", "work", [["", "all"], ...works], work),
    rated.length > 1 && choice("Rates of", "rates", rated, rates),
  ].filter(Boolean));
  const shares = on(machine.shares).filter((one) => !work || one.work === work);
  const rate = on(machine.rates).filter((one) => one.work === rates);
  content.replaceChildren(
    ...(shares.length ? drawnShares(shares, works, state) : [points.absent("no share of the roofline was measured on this machine", command)]),
    ...(rate.length ? [drawnRates(rate, rates, device === "cpu" ? machine.reads : null, state)]
      : [points.absent("no rate in GB/s or GFLOP/s was measured on this machine", "rocmforge bench run --profile full")]),
  );
});

function drawnShares(shares, works, state) {
  const { percent } = rocmforge;
  const rows = points.values(shares, "what");
  const top = Math.min(4, Math.max(1, ...shares.map((one) => one.high ?? one.value)));
  const plot = (width) => Plot.plot({
    width, style: rocmforge.style, color: rocmforge.colour(works),
    height: 60 + 22 * rows.length, marginTop: 34, marginLeft: points.room(rows, width), marginRight: 20,
    x: { label: "share of the roofline, %", domain: [0, 100 * top], clamp: true, grid: true, axis: "top", ticks: width / 90 },
    y: { label: null, domain: rows },
    marks: [
      Plot.ruleX([100], { strokeWidth: 2 }),
      Plot.ruleY(shares.filter((one) => one.low !== null), {
        y: "what", x1: (one) => 100 * one.low, x2: (one) => 100 * one.high, stroke: "work", strokeWidth: 2,
      }),
      Plot.dot(shares, {
        y: "what", x: (one) => 100 * one.value, fill: "work", r: 4.5,
        title: (one) => `${one.what}, ${one.work}: ${percent(one.value)} of the roofline, ${one.commit}`,
      }),
    ],
  });
  const best = shares.reduce((a, b) => (b.value > a.value ? b : a));
  const label = `Shares of the roofline of ${shares.length} benchmarks; the largest is ${percent(best.value)}, ${best.what}, ${best.work}.`;
  const table = rocmforge.table("Shares of the roofline", [
    { name: "Measured", of: (one) => one.what },
    { name: "Work", of: (one) => one.work },
    { name: "Share", number: true, of: (one) => percent(one.value), by: (one) => one.value },
    { name: "99 % interval", number: true, of: (one) => points.interval(one, percent), by: (one) => one.low },
    ...points.provenance,
  ], shares, { order: state.sort, name: "sort" });
  return [rocmforge.legend(works), rocmforge.chart("Share of the roofline, higher is better", label, plot, table)];
}

function drawnRates(rates, name, reads, state) {
  const { number, value } = rocmforge;
  const { unit } = rates[0];
  const rows = points.values(rates, "what");
  const line = unit === "GB/s" && reads !== null
    ? ` The dashed line is what the processes read from memory beside it, ${value(reads, unit)}; a cache gives more.` : "";
  const plot = (width) => Plot.plot({
    width, style: rocmforge.style,
    height: 60 + 22 * rows.length, marginTop: 34, marginLeft: points.room(rows, width), marginRight: 20,
    x: { label: unit, zero: true, nice: true, grid: true, axis: "top", ticks: width / 90 },
    y: { label: null, domain: rows },
    marks: [
      Plot.barX(rates, {
        y: "what", x: "value", fill: rocmforge.colours[0], fillOpacity: 0.75,
        title: (one) => `${one.what}: ${value(one.value, unit)}, ${one.commit}`,
      }),
      Plot.ruleY(rates.filter((one) => one.low !== null), { y: "what", x1: "low", x2: "high", strokeWidth: 2 }),
      line ? Plot.ruleX([reads], { strokeWidth: 2, strokeDasharray: "5 3" }) : null,
    ],
  });
  const best = rates.reduce((a, b) => (b.value > a.value ? b : a));
  const label = `${unit} of ${rates.length} benchmarks of ${name}; the largest is ${value(best.value, unit)}, ${best.what}.${line}`;
  const table = rocmforge.table(`Rates of ${name}`, [
    { name: "Measured", of: (one) => one.what },
    { name: unit, number: true, of: (one) => number(one.value), by: (one) => one.value },
    { name: "99 % interval", number: true, of: (one) => points.interval(one, number), by: (one) => one.low },
    ...points.provenance,
  ], rates, { order: state.order, name: "order" });
  return rocmforge.chart(`Rates of ${name} in ${unit}, higher is better.${line}`, label, plot, table);
}
