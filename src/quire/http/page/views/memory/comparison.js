// What the same requests would take if each had a region reserved for it, beside what they hold.

import { h, setText } from "../../dom.js";
import { count, counted, percent } from "../../format.js";

const BARS = [["held", "held now", "--used"],
  ["longest", "each at its max_tokens", "--internal"], ["model", "each at max_model_len", "--external"]];

export class Comparison {
  constructor() {
    this.bars = Object.fromEntries(BARS.map(([key, name, colour]) => {
      const bar = h("div", { class: "bar" }), value = h("b", {});
      bar.style.background = `var(${colour})`;
      const limit = h("div", { class: "limit" });
      return [key, { bar, value, limit, row: h("div", { class: "bar-row" },
        h("span", {}, name), h("div", { class: "track" }, bar, limit), value) }];
    }));
    this.words = h("p", { class: "quiet" });
    this.element = h("section", { class: "panel comparison" }, h("h2", {}, "If memory were reserved"),
      Object.values(this.bars).map((one) => one.row), this.words);
  }

  put({ pool, num_running: running }) {
    const { longest, max_model_len: model } = pool.contiguous;
    const held = running ? pool.held_blocks : 0;
    const values = { held, longest, model };
    const most = Math.max(pool.num_blocks, ...Object.values(values).map((value) => value ?? 0));
    for (const [key, { bar, value, limit, row }] of Object.entries(this.bars)) {
      row.hidden = values[key] === null;
      bar.style.width = `${100 * (values[key] ?? 0) / most}%`;
      limit.style.left = `${100 * pool.num_blocks / most}%`;
      setText(value, count(values[key] ?? 0));
    }
    setText(this.words, this.#words(pool, running, held, model ?? longest));
  }

  #words(pool, running, held, kept) {
    if (!held) {
      return "While requests run, this shows how many blocks they would need where a server reserves a region for "
        + "each output before it is known how long it becomes.";
    }
    const ratio = kept / held;
    const times = ratio >= 1.05 ? `${ratio.toFixed(1)} times` : "about as much as";
    const who = running === 1 ? "The request that runs" : `The ${count(running)} requests that run`;
    return `${who} would reserve ${counted(kept, "block")}: ${times} what ${running === 1 ? "it holds" : "they hold"}. `
      + (kept > pool.num_blocks ? `The pool (the line) has ${count(pool.num_blocks)}, room for ${percent(pool.num_blocks / kept)} of that.`
        : `That fits into the pool of ${count(pool.num_blocks)} (the line).`);
  }
}
