// What the same requests would take if each had a region reserved for it, beside what they hold.

import { h, setText } from "../../dom.js";
import { count, counted, percent } from "../../format.js";

const BARS = [["held", "held here", "--used"],
  ["longest", "as long as each may become", "--internal"], ["model", "as long as any may become", "--external"]];

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

  put(state) {
    const { pool, requests } = state, { longest, max_model_len: model } = pool.contiguous;
    const held = requests.num_running ? pool.held_blocks : 0;
    const values = { held, longest, model };
    const most = Math.max(pool.num_blocks, ...Object.values(values).map((value) => value ?? 0));
    for (const [key, { bar, value, limit, row }] of Object.entries(this.bars)) {
      row.hidden = values[key] === null;
      bar.style.width = `${100 * (values[key] ?? 0) / most}%`;
      limit.style.left = `${100 * pool.num_blocks / most}%`;
      setText(value, count(values[key] ?? 0));
    }
    setText(this.words, this.#words(state, held, longest, model));
  }

  #words({ pool, requests }, held, longest, model) {
    if (!requests.num_running || !held) {
      return "While requests run, this shows how many blocks they would need where a server reserves a region for "
        + "each output before it is known how long it becomes.";
    }
    const kept = model ?? longest, ratio = kept / held;
    const times = ratio >= 1.05 ? `${ratio.toFixed(1)} times` : "about as much as";
    const who = requests.num_running === 1 ? "The request that runs" : `The ${count(requests.num_running)} requests that run`;
    return `${who} would reserve ${counted(kept, "block")}: ${times} what ${requests.num_running === 1 ? "it holds" : "they hold"}. `
      + (kept > pool.num_blocks ? `The pool (the line) has ${count(pool.num_blocks)}, room for ${percent(pool.num_blocks / kept)} of that.`
        : `That fits into the pool of ${count(pool.num_blocks)} (the line).`);
  }
}
