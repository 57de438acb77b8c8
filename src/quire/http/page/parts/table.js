// Tables whose rows stay the same elements while what is in them changes.

import { h, setText, setWords } from "../dom.js";
import { count } from "../format.js";

const NONE = "–", TAIL = 5; // of a name, which is where the prompts of one call differ
const CUT = new Set(["name", "brief"]); // kinds whose texts may be cut short

/**
 * A table of things that come and go.
 *
 * columns: {title, of(thing): its text or, of kind "act", an element made once; kind: "number",
 * "name", "wide", "brief" or "act"; show(things): whether to show it at all; about: what it means}.
 * key(thing): a name that no other has. choose(key): its row has been pressed; where there is
 * that, the first column is a button, and the arrow keys go from row to row.
 */
export class Table {
  constructor({ label, columns, key, choose }) {
    Object.assign(this, { columns, key, choose });
    this.rows = new Map(); // by key: {row, cells}
    this.chosen = null;
    this.heads = columns.map((one) => (
      h("th", { scope: "col", role: "columnheader", class: one.kind, title: one.about }, one.title)));
    this.body = h("tbody", { onkeydown: (event) => this.#press(event) });
    this.more = h("p", { class: "quiet", hidden: true });
    const table = h("table", { class: "things", role: "table" },
      h("thead", {}, h("tr", { role: "row" }, this.heads)), this.body);
    this.scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
    this.element = h("div", {}, this.scroll, this.more);
    this.width = 0; // that it needs; 0: it has it
    new ResizeObserver(() => this.#fit()).observe(this.scroll);
  }

  /** total: how many there are; of those that are not given only that is told. */
  draw(things, total = things.length) {
    const present = new Set(things.map(this.key));
    for (const [key, { row }] of this.rows) {
      if (!present.has(key)) { row.remove(); this.rows.delete(key); }
    }
    const shown = this.columns.map((one) => !one.show || one.show(things));
    if (shown.some((one, i) => one !== this.shown?.[i])) this.width = 0;
    this.shown = shown;
    this.heads.forEach((head, i) => { head.hidden = !this.shown[i]; });
    let place = this.body.firstChild;
    for (const thing of things) {
      const row = this.#drawn(thing);
      if (row === place) place = row.nextSibling; else this.body.insertBefore(row, place);
    }
    this.more.hidden = total <= things.length;
    setText(this.more, `and ${count(total - things.length)} more`);
    this.#fit();
  }

  /** Rows are cards where the table is too wide, so that no number is cut at its edge. */
  #fit() {
    const { scroll } = this, { clientWidth: room } = scroll;
    if (room === 0 || room < this.width) return;
    scroll.classList.remove("cards");
    this.width = scroll.scrollWidth > room ? scroll.scrollWidth : 0;
    scroll.classList.toggle("cards", this.width > 0);
  }

  /** Show which one is chosen; null: none of these. */
  mark(key) {
    this.chosen = key;
    for (const [other, { row, button }] of this.rows) {
      row.classList.toggle("chosen", other === key);
      button?.setAttribute("aria-expanded", String(other === key));
    }
  }

  #drawn(thing) {
    const key = this.key(thing);
    if (!this.rows.has(key)) this.rows.set(key, this.#made(key, thing));
    const { row, cells } = this.rows.get(key);
    cells.forEach((cell, i) => {
      if (cell.parentNode.hidden === this.shown[i]) cell.parentNode.hidden = !this.shown[i];
      const { kind, of } = this.columns[i];
      if (this.shown[i] && kind !== "act") put(cell, of(thing), kind);
    });
    return row;
  }

  #made(key, thing) {
    const cells = this.columns.map((one, i) => {
      if (one.kind === "act") return one.of(thing);
      if (i > 0 || !this.choose) return h("span");
      const props = { class: "chooses", "aria-expanded": String(key === this.chosen) };
      return h("button", { ...props, onclick: () => this.choose(key) });
    });
    const row = h("tr", { role: "row", class: key === this.chosen ? "chosen" : null }, cells.map((cell, i) => (
      h("td", { role: "cell", class: this.columns[i].kind, "data-title": this.columns[i].title }, cell))));
    return { row, cells, button: this.choose ? cells[0] : null };
  }

  #press(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches("button")) return;
    event.preventDefault();
    const own = event.target.closest("tr"), next = step > 0 ? own.nextSibling : own.previousSibling;
    const place = [...own.children].indexOf(event.target.closest("td"));
    next?.children[place].querySelector("button")?.focus();
  }
}

/** What is cut short is whole in its title. */
function put(element, text, kind) {
  if (element.textContent === text) return;
  if (kind === "name") element.replaceChildren(h("span", {}, text.slice(0, -TAIL)), text.slice(-TAIL));
  else setWords(element, text);
  element.parentNode.classList.toggle("none", text === NONE); // on a phone, it would only take place
  if (CUT.has(kind)) element.title = text;
}
