// In asv's list, where a rise is red and a fall green: the other way round for what is better higher.
// And where the page was opened as a file, for which no browser reads asv's data: what to do.
"use strict";

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
        $("<p>").text("Then open http://127.0.0.1:8000/ in the browser. The summary needs no server."),
      );
      $("#error").modal("show");
    };
  });
}

document.addEventListener("DOMContentLoaded", () => {
  const list = document.getElementById("summarylist-body");
  new MutationObserver(() => {
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
  }).observe(list, { childList: true });
});
