// What the pages of measured points share: who measured a point, its interval, what to say of none.
"use strict";

const points = (() => {
  const { element, NA } = rocmforge;

  // Different values of a field, in the order in which they come.
  const values = (list, key) => [...new Set(list.map((one) => one[key]))];

  // What the address asks for, where there is such a thing, else the first.
  const picked = (options, given) => (options.includes(given) ? given : options[0]);

  // The machine that the address names, else the one that has most in the lists.
  function machine(machines, tag, lists) {
    const count = (one) => lists.reduce((sum, name) => sum + one[name].length, 0);
    return machines.find((one) => one.tag === tag)
      ?? machines.reduce((best, one) => (count(one) > count(best) ? one : best));
  }

  const machines = (list, chosen) => rocmforge.choice("Machine", "machine", values(list, "tag"), chosen.tag);

  // Both ends of the 99 % interval as `text` writes a number.
  const interval = (one, text) => (one.low === null ? NA : `${text(one.low)} … ${text(one.high)}`);

  // The last columns of a table of points.
  const provenance = [
    { name: "Commit", of: (one) => element("a", { href: `commits.html#${one.commit}` }, one.commit) },
    { name: "Date", of: (one) => one.date ?? NA },
    { name: "Remarks", of: (one) => (one.marked ? `not to be trusted: ${one.marked}` : "") },
  ];

  // Says what was not measured, and which command measures it.
  function absent(what, command) {
    return element("p", { class: "absent" }, `${NA}: ${what}. This measures it: `, element("code", {}, command));
  }

  // A number of things, with all of its digits.
  const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
  const count = (x) => (x === null || x === undefined ? NA : exact.format(x));

  // Room for the names left of a chart, at most half of it.
  const room = (names, width) => Math.min(16 + 7.2 * Math.max(...names.map((name) => name.length)), width / 2);

  // As many of the names as have room below a chart, slanted.
  const ticks = (names, width) => names.filter((_, at) => at % Math.ceil(names.length / (width / 26)) === 0);

  return { count, ticks, values, picked, machine, machines, interval, provenance, absent, room };
})();
