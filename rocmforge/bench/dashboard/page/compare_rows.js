// What compare.html divides. A side is a map from a key to one measured value: {place, value, low,
// high, version, marked}. No verdict of the gate is made here: those come from
// rocmforge.bench.compare, for the pairs that it judged. docs/dashboard.md has the formulas.
"use strict";

const compared = (() => {
  // The values of a run, by what `keyOf` makes of a place in the catalogue; null leaves one out.
  function sideOf(run, keyOf) {
    const side = new Map();
    run.place.forEach((place, at) => {
      const key = keyOf(place);
      if (key === null) return;
      const value = run.median[at];
      const marked = run.marked[place] ?? null;
      side.set(key, { place, value, low: run.low[at], high: run.high[at], version: run.version[at], marked });
    });
    return side;
  }

  // How many times as good b is as a, with the interval that those of both medians allow: the
  // distances of the ends from the medians, as logarithms, add as squares.
  function factorOf(a, b, better) {
    const [top, bottom] = better > 0 ? [b, a] : [a, b];
    const unknown = { factor: a.value === b.value ? 1 : null, low: null, high: null };
    if (!(a.value > 0 && b.value > 0)) return unknown;
    const factor = top.value / bottom.value;
    if (![a.low, a.high, b.low, b.high].every((end) => end > 0)) return { ...unknown, factor };
    const below = Math.hypot(Math.log(top.value / top.low), Math.log(bottom.high / bottom.value));
    const above = Math.hypot(Math.log(top.high / top.value), Math.log(bottom.value / bottom.low));
    return { factor, low: factor * Math.exp(-below), high: factor * Math.exp(above) };
  }

  const byFactor = (factor) => (factor > 1 ? "better" : "worse");

  // A word for a pair that was not judged, and why it is no other.
  function wordOf({ factor, low, high }, a, b, timed, threshold) {
    if (a.version !== b.version) return ["not comparable", "the benchmark's code differs"];
    if (factor === null) return ["not comparable", "one of the values is not above 0"];
    if (a.marked || b.marked) return ["cannot tell", a.marked ?? b.marked];
    if (factor <= 1 + threshold && factor >= 1 / (1 + threshold)) return ["same", ""];
    if (!timed) return [byFactor(factor), ""];
    if (low === null) return ["cannot tell", "too few samples for an interval"];
    if (low <= 1 && high >= 1) return ["cannot tell", "the interval holds 1"];
    return [byFactor(factor), ""];
  }

  // One row: what it is, both values, the factor with its interval, a verdict and why.
  function rowOf(catalogue, a, b, judged, alone) {
    const { place } = b ?? a;
    const better = catalogue.better[place];
    const known = a && b && better !== 0;
    const found = known ? factorOf(a, b, better) : { factor: null, low: null, high: null };
    const [verdict, note] = judged ?? (known
      ? wordOf(found, a, b, catalogue.timed[place], catalogue.threshold[place])
      : a && b ? ["n/a", "which way is better is not known"] : alone(place, Boolean(a)));
    return {
      name: catalogue.name[place],
      params: catalogue.params[place],
      unit: catalogue.unit[place],
      a: a?.value ?? null,
      b: b?.value ?? null,
      ...found,
      verdict,
      note,
    };
  }

  const unpaired = (place, inA) => ["n/a", `${inA ? "B" : "A"} has no value`];

  // The word for a benchmark that has a value in one of two commits: `failed` has the places in b.
  const ofCommits = (failed) => (place, inA) => (failed.includes(place) ? ["failed", "it failed in B"]
    : inA ? ["missing", "B has no value"] : ["new", "A has no value"]);

  // A row for each key of either side, in the order of the catalogue. `judged`: verdict and note by
  // place; `alone`: those of a place that has a value on one side, and whether that is a.
  function rowsOf(catalogue, a, b, judged = {}, alone = unpaired) {
    const keys = [...new Set([...a.keys(), ...b.keys()])];
    const placeOf = (key) => (b.get(key) ?? a.get(key)).place;
    return keys
      .sort((one, other) => placeOf(one) - placeOf(other))
      .map((key) => rowOf(catalogue, a.get(key), b.get(key), judged[placeOf(key)], alone));
  }

  return { sideOf, rowsOf, ofCommits };
})();
