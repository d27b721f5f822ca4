// In asv's list, where a rise is red and a fall green: the other way round for what is better higher.
"use strict";

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
