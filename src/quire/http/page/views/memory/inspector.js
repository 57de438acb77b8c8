// What is known of one block: who holds it, which tokens are in it, how often it was found.

import { h, setText } from "../../dom.js";
import { count, counted } from "../../format.js";
import { KINDS, kindOf } from "./kinds.js";

const PATIENCE = 120; // milliseconds that somebody looks at a block before the server is asked of it
const MOST = 4; // holders that are told of one by one

export class Inspector {
  /** chosen(number): whose blocks are to be shown. */
  constructor(page, chosen) {
    Object.assign(this, { page, chosen });
    this.block = null;
    this.told = null; // what the server has said of it
    this.title = h("h3", {});
    this.swatch = h("i", { class: "block-key" });
    this.facts = h("p", { class: "quiet" });
    this.list = h("ul", { class: "holders" });
    this.spoken = h("p", { class: "unseen", "aria-live": "polite" });
    this.element = h("section", { class: "inspector", "aria-label": "Block" },
      h("header", {}, this.swatch, this.title), this.facts, this.list, this.spoken);
    this.draw();
  }

  /** Tell of this block; null: of none. aloud: to a screen reader, too. */
  show(block, aloud = false) {
    if (block !== this.block) this.told = null;
    this.block = block;
    this.draw();
    if (aloud && block !== null) setText(this.spoken, `${this.title.textContent}. ${this.#summary()}`);
    clearTimeout(this.timer);
    if (block !== null && this.told === null) this.timer = setTimeout(() => this.ask(aloud), PATIENCE);
  }

  /** Ask the server again: who holds it may have changed. A recording knows the owner only. */
  async ask(aloud = false) {
    const { block } = this, { blocks, holders } = this.page.source;
    if (block === null || !holders || !blocks.owners[block]) { this.told = null; return; }
    const told = await this.page.source.holders(block).catch(() => null); // it may be gone; the map tells
    if (block !== this.block || told === null) return;
    this.told = told;
    this.draw();
    if (aloud) setText(this.spoken, `${this.title.textContent}. ${this.#summary()}`);
  }

  draw() {
    const { block } = this, { blocks } = this.page.source;
    const there = block !== null && block < blocks.length;
    this.swatch.hidden = !there;
    if (!there) {
      setText(this.title, "No block is looked at");
      setText(this.facts, "Point at one, or go there with Tab and the arrow keys. A click shows all that its request holds.");
      this.list.replaceChildren();
      return;
    }
    const kind = KINDS[kindOf(blocks, block)];
    this.swatch.style.background = `var(${kind.colour})`;
    setText(this.title, `Block ${count(block)} · ${kind.name}`);
    setText(this.facts, this.#facts(kind));
    this.list.replaceChildren(...this.#holders());
  }

  #facts(kind) {
    const { blocks } = this.page.source, { block } = this;
    const shared = blocks.shared[block], found = blocks.found[block];
    return [`${kind.about}.`, shared > 1 ? `${counted(shared, "sequence")} share it.` : null,
      found ? `Its content was found ${counted(found, "time")}.` : null].filter(Boolean).join(" ");
  }

  /** Lines of those who hold it. */
  #holders() {
    const owner = this.page.source.blocks.owners[this.block];
    if (!owner) return [];
    const told = this.told?.holders ?? [];
    if (told.length === 0) return [h("li", {}, this.#name(owner, this.#rowOf(owner)))];
    const lines = told.slice(0, MOST).map((one) => h("li", {}, this.#name(one.number, one),
      h("span", {}, ` ${this.#standing(one)}`), h("span", { class: "tokens" }, this.#tokens(one))));
    const more = this.told.num_holders - lines.length;
    return more > 0 ? [...lines, h("li", { class: "quiet" }, `and ${counted(more, "other")}`)] : lines;
  }

  #name(number, row) {
    return h("button", { class: "holder mono", onclick: () => this.chosen(number), title: "Show all that it holds" },
      row ? row.id : `number ${number}`);
  }

  #standing(one) {
    const waits = this.#rowOf(one.number)?.status === "preempted" ? "preempted" : "waiting";
    const what = one.kind === "session" ? "session between two turns" : one.running ? "running" : waits;
    const branch = one.branches > 1 ? `, branch ${one.branch + 1} of ${one.branches}` : "";
    return `number ${one.number}, ${what}${branch}${one.adapter ? `, adapter ${one.adapter}` : ""}`;
  }

  #tokens(one) {
    if (one.end_token <= one.first_token) return `for tokens from ${count(one.first_token)} on; none is in it yet`;
    return `tokens ${count(one.first_token)}–${count(one.end_token - 1)} of ${count(one.tokens)}`;
  }

  #summary() {
    const names = [...this.list.children].map((line) => line.textContent).join("; ");
    return `${this.facts.textContent} ${names ? `Held by ${names}.` : ""}`;
  }

  #rowOf(number) { return holderOf(this.page.source.state, number); }
}

/** The row of a request, or of a session, by its number. */
export function holderOf(state, number) {
  if (state === null) return null;
  const { running, waiting, preempted } = state.requests;
  return [running, preempted, waiting, state.sessions].flat().find((one) => one.number === number) ?? null;
}
