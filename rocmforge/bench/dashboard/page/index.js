// The overview: a line of each machine's last commits. Fragments of asv's page are sent there.
"use strict";

if (/^#(\/|[^=&?]+(\?|$))/.test(location.hash)) location.replace(`asv.html${location.hash}`);

rocmforge.page(async () => {
  const lines = await rocmforge.load("index");
  for (const figure of document.querySelectorAll("figure.spark")) {
    const line = lines[figure.dataset.tag];
    const place = figure.querySelector(".plot");
    const points = line.points.map(([date, commit, value], at) => ({ at, date, commit, value }));
    const shown = points.map((point) => point.value);
    const label = `${line.label}: from ${rocmforge.value(shown[0], line.unit)} to ${rocmforge.value(shown.at(-1), line.unit)}`;
    const svg = Plot.plot({
      width: Math.max(240, place.clientWidth), height: 70, marginLeft: 4, marginRight: 8, marginTop: 8, marginBottom: 8,
      style: rocmforge.style, x: { axis: null }, y: { axis: null, zero: false },
      marks: [
        Plot.lineY(points, { x: "at", y: "value", stroke: "var(--s0)", strokeWidth: 2 }),
        Plot.dot(points, { x: "at", y: "value", r: 2.5, fill: "var(--s0)" }),
        Plot.tip(points, Plot.pointerX({
          x: "at", y: "value", fill: "var(--card)",
          title: (d) => `${d.date ?? ""} ${d.commit}\n${rocmforge.value(d.value, line.unit)}`,
        })),
      ],
    });
    place.replaceChildren(rocmforge.picture(svg, label));
  }
});
