// What colours mean, which is also how many blocks there are of each, and what to look at alone.

import { h, setText } from "../../dom.js";
import { count } from "../../format.js";
import { KINDS, OF_WINDOWS } from "./kinds.js";

const MOST = 14; // requests

/** By state: a button for each kind. chosen(kind): only these are to be bright; null: all. */
export class KindLegend {
  constructor(chosen) {
    this.chosen = null;
    this.windowed = false; // whether blocks may be of a window, or of sinks
    this.counts = KINDS.map(() => h("b", {}, "–"));
    this.buttons = KINDS.map((kind, which) => {
      const swatch = h("i", { class: "block-key" });
      swatch.style.background = `var(${kind.colour})`;
      return h("button", { "aria-pressed": "false", title: `${kind.about}. Press to see these alone.`,
        dataset: { kind: kind.name }, onclick: () => {
          this.chosen = this.chosen === which ? null : which;
          this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === this.chosen)));
          chosen(this.chosen);
        } }, swatch, kind.name, this.counts[which]);
    });
    this.element = h("div", { class: "legend", role: "group", "aria-label": "Blocks by state" }, this.buttons);
  }

  put(counts) {
    KINDS.forEach((_, which) => {
      setText(this.counts[which], count(counts[which]));
      this.buttons[which].classList.toggle("none", counts[which] === 0);
      this.buttons[which].hidden = OF_WINDOWS.has(which) && !this.windowed && counts[which] === 0;
    });
  }
}

/** By request: those that hold most. chosen(number). */
export class OwnerLegend {
  constructor(chosen) {
    this.chosen = chosen;
    this.buttons = new Map(); // by number; kept, so that focus stays where it is
    this.rest = h("span", { class: "quiet" });
    this.element = h("div", { class: "legend", role: "group", "aria-label": "Blocks by request" }, this.rest);
  }

  put(state, palette, selected) {
    const all = [...state.requests.running, ...state.sessions.filter((one) => !one.busy)].filter((one) => one.blocks > 0);
    const shown = all.sort((a, b) => b.blocks - a.blocks || a.number - b.number).slice(0, MOST);
    shown.sort((a, b) => a.number - b.number); // who is there stays where it is
    const numbers = new Set(shown.map((one) => one.number));
    for (const [number, button] of this.buttons) {
      if (!numbers.has(number)) { button.remove(); this.buttons.delete(number); }
    }
    for (const one of shown) {
      const button = this.#button(one);
      button.querySelector("i").style.background = palette.css(one.number);
      button.setAttribute("aria-pressed", String(one.number === selected));
      setText(button.querySelector("b"), count(one.blocks));
    }
    const hidden = state.requests.num_running + state.num_sessions - shown.length;
    setText(this.rest, all.length === 0 ? "no request holds any" : all.length > shown.length ? `and ${count(hidden)} more` : "");
  }

  #button(one) {
    let button = this.buttons.get(one.number);
    if (!button) {
      button = h("button", { "aria-pressed": "false", title: one.id, onclick: () => this.chosen(one.number) },
        h("i", { class: "block-key" }), h("span", { class: "mono" }, shortened(one.id)), h("b", {}));
      this.buttons.set(one.number, button);
      const after = [...this.buttons].filter(([number]) => number > one.number).sort(([a], [b]) => a - b)[0];
      this.element.insertBefore(button, after ? after[1] : this.rest);
    }
    return button;
  }
}

export const shortened = (id) => (id.length > 16 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);
