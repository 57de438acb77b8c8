// What is asked of the model beside the conversation, and what the server has to say of it.

import { ask, getJson } from "../../api.js";
import { h } from "../../dom.js";
import { Fields, SAMPLING } from "./fields.js";

const OTHER_NAMES = {
  max_completion_tokens: "max_tokens", top_logprobs: "logprobs", thinking_budget: "reasoning_effort",
};
const LEFT_OUT = { n: 1, max_tokens: "no limit", seed: "random" }; // what those do that the server has no number for
const FEW = 256; // tokens of a completion, which by itself has 16
const LIKELIEST = 3; // tokens that are told beside the one that was chosen

/** A field is wrong before the server was asked. */
class Unfit extends Error {
  constructor(message, field) { super(message); this.field = field; }
}

export class Settings {
  templated = true; // the model has a chat template
  longest = null; // tokens of prompt and answer
  #fields = new Fields();

  get element() { return this.#fields.element; }
  get values() { return this.#fields.values; }
  set values(values) { this.#fields.values = values; }
  get path() { return this.templated ? "v1/chat/completions" : "v1/completions"; }
  get form() { return this.#fields.value("response_format"); }
  get n() { return Math.max(1, Math.min(256, Number.parseInt(this.#fields.value("n"), 10) || 1)); }

  /** Ask the server what it has. */
  async load() {
    const fields = this.#fields;
    const { data } = await getJson("v1/models");
    const chosen = fields.value("model");
    fields.input("model").replaceChildren(...data.map(({ id, parent }) =>
      h("option", { value: id, selected: id === chosen }, parent ? `${id}, adapter of ${parent}` : id)));
    this.longest = data[0].max_model_len;
    const props = await getJson("props");
    const { capabilities } = await (await ask("api/show", { body: { model: data[0].id } })).json();
    this.templated = props.chat_template !== "";
    this.#tellDefaults(props.default_generation_settings.params);
    fields.allow(this.templated, "system");
    fields.allow(capabilities.includes("thinking"), "reasoning_effort");
    fields.allow(capabilities.includes("tools"), "tools", "tool_choice");
    fields.noTools.hidden = capabilities.includes("tools");
  }

  #tellDefaults(params) {
    const known = { ...params, repetition_penalty: params.repeat_penalty, ...LEFT_OUT };
    for (const [name] of SAMPLING) this.#fields.input(name).placeholder = known[name];
    if (!this.templated && !this.#fields.value("max_tokens")) this.#fields.input("max_tokens").value = FEW;
  }

  /** The body of a request; an error with its field where that holds no JSON. history: messages. */
  body(history) {
    this.#fields.clear();
    const body = {
      model: this.#fields.value("model") || undefined,
      stream: true, stream_options: { include_usage: true }, include_metrics: true,
      ...this.#sampling(), response_format: this.#format(),
    };
    const logprobs = this.#fields.input("logprobs").checked;
    if (!this.templated) {
      const prompt = history.map((message) => message.content).join("\n");
      return { ...body, prompt, logprobs: logprobs ? LIKELIEST : undefined };
    }
    return { ...body, ...(logprobs ? { logprobs, top_logprobs: LIKELIEST } : {}), ...this.#chat(history) };
  }

  /** Tell an error at the field that it is about, if there is one here. */
  blame(error) {
    const head = (error.field ?? "").split(/[.[]/)[0];
    const ofSchema = head === "response_format" && this.form === "json_schema";
    const name = ofSchema ? "schema" : OTHER_NAMES[head] ?? head;
    if (!this.#fields.has(name)) return;
    this.#fields.tell(name, error.message);
    this.#fields.show(name);
  }

  #sampling() {
    const given = SAMPLING.map(([name]) => name).filter((name) => this.#fields.given(name));
    const params = Object.fromEntries(given.map((name) => [name, number(this.#fields.value(name))]));
    const stop = this.#fields.input("stop").value.split("\n").filter((line) => line);
    if (stop.length) params.stop = stop.map((line) => line.replaceAll("\\n", "\n"));
    return params;
  }

  #format() {
    if (this.form === "json_object") return { type: "json_object" };
    if (this.form !== "json_schema") return undefined;
    return { type: "json_schema", json_schema: { name: "answer", schema: this.#json("schema") } };
  }

  #chat(history) {
    const fields = this.#fields;
    const system = fields.given("system") ? [{ role: "system", content: fields.value("system") }] : [];
    const chat = { messages: [...system, ...history] };
    if (fields.given("reasoning_effort")) chat.reasoning_effort = fields.value("reasoning_effort");
    if (fields.given("tools")) {
      chat.tools = this.#json("tools");
      chat.tool_choice = fields.value("tool_choice");
    }
    return chat;
  }

  #json(name) {
    try {
      return JSON.parse(this.#fields.value(name));
    } catch (error) { throw new Unfit(`this is not JSON: ${error.message}`, name); }
  }
}

/** What is allowed is the server's to say: what is no number, or too long for one, stays a text. */
function number(text) {
  const value = Number(text);
  const exact = Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
  return exact ? value : text;
}
