// The turns of a conversation, as they are seen.

import { h, setChildren, setText } from "../../dom.js";
import { readJson } from "../../parts/json.js";
import { Markdown } from "../../parts/markdown.js";
import { Story } from "./story.js";
import { Tokens } from "./tokens.js";

const ENDS = {
  length: "cut at the most tokens that were allowed", abort: "ended by the server", error: "ended by an error",
};

/** edit(text): it is to be asked in other words. */
export class UserTurn {
  constructor(turn, { edit }) {
    this.text = h("p", { class: "plain" }, turn.content);
    this.buttons = h("div", { class: "turn-buttons" }, copyButton(() => turn.content),
      h("button", { type: "button", class: "small needs-rest", onclick: () => this.#change(turn, edit) }, "Edit"));
    this.element = h("article", { class: "turn user", "aria-label": "You" },
      h("div", { class: "bubble" }, this.text), this.buttons);
  }

  show() { /* it does not change */ }

  #change(turn, edit) {
    const rows = Math.min(12, turn.content.split("\n").length + 1);
    const input = h("textarea", { rows, "aria-label": "Your message" });
    input.value = turn.content;
    const submit = (event) => { event.preventDefault(); if (input.value.trim()) edit(input.value); };
    const form = h("form", { class: "edit", onsubmit: submit }, input, h("div", {},
      h("button", { class: "primary" }, "Send"), " ", h("button", { type: "button", onclick: leave }, "Cancel"),
      h("span", { class: "quiet" }, " What came after it is dropped.")));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); leave(); }
      if (sends(event)) { event.preventDefault(); form.requestSubmit(); }
    });
    const { element, buttons } = this;
    const before = [...element.children];
    element.replaceChildren(form);
    input.focus();
    function leave() { element.replaceChildren(...before); buttons.lastElementChild.focus(); }
  }
}

/** The result of a call, as it goes to the model. */
export class ToolTurn {
  constructor(turn) {
    this.element = h("article", { class: "turn tool", "aria-label": `Result of ${turn.name}` },
      h("p", { class: "quiet" }, "Result of ", h("code", {}, turn.name)), h("pre", { tabindex: 0 }, turn.content));
  }

  show() { /* it does not change */ }
}

/** again(): answer anew. results(): the calls' results are there. choose(): another choice is shown. */
export class AnswerTurn {
  constructor(answer, { again, results, choose }) {
    this.answer = answer;
    this.markdown = new Markdown();
    this.tokens = new Tokens();
    this.story = new Story();
    this.json = h("pre", { class: "json", tabindex: 0 });
    this.jsonTold = h("p", {});
    this.reasoning = h("p", { class: "plain" });
    this.thinking = h("summary", {});
    this.folded = h("details", { class: "reasoning", hidden: true }, this.thinking, this.reasoning);
    this.calls = h("form", { class: "calls", onsubmit: (event) => { event.preventDefault(); results(); } });
    this.cards = new Map(); // of calls
    this.send = h("button", { class: "primary" });
    this.note = h("p", { class: "note quiet", hidden: true });
    this.told = h("p", { class: "error", role: "alert", hidden: true });
    this.pager = pager(answer, choose);
    this.body = h("div", {});
    this.copy = copyButton(() => answer.choice.content);
    this.again = h("button", { type: "button", class: "small needs-rest", onclick: again });
    this.element = h("article", { class: "turn answer", "aria-label": "The model" }, this.pager.element,
      this.folded, this.body, this.calls, this.note, this.told, this.story.element,
      h("div", { class: "turn-buttons" }, this.copy, this.again));
  }

  /** pool, longest: see Story. asks: its calls are the last thing that was said, and wait for results. */
  show({ pool, longest, asks }) {
    const { answer, element } = this;
    element.setAttribute("aria-busy", String(!answer.done));
    this.pager.show();
    this.#showReasoning(answer.choice);
    this.#showBody(answer);
    this.#showCalls(answer.choice.calls, asks);
    const end = answer.stopped ? "stopped" : ENDS[answer.choice.finish];
    const notes = [answer.done && end, ...answer.warnings].filter((note) => note);
    setText(this.note, notes.join("; "));
    this.note.hidden = !notes.length;
    setText(this.told, answer.error?.message ?? "");
    this.told.hidden = !answer.error;
    this.story.show(answer, pool, longest);
    this.copy.hidden = !answer.choice.content;
    setText(this.again, answer.error ? "Try again" : "Regenerate");
  }

  #showReasoning({ reasoning, content, finish }) {
    this.folded.hidden = !reasoning;
    setText(this.thinking, content || finish ? "Reasoning" : "Reasoning …");
    setText(this.reasoning, reasoning);
  }

  #showBody({ choice, form, done }) {
    if (choice.tokens.length) {
      this.tokens.show(choice.tokens);
      setChildren(this.body, this.tokens.element);
    } else if (form !== "text" && choice.content) {
      const { text, valid, why } = done ? readJson(choice.content) : { text: choice.content, why: "" };
      setText(this.json, text);
      setText(this.jsonTold, !done ? "" : valid ? "✓ valid JSON" : `✗ not valid JSON: ${why}`);
      this.jsonTold.className = valid ? "valid" : "error";
      setChildren(this.body, this.json, this.jsonTold);
    } else {
      this.markdown.show(choice.content);
      setChildren(this.body, this.markdown.element);
    }
  }

  #showCalls(calls, asks) {
    const cards = calls.map((call) => {
      if (!this.cards.has(call)) this.cards.set(call, callCard(call));
      const card = this.cards.get(call);
      setText(card.querySelector("code"), call.name);
      setText(card.querySelector("pre"), readJson(call.arguments).text);
      card.querySelector("label").hidden = !asks;
      return card;
    });
    setText(this.send, calls.length > 1 ? "Send the results" : "Send the result");
    setChildren(this.calls, ...cards, ...(asks ? [this.send] : []));
  }
}

function callCard(call) {
  const result = h("textarea", { rows: 2, oninput: () => { call.result = result.value; } });
  return h("div", { class: "call" }, h("p", {}, "Calls ", h("code")), h("pre", { tabindex: 0 }),
    h("label", { hidden: true }, "Its result", result));
}

/** Which of several choices is shown. */
function pager(answer, choose) {
  const place = h("span", {});
  const count = answer.choices.length;
  const turn = (by) => () => { answer.chosen = (answer.chosen + by + count) % count; choose(); };
  const button = (sign, label, by) =>
    h("button", { type: "button", class: "small", "aria-label": label, onclick: turn(by) }, sign);
  const element = h("div", { class: "pager", hidden: count < 2 },
    button("‹", "The answer before", -1), place, button("›", "The next answer", 1));
  return { element, show: () => setText(place, `${answer.chosen + 1} of ${count}`) };
}

/** Whether a key sends what is in a field: Enter alone, and not while a word is being composed. */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

function copyButton(text) {
  const button = h("button", { type: "button", class: "small", onclick: async () => {
    setText(button, (await copied(text())) ? "Copied" : "Not copied");
    setTimeout(() => setText(button, "Copy"), 1500);
  } }, "Copy");
  return button;
}

/** Over plain HTTP browsers have no clipboard but that of the oldest way. */
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = h("textarea", { class: "unseen" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
