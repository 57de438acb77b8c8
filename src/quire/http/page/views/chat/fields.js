// The form beside the conversation: fields as the API calls them. What is empty is not sent.

import { h, setText } from "../../dom.js";

export const SAMPLING = [ // name, what it does
  ["temperature", "0 is greedy, larger is more random"],
  ["top_p", "keep the likeliest tokens that reach this together"],
  ["top_k", "keep this many likeliest tokens; 0: all"],
  ["min_p", "drop tokens less likely than this share of the likeliest"],
  ["max_tokens", "most tokens to write"],
  ["seed", "makes the answer repeatable"],
  ["repetition_penalty", "divides the logits of tokens that were there before; 1 is none"],
  ["n", "answers at once; they share the prompt's blocks"],
];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const FORMS = [["text", "text"], ["json_object", "any JSON object"], ["json_schema", "JSON by a schema"]];
const CHOICES = ["auto", "required", "none"].map((value) => [value, value]);
const SCHEMA = '{"type": "object", …}';
const TOOLS = `[{"type": "function", "function": {"name": "…",
  "description": "…", "parameters": {"type": "object", …}}}]`;
const NO_TOOLS = "How this model calls tools is not known from its chat template (--tool-call-parser).";

export class Fields {
  #fields = new Map(); // name → {input, told}

  constructor() {
    this.noTools = h("p", { class: "quiet", hidden: true }, NO_TOOLS);
    const open = matchMedia("(min-width: 60rem)").matches;
    const form = h("form", { novalidate: true, onsubmit: (event) => event.preventDefault() },
      this.#field("model", h("select")),
      this.#field("system", h("textarea", { rows: 2 }), "system prompt"),
      h("fieldset", { class: "pairs" }, h("legend", {}, "Sampling"), SAMPLING.map(([name, help]) =>
        this.#field(name, h("input", { inputmode: "decimal", title: help, autocomplete: "off" })))),
      this.#field("stop", h("textarea", { rows: 1, title: "\\n is a line's end" }), "stop: texts, one a line"),
      this.#field("reasoning_effort", select([["", "the model's own"], ...EFFORTS.map((value) => [value, value])])),
      this.#field("logprobs", h("input", { type: "checkbox" }), "underline tokens by how unsure they were"),
      h("details", {}, h("summary", {}, "Form of the answer"), this.#field("response_format", select(FORMS)),
        this.#field("schema", codeInput(SCHEMA), "JSON schema")),
      h("details", {}, h("summary", {}, "Tools"), this.noTools,
        this.#field("tools", codeInput(TOOLS), "tools, as JSON"), this.#field("tool_choice", select(CHOICES))));
    this.element = h("details", { class: "chat-settings", open }, h("summary", {}, "Model and parameters"), form);
    this.element.addEventListener("input", (event) => { this.tell(event.target.name, ""); this.#suit(); });
    this.#suit();
  }

  #field(name, input, label = name) {
    const id = `chat-${name}`;
    const told = h("p", { class: "error", id: `${id}-told`, hidden: true });
    input.id = id;
    input.name = name;
    this.#fields.set(name, { input, told });
    const kind = isTick(input) ? "field ticked" : "field";
    return h("div", { class: kind }, h("label", { for: id }, label), input, told);
  }

  /** What is in all fields, by name. */
  get values() {
    return Object.fromEntries([...this.#fields].map(([name, { input }]) => [name, isTick(input) ? input.checked : input.value]));
  }

  set values(values) {
    for (const [name, { input }] of this.#fields) {
      if (!Object.hasOwn(values, name)) continue;
      if (name === "model") input.replaceChildren(h("option", {}, values.model)); // until the server names all
      if (isTick(input)) input.checked = values[name]; else input.value = values[name];
    }
    this.#suit();
  }

  has(name) { return this.#fields.has(name); }
  input(name) { return this.#fields.get(name).input; }
  value(name) { return this.input(name).value.trim(); }

  /** Whether there is something in a field that may be used. */
  given(name) { return !this.input(name).disabled && this.value(name) !== ""; }

  allow(allowed, ...names) {
    for (const name of names) {
      this.input(name).disabled = !allowed;
      this.input(name).parentElement.hidden = !allowed;
    }
  }

  /** Tell what is wrong with a field; "": nothing. */
  tell(name, message) {
    if (!this.has(name)) return;
    const { input, told } = this.#fields.get(name);
    setText(told, message);
    told.hidden = !message;
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-describedby");
    if (!message) return;
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", told.id);
  }

  clear() { for (const name of this.#fields.keys()) this.tell(name, ""); }

  /** Bring a field into sight, whatever is folded around it. */
  show(name) {
    const input = this.input(name);
    for (let one = input.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
    input.focus();
  }

  /** A schema is asked for only where it counts. */
  #suit() { this.input("schema").parentElement.hidden = this.value("response_format") !== "json_schema"; }
}

const isTick = (input) => input.type === "checkbox";
const select = (pairs) => h("select", {}, pairs.map(([value, text]) => h("option", { value }, text)));
const codeInput = (placeholder) => h("textarea", { rows: 5, spellcheck: "false", class: "mono", placeholder });
