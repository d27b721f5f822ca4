// What the theme leaves out for those who use a keyboard or a screen reader.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".table-wrapper, pre")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // the arrow keys scroll it
  }
  for (const heading of document.querySelectorAll(".caption[role=heading]")) {
    heading.ariaLevel = "2";
  }
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "this page");
});
