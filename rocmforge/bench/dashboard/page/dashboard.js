// Sorts and filters the tables, and sends the fragments of asv's page there.
"use strict";

const wanted = decodeURIComponent(location.hash.slice(1));
if (wanted && !document.getElementById(wanted) && document.getElementById("machines")) {
  location.replace("asv.html" + location.hash);
}

// Numbers by value, words by the alphabet; what has no value comes last either way.
function compareCells(one, other, sign) {
  const [a, b] = [one, other].map((cell) => cell.dataset.v ?? cell.textContent.trim());
  if ((a === "") !== (b === "")) return a === "" ? 1 : -1;
  const difference = one.dataset.v === undefined ? NaN : Number(a) - Number(b);
  return sign * (Number.isNaN(difference) ? a.localeCompare(b, "en", { numeric: true }) : difference);
}

function sort(table, column, heading) {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compareCells(a.cells[column], b.cells[column], up ? 1 : -1));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    button.addEventListener("click", () => sort(table, column, heading));
    heading.replaceChildren(button);
  });
  const labels = headings.map((heading) => heading.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, column) => { cell.dataset.label = labels[column]; });
  }
}

for (const input of document.querySelectorAll("input[data-filters]")) {
  const place = input.closest(".filter");
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, at) => {
      row.hidden = !words.every((word) => texts[at].includes(word));
      shown += !row.hidden;
    });
    place.querySelector("output").textContent = `${shown} of ${rows.length} rows`;
  };
  input.addEventListener("input", show);
  place.hidden = false;
  show();
}
