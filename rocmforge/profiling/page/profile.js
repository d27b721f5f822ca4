// Tables of class "sortable": a button in each head sorts the rows by that column, numbers first
// downwards. Without scripts they stay as they were written: longest op first.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const numbers = head.classList.contains("n");
      const before = head.getAttribute("aria-sort");
      const down = before === null ? numbers : before === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const order = (one, other) => {
        const [a, b] = [value(one, column), value(other, column)];
        return (typeof a === "number" ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
