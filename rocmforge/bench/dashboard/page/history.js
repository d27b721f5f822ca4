// The history of one benchmark: its lines, chosen by machine and parameters, over the commits.
"use strict";

(() => {
  const { element, choice, filter, table, chart, number, NA } = rocmforge;
  const MOST = 8; // lines of a chart
  const LISTED = 60; // lines that can be ticked at once

  const short = (commit) => commit.slice(0, 8);
  // A number needs its parameter's name.
  const worded = ([name, value]) => (/^\d+$/.test(value) ? `${name} ${value}` : value);
  const title = (line, all) => [all.machines[line.machine], ...Object.entries(line.params).map(worded)].join(", ");

  // The points of a line as objects; a version of the benchmark's code is a piece of its own.
  const pointsOf = (measured, name, all, to) => measured.map(([at, value, low, high, version, marked]) => {
    const [commit, date, subject, authored] = all.commits[at];
    const scaled = [value, low, high].map((x) => (x === null ? null : x * to.factor));
    return { at, name, commit, date, subject, authored, marked, piece: `${name} ${version}`, value: scaled[0], low: scaled[1], high: scaled[2] };
  });

  // The lines that are drawn where the address names none: those of most commits.
  const usual = (lines) => [...lines].sort((a, b) => b.count - a.count).slice(0, 3);

  function plot(drawn, found, { log, better, unit, names, all }) {
    const points = drawn.flatMap((one) => one.points);
    const newest = drawn.filter((one) => one.line.floor && one.points.length).map((one) => ({
      name: one.name, low: one.points.at(-1).value / (1 + one.line.floor), high: one.points.at(-1).value * (1 + one.line.floor),
    }));
    const date = (at) => all.commits[at]?.[1] ?? "";
    const sign = better > 0 ? "↑" : better < 0 ? "↓" : "";
    return (width) => Plot.plot({
      width, height: Math.max(280, Math.min(460, width / 2)), marginLeft: 60, marginRight: 40, style: rocmforge.style,
      x: { label: "commit", tickFormat: (at) => (Number.isInteger(at) ? date(at) : ""), ticks: Math.max(2, Math.floor(width / 160)) },
      y: { label: [unit, sign, rocmforge.better(better)].filter(Boolean).join(" "), type: log ? "log" : "linear", grid: true, nice: true },
      color: rocmforge.colour(names),
      marks: [
        Plot.rect(newest, { y1: "low", y2: "high", fill: "name", fillOpacity: 0.12 }),
        Plot.ruleX(points.filter((d) => d.low !== null), { x: "at", y1: "low", y2: "high", stroke: "name", strokeOpacity: 0.6 }),
        Plot.lineY(points, { x: "at", y: "value", stroke: "name", z: "piece" }),
        Plot.dot(points.filter((d) => !d.marked), { x: "at", y: "value", stroke: "name", fill: "name", r: 3 }),
        Plot.dot(points.filter((d) => d.marked), { x: "at", y: "value", stroke: "name", fill: "var(--back)", r: 3 }),
        Plot.ruleX(found, { x: "at", stroke: "var(--bad)", strokeDasharray: "4 3" }),
        Plot.text(found, { x: "at", frameAnchor: "top", text: (d) => `▼ ${d.factor ? `× ${number(d.factor)}` : d.kind}`, fill: "var(--bad)", dy: -8 }),
        Plot.tip(points, Plot.pointer({
          x: "at", y: "value", fill: "var(--card)", stroke: "var(--line)", textPadding: 8, lineWidth: 30,
          title: (d) => [`${short(d.commit)}, by its author on ${d.authored ?? NA}`, d.subject ?? "", d.name,
            `${number(d.value)} ${unit}${d.low === null ? "" : ` (${number(d.low)} … ${number(d.high)})`}`, d.marked ?? ""].filter(Boolean).join("\n"),
        })),
      ],
    });
  }

  function numbersTable(points, unit, before) {
    const columns = [
      { name: "Commit", of: (d) => element("a", { href: `commits.html#${d.commit}` }, short(d.commit)) },
      { name: "Date", of: (d) => d.date },
      { name: "Line", of: (d) => d.name },
      { name: `Value, ${unit}`, number: true, of: (d) => number(d.value) },
      { name: "99 % interval", number: true, of: (d) => (d.low === null ? NA : `${number(d.low)} … ${number(d.high)}`) },
      { name: "Note", of: (d) => d.marked ?? "" },
      { name: "Subject", of: (d) => d.subject ?? NA },
      { name: "Compare", of: (d) => (before.has(d) ? element("a", { href: before.get(d) }, "with the one before") : "") },
    ];
    return table(`${points.length} measurements`, columns, [...points].reverse());
  }

  function findingsOf(drawn, all) {
    const places = new Map(all.commits.map(([commit], at) => [commit, at]));
    return drawn.flatMap((one) => one.line.findings.map((d) => ({ ...d, name: one.name, tag: all.machines[one.line.machine], at: places.get(d.bad) })));
  }

  function said(found) {
    if (!found.length) return element("p", {}, "No change point was found on these lines, or there are too few commits to look for one.");
    const items = found.map((d) => element("li", {},
      `${d.name}: ${d.kind}, ${d.factor ? `${number(d.factor)} times worse, ` : ""}${d.state}. `,
      element("a", { href: `compare.html#machine=${encodeURIComponent(d.tag)}&show=all&a=${short(d.good)}&b=${short(d.bad)}` }, `${short(d.good)} … ${short(d.bad)}`),
      d.note ? `. ${d.note}` : "", ". To confirm it in turns: ",
      element("code", {}, `rocmforge bench confirm ${short(d.good)} ${short(d.bad)}`)));
    return element("section", {}, element("h2", {}, "Change points"), element("ul", {}, ...items));
  }

  rocmforge.page(async (state) => {
    const all = await rocmforge.load("history");
    const place = document.getElementById("shown");
    if (!all.benchmarks.length) {
      place.replaceChildren(element("p", {}, `${NA}: no result is here yet. rocmforge bench run --save-results makes one.`));
      return;
    }
    const names = all.benchmarks.map(([name]) => name).filter((name) => rocmforge.matches(name, state.filter));
    const most = [...all.benchmarks].sort((a, b) => b[3] - a[3]);
    const usually = all.benchmarks.find(([name]) => name.startsWith("inference.Decode.track_decode")) ?? most[0];
    const name = all.benchmarks.some(([one]) => one === state.benchmark) ? state.benchmark : names[0] && state.filter ? names[0] : usually[0];
    const machine = all.machines.includes(state.machine) ? state.machine : "";
    const at = all.benchmarks.findIndex(([one]) => one === name);
    const [, unit, better] = all.benchmarks[at];
    rocmforge.controls(document.getElementById("controls"), [
      filter("Benchmarks with", "filter", state.filter),
      choice("Benchmark", "benchmark", names.includes(name) ? names : [name, ...names], name, { lines: null }),
      choice("Machine", "machine", [["", "all"], ...all.machines], machine),
      filter("Lines with", "words", state.words),
      choice("Scale", "scale", ["linear", "log"], state.scale ?? "linear"),
    ]);
    const unknown = state.filter && !names.length ? [element("p", {}, `No benchmark's name has “${state.filter}”; words of its parameters go into “Lines with”.`)] : [];
    const { lines } = await rocmforge.load(`history/${at}`);
    const listed = lines.map((line) => ({ line, name: title(line, all) }))
      .filter((one) => (!machine || all.machines[one.line.machine] === machine) && rocmforge.matches(one.name, state.words));
    const named = state.lines === undefined ? null : new Set(state.lines.split("."));
    const first = new Set(usual(listed.map((one) => one.line)));
    const chosen = listed.filter((one) => (named ? named.has(one.line.id) : first.has(one.line)));
    const tick = (one) => {
      const box = element("input", {
        type: "checkbox", checked: chosen.includes(one),
        onchange: () => rocmforge.go({ lines: [...chosen.filter((other) => other !== one), ...(box.checked ? [one] : [])].map((other) => other.line.id).join(".") || "none" }),
      });
      return element("label", { class: "tick" }, box, ` ${one.name} (${one.line.count})`);
    };
    const ticks = listed.slice(0, LISTED).map(tick);
    const rest = listed.length - ticks.length;
    rocmforge.controls(document.getElementById("lines"), [element("legend", {}, `Lines, with their commits: ${chosen.length} of ${listed.length} drawn`), ...ticks,
      ...(rest > 0 ? [element("p", {}, `${rest} more: words above make the list shorter.`)] : [])]);
    const shownFirst = chosen.slice(0, MOST);
    const measured = await Promise.all(shownFirst.map(async ({ line }) => (await rocmforge.load(line.file))[line.at]));
    const values = measured.flat().map((point) => point[1]);
    const to = rocmforge.scale(values, unit);
    const drawn = shownFirst.map((one, i) => ({ ...one, points: pointsOf(measured[i], one.name, all, to) }));
    if (!drawn.length) {
      place.replaceChildren(element("p", {}, "No line is chosen: tick one above."));
      document.getElementById("findings").replaceChildren();
      return;
    }
    const shownNames = drawn.map((one) => one.name);
    const points = drawn.flatMap((one) => one.points);
    const before = new Map(drawn.flatMap((one) => one.points.slice(1).map((d, i) => [d,
      `compare.html#machine=${encodeURIComponent(all.machines[one.line.machine])}&show=all&a=${short(one.points[i].commit)}&b=${short(d.commit)}`])));
    const found = findingsOf(drawn, all);
    const label = `${name}: ${drawn.map((one) => `${one.name} from ${number(one.points[0].value)} to ${number(one.points.at(-1).value)} ${to.unit}`).join("; ")}`;
    const options = { log: state.scale === "log", better, unit: to.unit, names: shownNames, all };
    place.replaceChildren(...unknown, rocmforge.legend(shownNames),
      chart(`${name}, ${to.unit}`, label, plot(drawn, found, options), numbersTable(points, to.unit, before)));
    if (chosen.length > MOST) place.prepend(element("p", {}, `The first ${MOST} of ${chosen.length} lines are drawn.`));
    document.getElementById("findings").replaceChildren(said(found));
  });
})();
