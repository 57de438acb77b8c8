// What colours mean, which is also how many blocks there are of each, and what to look at alone.

import { h, setText } from "../../dom.js";
import { count } from "../../format.js";
import { holderOf } from "./inspector.js";
import { KINDS, OF_WINDOWS, countOwners } from "./kinds.js";

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

/** By request: those that most blocks on the map are of. chosen(number). */
export class OwnerLegend {
  constructor(chosen) {
    this.chosen = chosen;
    this.buttons = new Map(); // by number; kept, so that focus stays where it is
    this.rest = h("span", { class: "quiet" });
    this.element = h("div", { class: "legend", role: "group", "aria-label": "Blocks by request" }, this.rest);
  }

  put(state, blocks, palette, selected) {
    const all = [...countOwners(blocks)].sort(([a, some], [b, others]) => others - some || a - b);
    const shown = new Map(all.slice(0, MOST).sort(([a], [b]) => a - b)); // who is there stays where it is
    for (const [number, button] of this.buttons) {
      if (!shown.has(number)) { button.remove(); this.buttons.delete(number); }
    }
    for (const [number, held] of shown) {
      const button = this.#button(number), id = holderOf(state, number)?.id ?? `number ${number}`;
      button.querySelector("i").style.background = palette.css(number);
      button.setAttribute("aria-pressed", String(number === selected));
      button.title = `${id}. A block that several share counts for the one that came first.`;
      setText(button.querySelector("span"), shortened(id));
      setText(button.querySelector("b"), count(held));
    }
    const rest = all.length - shown.size;
    setText(this.rest, all.length === 0 ? "no request holds any" : rest ? `and ${count(rest)} more` : "");
  }

  #button(number) {
    let button = this.buttons.get(number);
    if (!button) {
      button = h("button", { "aria-pressed": "false", onclick: () => this.chosen(number) },
        h("i", { class: "block-key" }), h("span", { class: "mono" }), h("b", {}));
      this.buttons.set(number, button);
      const after = [...this.buttons].filter(([other]) => other > number).sort(([a], [b]) => a - b)[0];
      this.element.insertBefore(button, after ? after[1] : this.rest);
    }
    return button;
  }
}

export const shortened = (id) => (id.length > 16 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);
