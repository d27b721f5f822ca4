// What asv's own page lacks: a first selection of few lines, a legend beside the plot and not over it, the
// keyboard, directions, and what to do where the page was opened as a file.
"use strict";

// An address without a selection gets the first one, before asv reads it: `firstSelections` of
// first_selections.js. An address that ends in "?" is a selection of everything.
function choose() {
  const name = decodeURIComponent(location.hash.slice(1));
  if (!location.hash.includes("?") && Object.hasOwn(firstSelections, name)) {
    history.replaceState(null, "", `${location.hash}?${firstSelections[name]}`);
  }
}
choose();
window.addEventListener("hashchange", choose);

// Flot's own way to change what it draws: asv's graph gets the legend's place, and no entry for a line
// that has no value.
$.plot.plugins.push({
  name: "legend beside the graph",
  version: "1.0",
  init: (plot) => {
    if (plot.getPlaceholder().attr("id") !== "main-graph") return;
    plot.hooks.processOptions.push((_, options) => { options.legend.container = $("#legend"); });
    plot.hooks.processRawData.push((_, series, data) => {
      if (!data.some((point) => point?.[1] !== null && point?.[1] !== undefined)) series.label = null;
    });
  },
});

if (location.protocol === "file:") {
  // behind asv's own `ready`, which sets $.asv.ui, and before its request has failed
  $(() => {
    $.asv.ui.network_error = () => {
      const folder = decodeURIComponent(location.pathname).replace(/[^/]*$/, "");
      const quoted = `'${folder.replaceAll("'", "'\\''")}'`;
      const line = `python3 -m http.server --bind 127.0.0.1 --directory ${quoted}`;
      $("#myModalLabel").text("The graphs need a web server");
      $("#error-message").empty().append(
        $("<p>").text("A page that was opened as a file may not read the graphs' data. Run this:"),
        $("<pre>").text(line),
        $("<p>").text("Then open http://127.0.0.1:8000/ in the browser. Our other pages need no server."),
      );
      $("#error").modal("show");
    };
  });
}

// In asv's list a rise is red and a fall green: the other way round for what is better higher.
function turnDirections(list) {
  for (const cell of list.querySelectorAll("td.change:not([data-seen])")) {
    cell.dataset.seen = "";
    const link = cell.parentElement.querySelector("a").getAttribute("href");
    const name = decodeURIComponent(link.slice(1).split("?")[0]);
    const [rise, fall] = ["positive-change", "negative-change"];
    if ($.asv.main_json.benchmarks[name].direction === "higher") {
      if (cell.classList.contains(rise)) cell.classList.replace(rise, fall);
      else cell.classList.replace(fall, rise);
    }
  }
}

// asv's buttons are links without an address, which no key reaches.
function reachButtons() {
  for (const button of document.querySelectorAll("a[role=button]:not([href], [tabindex])")) {
    button.tabIndex = 0;
  }
}

document.addEventListener("keydown", (event) => {
  if ([" ", "Enter"].includes(event.key) && event.target.matches("a[role=button]:not([href])")) {
    event.preventDefault();
    event.target.click();
  }
});

document.addEventListener("DOMContentLoaded", () => {
  const list = document.getElementById("summarylist-body");
  new MutationObserver(() => turnDirections(list)).observe(list, { childList: true });
  new MutationObserver(reachButtons).observe(document.body, { childList: true, subtree: true });
  reachButtons();
});
