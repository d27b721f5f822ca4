// What the pages share: data files, the address, numbers, tables and charts.
//
// A page is page/NAME.html, which extends layout.html, with page/NAME.js and, where it loads data,
// a module NAME_data.py; render.py lists them. The script begins with rocmforge.page(draw): `draw`
// gets the state (what the address says behind #, by name) and runs again when that changes.
// Data comes from data/NAME.js, because a page that is opened as a file may load scripts but not
// read files: `await rocmforge.load("NAME")`. Text from files reaches the page as text, never as
// markup. Charts are drawn by Plot, in colours of site.css, and each has its numbers as a table.
"use strict";

const rocmforge = (() => {
  const NA = "n/a";
  const colours = ["--s0", "--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7"].map((name) => `var(${name})`);

  // ---- data --------------------------------------------------------------------------------------
  const asked = new Map();

  function entry(name) {
    if (!asked.has(name)) {
      const made = {};
      made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
      asked.set(name, made);
    }
    return asked.get(name);
  }

  // Called by the data files.
  const data = (name, content) => entry(name).resolve(content);

  // Loads a data file once; a promise of what it holds.
  function load(name) {
    const known = asked.has(name);
    const found = entry(name);
    if (!known) {
      const script = element("script", { src: `data/${name}.js` });
      script.onerror = () => {
        asked.delete(name);  // another choice may try again
        found.reject(new Error(`data/${name}.js cannot be read`));
      };
      document.head.append(script);
    }
    return found.promise;
  }

  // ---- the address -------------------------------------------------------------------------------
  const state = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

  function address(changes) {
    const all = { ...state(), ...changes };
    const kept = Object.entries(all).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return `#${new URLSearchParams(kept)}`;
  }

  // Changes the address; `quietly` without a new place in the history, as while somebody types.
  function go(changes, quietly = false) {
    const next = address(changes);
    if (next === location.hash || (next === "#" && !location.hash)) return;
    document.body.dataset.ready = "no";
    if (quietly) {
      history.replaceState(null, "", next);
      window.dispatchEvent(new HashChangeEvent("hashchange"));
    } else {
      location.hash = next;
    }
  }

  // Runs `draw` now and whenever the address changes; what goes wrong stands on the page. While one
  // drawing waits for its data no other begins: the last address is drawn last. The focus stays, and
  // what was folded open stays open.
  function page(draw) {
    const status = document.getElementById("status");
    let drawing = false, again = false;
    const run = async () => {
      again = true;
      document.body.dataset.ready = "no";
      if (drawing) return;
      drawing = true;
      try {
        while (again) {
          again = false;
          const before = [...document.querySelectorAll("details")].map((one) => one.open);
          const focused = document.activeElement?.dataset.key;
          await draw(state());
          document.querySelectorAll("details").forEach((one, at) => { one.open ||= before[at] ?? false; });
          if (focused && document.activeElement === document.body) {
            document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
          }
        }
        status.textContent = "";
        document.body.dataset.ready = "yes";
      } catch (error) {
        status.textContent = `This page cannot be drawn: ${error.message}`;
        throw error;
      } finally {
        drawing = false;
      }
    };
    window.addEventListener("hashchange", run);
    document.addEventListener("DOMContentLoaded", run);
  }

  // ---- numbers -----------------------------------------------------------------------------------
  const figures = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const few = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  const number = (x) => (x === null || x === undefined || !Number.isFinite(x) ? NA : figures.format(x));

  const SMALLER = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
  const LARGER = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];

  // The factor and the unit in which numbers of a unit are read well: one for all of them.
  function scale(values, unit) {
    const largest = Math.max(0, ...values.filter((x) => Number.isFinite(x)).map(Math.abs));
    const steps = unit === "seconds" || unit === "s" ? SMALLER : unit === "bytes" ? LARGER : null;
    if (!steps || !largest) return { factor: 1, unit: unit === "us" ? "µs" : unit };
    const [shown, size] = steps.find(([, one]) => largest >= one) ?? steps.at(-1);
    return { factor: 1 / size, unit: shown };
  }

  function value(x, unit) {
    if (x === null || x === undefined) return NA;
    const to = scale([x], unit);
    return `${figures.format(x * to.factor)}${to.unit ? ` ${to.unit}` : ""}`;
  }

  const percent = (x) => (x === null || x === undefined ? NA : `${few.format(100 * x)} %`);
  const better = (sign) => (sign > 0 ? "higher is better" : sign < 0 ? "lower is better" : "");

  // ---- elements ----------------------------------------------------------------------------------
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, given] of Object.entries(attributes)) {
      if (given === null || given === undefined || given === false) continue;
      if (key.startsWith("on")) made.addEventListener(key.slice(2), given);
      else if (key === "class") made.className = given;
      else made.setAttribute(key, given === true ? "" : given);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  // A choice whose value is the `name` of the state. Options: texts, or [value, text].
  // `withIt` is what else of the state a new choice sets.
  function choice(label, name, options, chosen, withIt = {}) {
    const list = options.map((option) => (Array.isArray(option) ? option : [option, option]));
    const select = element("select", { onchange: () => go({ ...withIt, [name]: select.value }) });
    select.append(...list.map(([at, text]) => element("option", { value: at, selected: String(at) === String(chosen) }, text)));
    return element("label", { class: "choice" }, `${label} `, select);
  }

  // A field for words, all of which must occur; its value is the `name` of the state.
  function filter(label, name, given) {
    const input = element("input", {
      type: "search", value: given ?? "", placeholder: "words, all of which must occur",
      oninput: () => go({ [name]: input.value }, true),
    });
    return element("label", { class: "choice" }, `${label} `, input);
  }

  const matches = (text, words) => {
    const lower = text.toLowerCase();
    return (words ?? "").toLowerCase().split(/\s+/).every((word) => lower.includes(word));
  };

  // Puts controls into a place once, and again only where they would differ: the focus stays.
  function controls(place, made) {
    const text = made.map((one) => one.outerHTML).join("");
    if (place.dataset.made === text) return;
    const at = [...place.querySelectorAll("select, input")].indexOf(document.activeElement);
    const typed = document.activeElement?.selectionStart;
    place.dataset.made = text;
    place.replaceChildren(...made);
    if (at >= 0) {
      const again = place.querySelectorAll("select, input")[at];
      again?.focus();
      if (again?.setSelectionRange && typed !== undefined && again.type === "search") again.setSelectionRange(typed, typed);
    }
  }

  // ---- tables ------------------------------------------------------------------------------------
  const FIRST_ROWS = 300; // more are drawn when somebody asks for them

  // columns: {name, number, of(row) → text or node, by(row) → what is sorted by}. `order` is the
  // column's name, with "-" in front for falling; `name` is where the state keeps it.
  function table(caption, columns, rows, { order = "", name = null } = {}) {
    const falling = order.startsWith("-");
    const sorted = columns.find((one) => one.name === order.replace(/^-/, ""));
    const shown = inOrder(columns, rows, order);
    const heads = columns.map((one) => {
      if (!name) return element("th", { scope: "col" }, one.name);
      const next = one === sorted && !falling ? `-${one.name}` : one.name;
      const state = one === sorted ? (falling ? "descending" : "ascending") : null;
      const button = element("button", { type: "button", "data-key": `${name} ${one.name}`, onclick: () => go({ [name]: next }) }, one.name);
      return element("th", { scope: "col", "aria-sort": state }, button);
    });
    const drawn = (list) => list.map((row) => element("tr", {}, ...columns.map((one, at) => {
      const cell = one.of(row) ?? NA;
      const given = { class: one.number ? "n" : null, "data-label": one.name };
      return at === 0 ? element("th", { ...given, scope: "row" }, cell) : element("td", given, cell);
    })));
    const body = element("tbody", {}, ...drawn(shown.slice(0, FIRST_ROWS)));
    const made = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), body);
    const rest = shown.length > FIRST_ROWS && element("button", { type: "button", onclick: () => {
      body.append(...drawn(shown.slice(FIRST_ROWS)));
      rest.remove();
    } }, `Show all ${number(shown.length)} rows`);
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made, rest || null);
  }

  // The rows in the order that a table of these columns shows them in.
  function inOrder(columns, rows, order = "") {
    const sorted = columns.find((one) => one.name === order.replace(/^-/, ""));
    if (!sorted) return rows;
    const by = sorted.by ?? ((row) => textOf(sorted.of(row)));
    return [...rows].sort((a, b) => compare(by(a), by(b), order.startsWith("-") ? -1 : 1));
  }

  const textOf = (cell) => (cell instanceof Node ? cell.textContent : String(cell ?? ""));

  // What has no value comes last either way.
  function compare(a, b, sign) {
    const missing = [a, b].map((x) => x === null || x === undefined || x === "" || x === NA);
    if (missing[0] !== missing[1]) return missing[0] ? 1 : -1;
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  }

  // ---- charts ------------------------------------------------------------------------------------
  // A figure: a caption, what `plot(width)` returns, and the same numbers as a table. It is drawn
  // again when its width changes.
  function chart(caption, label, plot, numbers) {
    const drawn = element("div", { class: "plot" });
    const figure = element("figure", {}, element("figcaption", {}, caption), drawn,
      numbers && element("details", {}, element("summary", {}, "The numbers as a table"), numbers));
    let width = 0;
    new ResizeObserver(() => {
      const now = Math.floor(drawn.clientWidth);
      if (!now || now === width) return;
      width = now;
      const svg = plot(width);
      drawn.replaceChildren(picture(svg, label));
    }).observe(drawn);
    return figure;
  }

  // A drawing as one picture for screen readers: Plot's names of its parts are no roles.
  function picture(svg, label) {
    svg.querySelectorAll("g[aria-label]").forEach((part) => part.removeAttribute("aria-label"));
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    return svg;
  }

  // A chart's legend: a line of text beside a mark of each colour.
  function legend(names) {
    return element("p", { class: "legend" }, ...names.map((name, at) => {
      const mark = element("span", { class: "mark", "aria-hidden": "true" });
      mark.style.background = colours[at % colours.length];
      return element("span", {}, mark, name);
    }));
  }

  // What Plot takes for every chart.
  const style = { background: "transparent", color: "inherit", fontSize: "12px", overflow: "visible" };
  const colour = (names) => ({ type: "ordinal", domain: names, range: names.map((_, at) => colours[at % colours.length]) });

  return {
    NA, data, load, state, address, go, page, number, value, scale, percent, better, element, choice,
    filter, matches, controls, table, inOrder, chart, picture, legend, style, colour, colours,
  };
})();
