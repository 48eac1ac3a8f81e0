"use strict";
/* Tabs, and numbers under the pointer. Without this script the page shows all its parts one below the other. */

/* ---- tabs: one part of the page at a time, by click, arrow keys, Home and End, or an address that ends in #part */
const list = document.querySelector("[role=tablist]");
const tabs = [...document.querySelectorAll("[role=tab]")];
const parts = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));

function choose(index, focus) {
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", String(i === index));
    tab.tabIndex = i === index ? 0 : -1;
    parts[i].hidden = i !== index;
  });
  hide();
  if (focus) tabs[index].focus({ preventScroll: true });
  /* Scrolls sideways only, if the row of tabs is wider than the screen. */
  const tab = tabs[index], room = list.clientWidth - tab.offsetWidth;
  list.scrollLeft = Math.max(tab.offsetLeft - list.offsetLeft - room / 2, 0);
}

/* If the reader has scrolled down, show the beginning of the newly chosen part. */
const toTop = (index) => { if (list.getBoundingClientRect().top <= 0) parts[index].scrollIntoView(); };

function startTabs() {
  parts.forEach((part) => part.setAttribute("role", "tabpanel"));
  tabs.forEach((tab, i) => tab.addEventListener("click", () => {
    choose(i, false);
    toTop(i);
    try { history.replaceState(null, "", "#" + parts[i].id); } catch (error) { /* a page inside a frame has no address */ }
  }));
  list.addEventListener("keydown", (event) => {
    const now = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose((to + tabs.length) % tabs.length, true);
    toTop((to + tabs.length) % tabs.length);
  });
  const asked = () => parts.findIndex((part) => "#" + part.id === location.hash);
  addEventListener("hashchange", () => { if (asked() >= 0) choose(asked(), false); });
  list.hidden = false;
  choose(Math.max(0, asked()), false);
}

/* ---- numbers, written as on the rest of the page */
const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (e) => "10" + (e < 0 ? "⁻" : "") + [...String(Math.abs(e))].map((d) => RAISED[d]).join("");
const bare = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
const whole = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 });

function number(value, digits = 4) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not finite" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const e = Number(exponent);
  let text;
  if ((e > -4 || (e === -4 && bare(mantissa.replace("-", "")) === "1")) && e < digits) text = bare(value.toFixed(digits - 1 - e));
  else if (e >= digits && e < 9) text = whole(value);
  else text = bare(mantissa) === "1" ? power(e) : bare(mantissa) + " × " + power(e);
  return text.replace("-", "−");
}

/* ---- numbers under the pointer */
const tip = document.getElementById("tip");
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
const floats = (text) => new Float32Array(bytes(text));
const counts = (text) => new Uint32Array(bytes(text));
let marked = null;

function hide() {
  tip.hidden = true;
  if (marked) marked.remove();
  marked = null;
}

function draw(svg, shapes) {
  if (marked) marked.remove();
  marked = document.createElementNS(svg.namespaceURI, "g");
  for (const [name, attributes] of shapes) {
    const shape = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    marked.append(shape);
  }
  marked.setAttribute("class", "cursor");
  svg.append(marked);
}

function say(head, rows, x, y) {
  tip.replaceChildren();
  const title = document.createElement("p");
  title.textContent = head;
  tip.append(title);
  for (const [colour, name, value] of rows) {
    const row = document.createElement("p");
    if (colour) {
      const swatch = document.createElement("i");
      swatch.style.background = colour;
      row.append(swatch);
    }
    const text = document.createElement("span");
    text.textContent = name;
    const strong = document.createElement("b");
    strong.textContent = value;
    row.append(text, strong);
    tip.append(row);
  }
  tip.hidden = false;
  const size = tip.getBoundingClientRect();
  const left = x + 16 + size.width > innerWidth ? x - 16 - size.width : x + 16;
  tip.style.left = Math.max(4, Math.min(left, innerWidth - size.width - 4)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 12, innerHeight - size.height - 4)) + "px";
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

/* Each reader takes a position in the axes, from (0, 0) at the bottom left to (1, 1) at the top right. */
function lineReader(svg, plot) {
  const series = plot.series.map((s) => ({ ...s, x: counts(s.x), y: floats(s.y) })).filter((s) => s.x.length);
  const [x0, y0, x1, y1] = plot.box, ends = plot.log ? plot.y.map(Math.log10) : plot.y;
  return (fx, fy, clientX, clientY) => {
    const x = plot.x[0] + fx * (plot.x[1] - plot.x[0]);
    let found = series.map((s) => {
      const at = nearest(s.x, x), off = (plot.off || []).includes(s.name);
      const up = off ? NaN : (s.y[at] - ends[0]) / (ends[1] - ends[0]);
      return { ...s, step: s.x[at], up, value: plot.log ? 10 ** s.y[at] : s.y[at] };
    });
    if (!found.length) return;
    const away = (s) => (Number.isNaN(s.up) ? 2 : Math.abs(s.up - fy));
    if (found.length > 8) found = [...found].sort((a, b) => away(a) - away(b)).slice(0, 8);
    const alike = found.every((s) => s.step === found[0].step);
    const shapes = [];
    for (const s of found) {
      if (!(s.up >= 0 && s.up <= 1)) continue;
      const cx = x0 + (s.step - plot.x[0]) / (plot.x[1] - plot.x[0]) * (x1 - x0);
      shapes.push(["circle", { cx, cy: y1 - s.up * (y1 - y0), r: 4.5, style: "fill: " + s.colour }]);
    }
    const rule = x0 + (alike ? (found[0].step - plot.x[0]) / (plot.x[1] - plot.x[0]) : fx) * (x1 - x0);
    draw(svg, [["line", { x1: rule, x2: rule, y1: y0, y2: y1 }], ...shapes]);
    const rows = found.map((s) => [s.colour, s.name + (alike ? "" : ", " + plot.across + " " + whole(s.step)), number(s.value)]);
    say(alike ? plot.across + " " + whole(found[0].step) : "near " + plot.across + " " + whole(Math.max(0, Math.round(x))), rows, clientX, clientY);
  };
}

const span = (word, a, b) => (a === b ? word + " " + whole(a) : word + "s " + whole(a) + " to " + whole(b));

function mapReader(svg, map) {
  const values = floats(map.values), steps = counts(map.steps), updates = counts(map.updates);
  const columns = steps.length / 2, last = steps[steps.length - 1], [x0, y0, x1, y1] = map.box;
  return (fx, fy, clientX, clientY) => {
    const t = Math.min(last, Math.max(1, Math.floor(fx * last) + 1));
    let column = 0;
    while (column < columns - 1 && steps[2 * column + 1] < t) column++;
    const u = map.edges[0] + fy * (map.edges[map.edges.length - 1] - map.edges[0]);
    let row = 0;
    while (row < map.edges.length - 2 && map.edges[row + 1] <= u) row++;
    const height = map.edges[map.edges.length - 1] - map.edges[0];
    const top = y1 - (map.edges[row + 1] - map.edges[0]) / height * (y1 - y0);
    const left = x0 + (steps[2 * column] - 1) / last * (x1 - x0);
    const size = { width: Math.max(1, (steps[2 * column + 1] - steps[2 * column] + 1) / last * (x1 - x0)),
      height: Math.max(1, (map.edges[row + 1] - map.edges[row]) / height * (y1 - y0)) };
    draw(svg, [["rect", { x: left, y: top, ...size }]]);
    const value = 10 ** values[row * columns + column];
    say(span("step", steps[2 * column], steps[2 * column + 1]) + ", " + span("update", updates[2 * row], updates[2 * row + 1]),
      [["", "gradient norm", number(value)]], clientX, clientY);
  };
}

function startReadouts() {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  for (const [key, plot] of Object.entries(plots)) {
    const svg = document.querySelector("#" + CSS.escape(key) + " svg[role=img]");
    let read = null;
    const at = { x: 1, y: 0.5 };
    const show = (clientX, clientY) => {
      read = read || (plot.values ? mapReader : lineReader)(svg, plot);
      read(at.x, at.y, clientX, clientY);
    };
    const [x0, y0, x1, y1] = plot.box;
    const place = (event) => {
      const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      at.x = ((event.clientX - box.left) * unit - x0) / (x1 - x0);
      at.y = (y1 - (event.clientY - box.top) * unit) / (y1 - y0);
      if (at.x < -0.02 || at.x > 1.02 || at.y < -0.02 || at.y > 1.02) return hide();
      at.x = Math.min(1, Math.max(0, at.x));
      at.y = Math.min(0.9999, Math.max(0, at.y));
      show(event.clientX, event.clientY);
    };
    svg.addEventListener("pointermove", place);
    svg.addEventListener("pointerdown", place);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.tabIndex = 0;
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-0.02, 0], ArrowRight: [0.02, 0], ArrowUp: [0, 0.04], ArrowDown: [0, -0.04] }[event.key];
      if (event.key === "Escape") return hide();
      if (!move || (!plot.values && move[1])) return;
      event.preventDefault();
      at.x = Math.min(1, Math.max(0, at.x + move[0]));
      at.y = Math.min(0.9999, Math.max(0, at.y + move[1]));
      const box = svg.getBoundingClientRect(), unit = box.width / svg.viewBox.baseVal.width;
      show(box.left + (x0 + at.x * (x1 - x0)) * unit, box.top + (y1 - at.y * (y1 - y0)) * unit);
    });
  }
}

startTabs();
startReadouts();
