// Registers, waves, spills and loads of every kernel file and architecture over the commits.
"use strict";

rocmforge.page(async (state) => {
  const { choice, element, filter, matches } = rocmforge;
  const data = await rocmforge.load("kernels");
  const content = document.getElementById("content");
  if (!data.series.length) {
    content.replaceChildren(points.absent("no kernel was compiled in any stored run", data.command));
    return;
  }
  const fullest = (list) => list.reduce((best, one) => (known(one) > known(best) ? one : best));
  const metric = [state.metric, "waves", fullest(data.series).metric].find((name) => Object.hasOwn(data.metrics, name));
  const of = data.series.filter((one) => one.metric === metric);
  const files = points.values(of, "file");
  const file = files.includes(state.file) ? state.file : fullest(of).file;
  rocmforge.controls(document.getElementById("controls"), [
    choice("Metric", "metric", Object.keys(data.metrics), metric),
    choice("Kernel file", "file", files, file),
    filter("Files of the tables", "filter", state.filter),
  ]);
  const { unit, better } = data.metrics[metric];
  const direction = better === null ? "" : `, ${better} is better`;
  content.replaceChildren(
    element("h2", {}, `${metric} of ${file}`),
    ...drawnSeries(of.filter((one) => one.file === file), data.commits, `${metric} of ${file}, ${unit}${direction}`, unit),
    element("h2", {}, "What changed"),
    changesTable(data.changes.filter((one) => matches(`${one.file} ${one.architecture} ${one.metric}`, state.filter)), state),
    element("h2", {}, `${metric} of every file`),
    newestTable(of.filter((one) => matches(one.file, state.filter)), `${metric}, ${unit}${direction}`, state),
    ...("LDS" in data.metrics ? [] : [points.absent("the LDS of no kernel was recorded", data.command)]),
  );
});

const known = (series) => series.values.filter((one) => one !== null).length;
const newest = (series) => series.values.findLast((one) => one !== null) ?? null;

function drawnSeries(series, commits, caption, unit) {
  const architectures = points.values(series, "architecture");
  const names = points.values(commits, "commit");
  const at = series.flatMap((one) => one.values.map((x, place) => ({ commit: commits[place].commit, x, architecture: one.architecture }))
    .filter((point) => point.x !== null));
  const plot = (width) => Plot.plot({
    width, height: 320, style: rocmforge.style, color: rocmforge.colour(architectures), marginLeft: 62, marginRight: 24, marginTop: 28, marginBottom: 74,
    x: { label: null, type: "point", domain: names, tickRotate: -60, ticks: points.ticks(names, width) },
    y: { label: unit, grid: true, domain: [0, Math.max(1, ...at.map((one) => one.x))], nice: true, tickFormat: points.count },
    marks: [
      Plot.line(at, { x: "commit", y: "x", stroke: "architecture", z: "architecture", strokeWidth: 2 }),
      Plot.dot(at, { x: "commit", y: "x", fill: "architecture", r: 3.5, title: (one) => `${one.architecture}, ${one.commit}: ${points.count(one.x)} ${unit}` }),
    ],
  });
  const label = `${caption}, over ${commits.length} commits; newest: ${series.map((one) => `${one.architecture} ${points.count(newest(one))}`).join(", ")}.`;
  const table = rocmforge.table(caption, [
    { name: "Commit", of: (one) => one.commit },
    { name: "Date", of: (one) => one.date },
    ...series.map(({ architecture, values }) => ({ name: architecture, number: true, of: (one) => points.count(values[commits.indexOf(one)]) })),
  ], commits);
  return [rocmforge.legend(architectures), rocmforge.chart(caption, label, plot, table)];
}

function changesTable(changes, state) {
  const { element } = rocmforge;
  if (!changes.length) return element("p", {}, "No value of these files changed in the stored commits.");
  return rocmforge.table("Values that a commit changed, the newest first", [
    { name: "Kernel file", of: (one) => one.file },
    { name: "Architecture", of: (one) => one.architecture },
    { name: "Metric", of: (one) => one.metric },
    { name: "Before", number: true, of: (one) => points.count(one.before), by: (one) => one.before },
    { name: "After", number: true, of: (one) => points.count(one.after), by: (one) => one.after },
    { name: "Verdict", of: (one) => one.verdict },
    { name: "Commit", of: (one) => element("a", { href: `commits.html#${one.commit}` }, one.commit) },
  ], changes, { order: state.changes, name: "changes" });
}

function newestTable(series, caption, state) {
  const architectures = points.values(series, "architecture").sort();
  const byName = new Map(series.map((one) => [`${one.file} ${one.architecture}`, newest(one)]));
  return rocmforge.table(`${caption}, each of the newest commit that compiled it`, [
    { name: "Kernel file", of: (file) => file },
    ...architectures.map((name) => {
      const by = (file) => byName.get(`${file} ${name}`) ?? null;
      return { name, number: true, of: (file) => points.count(by(file)), by };
    }),
  ], points.values(series, "file"), { order: state.sort, name: "sort" });
}
