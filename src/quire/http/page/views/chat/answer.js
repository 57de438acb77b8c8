// An answer of the model, as it comes: what is said, what it cost, or why it ended early.

import { ask, events } from "../../api.js";

const LOST = "the connection to the server is lost"; // what browsers tell by a TypeError

/** n: choices. form: "text", or that of JSON. */
export class Answer {
  role = "assistant";
  chosen = 0; // of the choices, the one that is shown and gone on from
  row = null; // what the server's state has said of it last
  usage = null;
  metrics = null;
  warnings = [];
  error = null;
  begun = false; // something of it has come
  stopped = false;
  done = false;

  constructor(n, form = "text") {
    this.httpRequestId = `page-${randomName()}`;
    this.form = form;
    this.choices = Array.from({ length: n }, () =>
      ({ content: "", reasoning: "", calls: [], tokens: [], finish: null }));
  }

  /** As it was kept: what had not come by then does not come any more. */
  static recalled(kept) {
    return Object.assign(new Answer(0), kept, { stopped: kept.stopped || !kept.done, done: true });
  }

  /** What is kept of it: of an error what it says. */
  toJSON() { return { ...this, error: this.error && { message: this.error.message } }; }

  get choice() { return this.choices[this.chosen]; }

  /** What goes into the history. */
  message() {
    const { content, reasoning, calls } = this.choice;
    const message = { role: "assistant", content };
    if (reasoning) message.reasoning = reasoning;
    if (calls.length) {
      message.tool_calls = calls.map((call) => ({
        id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
      }));
    }
    return message;
  }

  /** A chunk of a chat's stream, or of a completion's. */
  take(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    this.usage = chunk.usage ?? this.usage;
    this.metrics = chunk.metrics?.[0] ?? this.metrics;
    this.warnings.push(...(chunk.warnings ?? []));
    for (const told of chunk.choices) {
      const choice = this.choices[told.index];
      const delta = told.delta ?? { content: told.text };
      choice.content += delta.content ?? "";
      choice.reasoning += delta.reasoning ?? delta.reasoning_content ?? "";
      choice.finish = told.finish_reason ?? choice.finish;
      for (const call of delta.tool_calls ?? []) takeCall(choice.calls, call);
      choice.tokens.push(...tokensOf(told.logprobs));
    }
  }

  /** Ask for it, and read it to its end. seen(): there is more of it. */
  async receive(path, body, signal, seen) {
    try {
      const response = await ask(path, { body, signal, headers: { "x-request-id": this.httpRequestId } });
      let ended = false;
      for await (const data of events(response)) {
        ended = data === "[DONE]";
        if (ended) break;
        this.take(JSON.parse(data));
        this.begun = true;
        seen();
      }
      if (!ended) throw new Error("the connection ended in the middle of the answer");
    } catch (error) {
      if (signal.aborted) this.stopped = true;
      else this.error = error instanceof TypeError ? new Error(`${LOST} (${error.message})`) : error;
    } finally { this.done = true; }
  }
}

function takeCall(calls, told) {
  const call = (calls[told.index] ??= { id: "", name: "", arguments: "", result: "" });
  call.id = told.id ?? call.id;
  call.name = told.function?.name || call.name;
  call.arguments += told.function?.arguments ?? "";
}

/** [{text, logprob, others}], of either API's form. */
function tokensOf(logprobs) {
  if (logprobs?.content) {
    return logprobs.content.map(({ token: text, logprob, top_logprobs: top }) => {
      const others = top.filter(({ token }) => token !== text);
      return { text, logprob, others: others.map((one) => [one.token, one.logprob]) };
    });
  }
  return (logprobs?.tokens ?? []).map((text, place) => ({
    text, logprob: logprobs.token_logprobs[place],
    others: Object.entries(logprobs.top_logprobs?.[place] ?? {}).filter(([token]) => token !== text),
  }));
}

/** crypto.randomUUID is there over HTTPS only. */
function randomName() {
  const bytes = [...crypto.getRandomValues(new Uint8Array(12))];
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
