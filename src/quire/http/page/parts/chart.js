// Charts over time: lines or stacked areas, read by pointer, by keyboard, or as a table.

import { h, setText } from "../dom.js";
import { nearest, roundTop, timeScale, timeTicks } from "./scales.js";

const WIDTH = 1000, HEIGHT = 100; // of the drawing, which is stretched to its place
const GAP = 5; // seconds without a point, over which no line is drawn
const ROWS = 20; // of the table
const DASHES = ["none", "6 3", "2 3", "10 3 2 3", "1 5"];
const STEPS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

/** A moment that charts point at together; null: the latest. */
export class Cursor {
  constructor() { this.time = null; this.followers = []; }

  set(time) {
    this.time = time;
    for (const follow of this.followers) follow();
  }
}

function svg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/**
 * A chart of what `series` make of points, each with a `time` in seconds, oldest first.
 *
 * series: {name, colour, of(point, before)}: a number, or null where there is none; colour: the
 * name of a variable of style.css; before: the point `over` seconds ago, or the oldest.
 * format(number): as it is written; brief(number): at the axis. stacked: areas, the first undermost; else lines. top: the
 * axis's end, if it is fixed; least: the least that it is. cursor: to be shared with others.
 * clock(time, seconds): a time as it is written; seconds: whether they matter. note: one line of what it tells.
 */
export class Chart {
  constructor(given) {
    const some = { brief: given.format, stacked: false, top: null, least: 1e-6, over: 10, cursor: new Cursor() };
    Object.assign(this, some, given);
    this.points = [];
    this.values = []; // by point, then by series
    this.#build(given.note);
    this.cursor.followers.push(() => this.#read());
  }

  draw(points) {
    this.points = points;
    let before = 0;
    this.values = points.map((point) => {
      while (point.time - points[before].time > this.over) before += 1;
      return this.series.map((one) => finite(one.of(point, points[before])));
    });
    this.element.classList.toggle("empty", points.length === 0);
    if (points.length === 0) return;
    this.scale = timeScale(points);
    this.keys.forEach((key, i) => { key.hidden = this.values.every((row) => row[i] === null); });
    this.nothing.hidden = this.keys.some((key) => !key.hidden);
    this.#drawPaths();
    this.#drawTicks();
    this.#read();
    if (this.details.open) this.#fillTable();
  }

  // -- its elements --------------------------------------------------------------------------------

  #build(note) {
    this.when = h("span", { class: "chart-when" });
    this.told = this.series.map(() => h("b", {}, "–"));
    this.keys = this.series.map((one, i) => h("li", {}, this.#swatch(i), `${one.name} `, this.told[i]));
    const keys = this.stacked ? [...this.keys].reverse() : this.keys; // as they lie
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": true });
    const kind = this.stacked ? "area" : "line";
    this.paths = this.series.map((_, i) => this.#styled(svg("path", { class: kind }), i));
    this.drawing.append(...this.paths);
    this.nothing = h("p", { class: "chart-nothing" }, "nothing yet");
    this.mark = h("div", { class: "chart-mark", hidden: true });
    this.levels = h("div", { class: "chart-levels", "aria-hidden": "true" });
    this.moments = h("div", { class: "chart-moments", "aria-hidden": "true" });
    this.plot = h("div", {
      class: "chart-plot", tabindex: "0", role: "slider", "aria-label": `${this.title}, over time`,
      "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0,
      onkeydown: (event) => this.#press(event), onblur: () => this.cursor.set(null),
      onpointermove: (event) => this.#point(event), onpointerdown: (event) => this.#point(event),
      onpointerleave: () => this.cursor.set(null),
    }, this.levels, this.drawing, this.nothing, this.mark);
    this.table = h("table", {});
    this.details = h("details", { ontoggle: () => this.#fillTable() },
      h("summary", { "aria-label": `${this.title} as a table` }, "table"),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.title }, this.table));
    this.element = h("figure", { class: "chart empty" },
      h("figcaption", {}, h("h3", {}, this.title), this.when), this.plot, this.moments,
      h("ul", { class: "chart-keys" }, keys), h("div", { class: "chart-foot" }, h("p", {}, note ?? ""), this.details));
  }

  #swatch(i) {
    const box = svg("svg", { viewBox: "0 0 22 10", class: "swatch", "aria-hidden": "true" });
    const path = svg("path", this.stacked ? { d: "M0 0H22V10H0Z", class: "area" } : { d: "M0 5H22", class: "line" });
    box.append(this.#styled(path, i));
    return box;
  }

  #styled(path, i) {
    path.style[this.stacked ? "fill" : "stroke"] = `var(${this.series[i].colour})`;
    if (!this.stacked) path.style.strokeDasharray = DASHES[i % DASHES.length];
    return path;
  }

  // -- drawing -------------------------------------------------------------------------------------

  #drawPaths() {
    const tops = this.values.map((row) => (this.stacked ? row.reduce((sum, value) => sum + (value ?? 0), 0)
      : Math.max(0, ...row.filter((value) => value !== null))));
    this.end = this.top ?? roundTop(tops.reduce((a, b) => Math.max(a, b), 0), this.least);
    const below = this.points.map(() => 0);
    this.paths.forEach((path, i) => path.setAttribute("d", this.stacked ? this.#area(i, below) : this.#line(i)));
  }

  #x(i) { return (WIDTH * (this.points[i].time - this.scale.begin) / this.scale.span).toFixed(1); }

  #y(value) { return (HEIGHT * (1 - Math.min(1, value / this.end))).toFixed(2); }

  #none(i) { return this.values[i].every((value) => value === null); }

  #apart(i) {
    return this.points[i].time - this.points[i - 1].time > GAP || this.#none(i) !== this.#none(i - 1);
  }

  #line(which) {
    let path = "", drawn = false;
    this.values.forEach((row, i) => {
      const value = row[which];
      if (value !== null) path += `${drawn && i > 0 && !this.#apart(i) ? "L" : "M"}${this.#x(i)} ${this.#y(value)}`;
      drawn = value !== null;
    });
    return path;
  }

  /** Between what is below it and that with its own, which is then below the next. */
  #area(which, below) {
    let path = "", first = 0;
    const close = (last) => {
      if (last < first || this.#none(first)) return;
      const upper = [], lower = [];
      for (let i = first; i <= last; i += 1) {
        const top = below[i] + (this.values[i][which] ?? 0);
        upper.push(`${this.#x(i)} ${this.#y(top)}`);
        lower.push(`${this.#x(i)} ${this.#y(below[i])}`);
        below[i] = top;
      }
      path += `M${upper.join("L")}L${lower.reverse().join("L")}Z`;
    };
    for (let i = 1; i < this.points.length; i += 1) {
      if (this.#apart(i)) { close(i - 1); first = i; }
    }
    close(this.points.length - 1);
    return path;
  }

  #drawTicks() {
    const levels = [0, this.end / 2, this.end].map((value) => h("span", {}, this.brief(value)));
    [100, 50, 0].forEach((place, i) => { levels[i].style.top = `${place}%`; });
    this.levels.replaceChildren(...levels);
    this.moments.replaceChildren(...timeTicks(this.scale, this.clock).map(({ place, text }) => {
      const tick = h("span", {}, text);
      tick.style.left = `${100 * place}%`;
      return tick;
    }));
  }

  // -- reading -------------------------------------------------------------------------------------

  #point(event) {
    if (this.points.length === 0) return;
    const { left, width } = this.drawing.getBoundingClientRect();
    this.cursor.set(this.scale.begin + this.scale.span * (event.clientX - left) / width);
  }

  #press(event) {
    if (event.key === "Escape") return this.cursor.set(null);
    if (!(event.key in STEPS) || this.points.length === 0) return;
    event.preventDefault();
    const last = this.points.length - 1;
    const now = this.cursor.time === null ? last : nearest(this.points, this.cursor.time);
    const next = Math.min(last, Math.max(0, now + STEPS[event.key]));
    this.cursor.set(this.points[next].time);
  }

  /** Tell the values at the cursor, or else the latest. */
  #read() {
    if (this.points.length === 0) return;
    const { time } = this.cursor, last = this.points.length - 1;
    const at = time === null ? last : nearest(this.points, time);
    const texts = this.values[at].map((value) => (value === null ? "–" : this.format(value)));
    this.told.forEach((element, i) => setText(element, texts[i]));
    setText(this.when, time === null ? "" : this.clock(this.points[at].time));
    this.mark.hidden = time === null;
    if (time !== null) this.mark.style.left = `${this.#x(at) / WIDTH * 100}%`;
    const told = this.series.map((one, i) => (this.keys[i].hidden ? "" : `, ${one.name} ${texts[i]}`)).join("");
    const plot = { "aria-valuemax": last, "aria-valuenow": at, "aria-valuetext": this.clock(this.points[at].time) + told };
    if (document.activeElement !== this.plot || time !== null) {
      for (const [name, value] of Object.entries(plot)) this.plot.setAttribute(name, value);
    }
  }

  #fillTable() {
    if (!this.details.open || this.points.length === 0) return;
    const apart = Math.max(1, Math.ceil(this.points.length / ROWS)), rows = [];
    for (let i = this.points.length - 1; i >= 0; i -= apart) {
      rows.push(h("tr", {}, h("th", { scope: "row" }, this.clock(this.points[i].time)),
        this.values[i].map((value) => h("td", { class: "number" }, value === null ? "–" : this.format(value)))));
    }
    const head = ["time", ...this.series.map((one) => one.name)];
    this.table.replaceChildren(h("thead", {}, h("tr", {}, head.map((name, i) => (
      h("th", { scope: "col", class: i ? "number" : null }, name))))), h("tbody", {}, rows));
  }
}

const finite = (value) => (Number.isFinite(value) ? value : null);
