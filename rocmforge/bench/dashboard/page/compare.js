// compare.html: two commits, machines or formats side by side, or ours and llama.cpp's.
// compare_rows.js divides; here two sides are chosen, and rows are chosen, drawn and listed.
"use strict";

(() => {
  const { element, value, number, load } = rocmforge;
  const MODES = { commits: "two commits", machines: "two machines", formats: "two formats", peer: "ours with llama.cpp" };
  const SHOWN = {
    changed: ["what differs", ["regression", "failed", "worse", "improved", "better", "missing"]],
    unsure: ["what cannot be told, too", ["cannot tell", "not comparable"]],
    all: ["everything", []],
  };
  const DRAWN = 30; // rows of the chart: those behind stand in the table
  const ROW_PX = 42;
  const NARROW_PX = 700; // below, names and parameters are two lines
  const LEAST = 1.25; // of the chart's scale, so that nothing small looks large
  const MOST = 64;
  const TICKS = [[1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50], [0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02]];
  const TICK_PX = 52;

  // ---- what is compared --------------------------------------------------------------------------
  const machineOf = (main, choice) => main.machines.find((one) => one.tag === choice.machine);
  const wordsOf = (run) => `${run.baseline ? "baseline " : ""}${run.commit.slice(0, 8)}`;

  // Each mode: the words of both sides, the rows, and what else is to be said.
  const sources = {
    async commits(main, choice) {
      const machine = machineOf(main, choice);
      const [a, b] = [choice.a, choice.b].map((id) => machine.runs.find((run) => run.id === id));
      const judged = machine.judged.find(([before, after]) => before === a.file && after === b.file);
      const [before, after, said] = await Promise.all([a.file, b.file, judged?.[2]].map((file) => file && load(file)));
      const [one, other] = [before, after].map((run) => compared.sideOf(run, (place) => place));
      const command = `rocmforge bench compare ${a.commit.slice(0, 8)} ${b.commit.slice(0, 8)}`;
      return {
        words: [wordsOf(a), wordsOf(b)],
        rows: compared.rowsOf(main.catalogue, one, other, said?.rows, compared.ofCommits(after.failed)),
        said: said
          ? [`The gate's verdicts: ${said.outcome}.`, ...said.notes.map((note) => `${note}.`)]
          : ["The gate has not judged this pair.", ...(a.baseline || b.baseline || a === b ? [] : ["By its samples it is judged by ", element("code", {}, command)])],
      };
    },
    async machines(main, choice) {
      const found = [choice.a, choice.b].map((tag) => main.machines.find((one) => one.tag === tag));
      const runs = await Promise.all(found.map((one) => load(one.newest)));
      return {
        words: found.map((one) => one.tag),
        rows: compared.rowsOf(main.catalogue, ...found.map((one, at) => onDevice(main.catalogue, one, runs[at]))),
        said: ["The newest value of each benchmark; of a machine with a GPU, the GPU's."],
      };
    },
    async formats(main, choice) {
      const run = await load(machineOf(main, choice).newest);
      const { format, group } = main.catalogue;
      const sides = [choice.a, choice.b].map((name) =>
        compared.sideOf(run, (place) => (format[place] === name ? group[place] : null)));
      const rows = compared.rowsOf(main.catalogue, ...sides).filter((row) => row.a !== null && row.b !== null);
      return {
        words: [choice.a, choice.b],
        rows: rows.map((row) => ({ ...row, params: row.params.replace(choice.b, "…") })),
        said: ["The newest value of each benchmark that was measured in both formats and is otherwise alike."],
      };
    },
    async peer(main, choice) {
      return {
        words: ["llama.cpp", "ours"],
        rows: machineOf(main, choice).peer.map(peerRow),
        said: ["Both were measured in turns. A line spans the lowest and the highest round."],
      };
    },
  };

  // Benchmarks by what they are on any device: those of the machine's own device first.
  function onDevice({ elsewhere, device }, machine, run) {
    const own = (place) => device[place] === machine.device;
    const others = compared.sideOf(run, (place) => (own(place) ? null : elsewhere[place]));
    return new Map([...others, ...compared.sideOf(run, (place) => (own(place) ? elsewhere[place] : null))]);
  }

  function peerRow(row) {
    const sure = row.low > 1 || row.high < 1;
    return {
      name: [row.model, row.format].filter(Boolean).join(" "),
      params: [row.phase, row.setting, row.device].filter(Boolean).join(", "),
      unit: row.unit, a: row.peer, b: row.value, factor: row.ratio, low: row.low, high: row.high,
      verdict: !sure ? "cannot tell" : row.ratio > 1 ? "better" : "worse",
      note: sure ? "" : "some rounds were faster, some slower",
    };
  }

  // ---- the choice --------------------------------------------------------------------------------
  function isAble(machine, mode) {
    if (mode === "peer") return machine.peer.length > 0;
    return mode === "formats" ? machine.formats.length > 1 : machine.runs.length > 0;
  }

  // What both sides may be: [value, words], the newest commit first.
  function sidesOf(main, choice) {
    const machine = machineOf(main, choice);
    if (!machine || choice.mode === "peer") return [];
    if (choice.mode === "machines") return main.machines.map((one) => [one.tag, one.tag]);
    if (choice.mode === "formats") return machine.formats.map((name) => [name, name]);
    return machine.runs.map((run) => [run.id, `${wordsOf(run)}, ${run.date ?? "no date"}`]).reverse();
  }

  // The address's choice; what it leaves out, or names in vain, is what one would look at first.
  function completed(main, state) {
    const choice = { show: "changed", ...state };
    if (!Object.hasOwn(MODES, choice.mode)) choice.mode = "commits";
    if (!Object.hasOwn(SHOWN, choice.show)) choice.show = "changed";
    const able = main.machines.filter((one) => isAble(one, choice.mode));
    if (!able.some((one) => one.tag === choice.machine)) {
      const most = [...able].sort((one, other) => other.runs.length - one.runs.length);
      choice.machine = most[0]?.tag;
    }
    const values = sidesOf(main, choice).map(([id]) => id);
    const [first, second] = choice.mode === "commits" ? [values[1], values[0]] : values;
    if (!values.includes(choice.a)) choice.a = first ?? values[0];
    if (!values.includes(choice.b)) choice.b = second ?? values[0];
    return choice;
  }

  function form(main, choice) {
    const machines = main.machines.filter((one) => isAble(one, choice.mode)).map((one) => one.tag);
    const shown = Object.entries(SHOWN).map(([name, [words]]) => [name, words]);
    const sides = sidesOf(main, choice);
    const swap = element("button", { type: "button", "data-key": "swap", onclick: () => rocmforge.go({ a: choice.b, b: choice.a }) }, "Swap A and B");
    rocmforge.controls(document.getElementById("choice"), [
      rocmforge.choice("Compare", "mode", Object.entries(MODES), choice.mode),
      ...(choice.mode === "machines" ? [] : [rocmforge.choice("on", "machine", machines, choice.machine)]),
      ...(sides.length ? [rocmforge.choice("A", "a", sides, choice.a), rocmforge.choice("B", "b", sides, choice.b), swap] : []),
      rocmforge.choice("Show", "show", shown, choice.show),
      rocmforge.filter("Filter", "q", choice.q),
    ]);
  }

  // ---- what is shown -----------------------------------------------------------------------------
  function chosen(rows, { show, q }) {
    const names = Object.keys(SHOWN);
    const wanted = names.slice(0, names.indexOf(show) + 1).flatMap((name) => SHOWN[name][1]);
    const fits = (row) => rocmforge.matches(`${row.name} ${row.params} ${row.unit} ${row.verdict} ${row.note}`, q);
    return rows.filter((row) => (show === "all" || wanted.includes(row.verdict)) && fits(row));
  }

  function counted(rows) {
    const counts = new Map();
    for (const { verdict } of rows) counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
    return [...counts].map(([verdict, count]) => `${number(count)} ${verdict}`).join(", ");
  }

  const SURE = ["regression", "worse", "improved", "better"];
  const kindOf = (row) => (!SURE.includes(row.verdict) ? "unsure" : row.factor > 1 ? "good" : "bad");
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const times = (x) => (x === null ? rocmforge.NA : `${number(x)}×`);
  const interval = (row) => (row.low === null ? rocmforge.NA : `${number(row.low)} … ${times(row.high)}`);

  // The scale, which has 1 in it, and round numbers on it, as many as there is room for.
  function scaleOf(marks) {
    const ends = marks.flatMap((row) => [row.factor, row.low, row.high]).filter((x) => x > 0);
    return [Math.max(1 / MOST, Math.min(1 / LEAST, ...ends)), Math.min(MOST, Math.max(LEAST, ...ends))];
  }

  function ticksOf([least, most], width) {
    const room = (TICK_PX * Math.log(most / least)) / width;
    const isFar = (one, other) => Math.abs(Math.log(one / other)) >= room;
    const kept = [1];
    for (const ticks of TICKS) {
      let last = 1;
      for (const tick of ticks.filter((one) => one >= least && one <= most && isFar(one, 1))) {
        if (isFar(tick, last)) kept.push((last = tick));
      }
    }
    return kept;
  }

  // A forest plot: each row's factor and interval below its name, all on one logarithmic axis.
  function forest(rows, width) {
    const marks = rows.map((row, at) => ({ ...row, at, kind: kindOf(row) }));
    const domain = scaleOf(marks);
    const letters = Math.floor((width - 30) / 7.4);
    const narrow = width < NARROW_PX;
    const words = (row) => (narrow ? [row.name, row.params] : [`${row.name} ${row.params}`]).map((line) => cut(line, letters));
    const ticks = ticksOf(domain, width);
    return Plot.plot({
      width, height: marks.length * (narrow ? 1.4 * ROW_PX : ROW_PX) + 50, margin: 12, marginLeft: 24, marginTop: 46, style: rocmforge.style,
      x: { type: "log", domain, clamp: true },
      y: { type: "linear", domain: [-0.5, marks.length - 0.5], reverse: true, axis: null },
      symbol: { domain: ["good", "bad", "unsure"], range: ["triangle", "diamond", "circle"] },
      marks: [
        Plot.axisX(ticks, { anchor: "top", label: null, text: times }),
        Plot.gridX(ticks, { stroke: "var(--line)", strokeOpacity: 1 }),
        Plot.ruleX([1], { stroke: "var(--faint)" }),
        Plot.link(marks.filter((row) => row.low !== null), {
          x1: "low", x2: "high", y1: "at", y2: "at", dy: 6, strokeWidth: 2, stroke: (row) => colourOf(row.kind),
        }),
        Plot.dot(marks, { x: "factor", y: "at", dy: 6, r: 5, symbol: "kind", fill: (row) => colourOf(row.kind), stroke: "none" }),
        Plot.text(marks, {
          frameAnchor: "left", y: "at", dy: -2, lineAnchor: "bottom", textAnchor: "start", fill: "currentColor",
          stroke: "var(--back)", strokeWidth: 4, text: (row) => words(row).join("\n"), title: (row) => `${row.name} ${row.params}`,
        }),
      ],
    });
  }

  const colourOf = (kind) => `var(--${kind === "unsure" ? "faint" : kind})`;

  // A name that may be broken behind its points and low lines.
  function breakable(name) {
    return element("span", {}, ...name.split(/(?<=[._])/).flatMap((part) => [part, element("wbr")]));
  }

  const COLUMNS = [
    { name: "Benchmark", of: (row) => breakable(row.name), by: (row) => row.name },
    { name: "Parameters", of: (row) => row.params || "none" },
    { name: "A", number: true, of: (row) => value(row.a, row.unit), by: (row) => row.a },
    { name: "B", number: true, of: (row) => value(row.b, row.unit), by: (row) => row.b },
    { name: "Factor", number: true, of: (row) => times(row.factor), by: (row) => row.factor },
    { name: "Interval", number: true, of: interval, by: (row) => row.low },
    { name: "Verdict", of: (row) => element("span", {}, verdict(row), row.note && ` ${row.note}`), by: (row) => row.verdict },
  ];

  const verdict = (row) => element("span", { class: `verdict ${row.verdict.replaceAll(" ", "-")}` }, row.verdict);

  rocmforge.page(async (state) => {
    const main = await load("compare");
    const choice = completed(main, state);
    history.replaceState(null, "", rocmforge.address(choice));
    form(main, choice);
    const place = document.getElementById("rows");
    const said = document.getElementById("said");
    if (!choice.machine) {
      said.textContent = `n/a: no machine has what this compares (${MODES[choice.mode]}).`;
      return place.replaceChildren();
    }
    const { words, rows, said: more } = await sources[choice.mode](main, choice);
    const shown = rocmforge.inOrder(COLUMNS, chosen(rows, choice), choice.sort);
    said.replaceChildren(`${number(shown.length)} of ${number(rows.length)} rows are shown; there are ${counted(rows) || "none"}. `,
      ...more.flatMap((part) => [part, " "]));
    if (!shown.length) {
      const why = rows.length ? "No row is left. “Show” and “Filter” say which are." : "n/a: nothing was measured on both sides.";
      return place.replaceChildren(element("p", {}, why));
    }
    const drawn = shown.filter((row) => row.factor > 0).slice(0, DRAWN);
    const table = rocmforge.table(`A: ${words[0]}, B: ${words[1]}`, COLUMNS, shown, { order: choice.sort, name: "sort" });
    if (!drawn.length) return place.replaceChildren(table);
    const label = `Factors of B (${words[1]}) over A (${words[0]}), ${drawn.length} rows, as in the table below`;
    const caption = `B (${words[1]}) over A (${words[0]}); right of 1, B is better`
      + (drawn.length < shown.length ? `; the first ${drawn.length} rows` : "");
    return place.replaceChildren(rocmforge.chart(caption, label, (width) => forest(drawn, width)), table);
  });
})();
