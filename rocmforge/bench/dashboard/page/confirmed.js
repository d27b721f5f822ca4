// What `bench confirm` measured in turns, of the chosen benchmark or of all.
"use strict";

rocmforge.page(async (state) => {
  const { element, table, number } = rocmforge;
  const all = await rocmforge.load("confirmed");
  const own = all.filter((one) => one.name === state.benchmark && (!state.machine || one.tag === state.machine));
  const rows = own.length || state.benchmark ? own : all;
  const place = document.getElementById("confirmed");
  const short = (commit) => commit.slice(0, 8);
  const known = (one) => one.low !== null && one.high !== null;
  const word = (one) => (known(one) && one.low > 1 ? "confirmed slowdown"
    : known(one) && one.high < 1 ? "confirmed improvement" : "no proof of a change");
  const compare = (one) => `compare.html#machine=${encodeURIComponent(one.tag)}&show=all&a=${short(one.before)}&b=${short(one.after)}`;
  const columns = [
    { name: "Benchmark", of: (one) => one.label },
    { name: "Commits", of: (one) => element("a", { href: compare(one) }, `${short(one.before)} … ${short(one.after)}`) },
    { name: "After / before, more is worse", number: true, of: (one) => `${number(one.slowdown)} (${number(one.low)} … ${number(one.high)})`, by: (one) => one.slowdown },
    { name: "Verdict", of: word },
    { name: "Samples: each pair of processes", of: (one) => one.pairs.map(number).join(", ") },
    { name: "Machine, date", of: (one) => `${one.tag}, ${one.date}` },
  ];
  const said = "Two builds were measured in turns, process by process. The interval is that of bench confirm.";
  place.replaceChildren(element("h2", {}, "Measured in turns"), element("p", {}, rows.length ? said : "No report of bench confirm has this benchmark."),
    ...(rows.length ? [table(`${rows.length} of ${all.length} benchmarks`, columns, rows, { order: state.confirmed, name: "confirmed" })] : []));
});
