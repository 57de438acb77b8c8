// An answer token by token: how unsure the model was of each is its underline, and the arrow keys read it out.

import { h, setText } from "../../dom.js";
import { percent } from "../../format.js";

const SURE = [0.9, 0.5, 0.2]; // probabilities at which an underline changes

const HELP = "Underlined is what was less sure than 90 %. Point at a token, or use the arrow keys.";

export class Tokens {
  #tokens = [];
  #current = -1;

  constructor() {
    this.line = h("div", { class: "tokens", tabindex: 0, role: "application",
      "aria-label": "Tokens; arrow keys go from one to the next",
      onkeydown: (event) => this.#key(event),
      onclick: (event) => this.#read([...this.line.children].indexOf(event.target)) });
    this.told = h("p", { class: "quiet token-told", role: "status" }, HELP);
    this.element = h("div", {}, this.line, this.told);
  }

  show(tokens) {
    if (this.#tokens !== tokens) { this.line.replaceChildren(); this.#current = -1; }
    this.#tokens = tokens;
    for (let at = this.line.children.length; at < tokens.length; at += 1) {
      const { text, logprob } = tokens[at];
      const level = SURE.filter((least) => Math.exp(logprob) < least).length;
      this.line.append(h("span", { class: `unsure-${level}`, title: describe(tokens[at]) }, text || "▯"));
    }
  }

  #key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.#read(Math.min(this.#tokens.length - 1, Math.max(0, this.#current + step)));
  }

  #read(at) {
    if (at < 0 || at >= this.#tokens.length) return;
    this.line.children[this.#current]?.removeAttribute("aria-current");
    this.#current = at;
    this.line.children[at].setAttribute("aria-current", "true");
    setText(this.told, describe(this.#tokens[at]));
  }
}

function describe({ text, logprob, others }) {
  const one = ([token, value]) => `${JSON.stringify(token)} ${percent(Math.exp(value))}`;
  return `${one([text, logprob])}${others.length ? `; likeliest others: ${others.map(one).join(", ")}` : ""}`;
}
