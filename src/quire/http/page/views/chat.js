// The view "chat": a conversation with the model that is served, kept by this tab and nowhere else.

import { NeedsLogin } from "../api.js";
import { h, setChildren, setText } from "../dom.js";
import { Answer } from "./chat/answer.js";
import { Settings } from "./chat/settings.js";
import { standing } from "./chat/story.js";
import { AnswerTurn, ToolTurn, UserTurn, sends } from "./chat/turns.js";

export const chat = { id: "chat", title: "Try it", make: (page) => new Chat(page) };

const WELCOME = "Ask the model something. Each answer tells what it took of memory and time.";
const GOES_ON = "This model has no chat template: it goes on with your text.";
const KEYS = " Enter sends, Shift+Enter is a new line. What is said outlives a reload; it is gone when this tab is "
  + "closed. To keep chats, or to add files, connect a chat client to this server's /v1.";
const TOO_LONG = "This conversation is too long to outlive a reload.";
const NOBODY = "A recording has no model to talk with.";
const NEAR = 80; // pixels from its end, from which the log follows what is written

class Chat {
  #turns = []; // {role: "user" | "tool", content, …} and Answers
  #views = new Map(); // turn → how it is shown
  #stopping = null; // while an answer comes
  #loaded = null; // the model that the settings are of
  #tooLong = false; // to be kept
  #kept = `quire chat at ${location.pathname}`; // where a proxy has several servers, each has its own

  constructor(page) {
    this.page = page;
    this.settings = new Settings();
    this.empty = h("p", { class: "empty quiet" });
    this.log = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: 0 });
    this.input = h("textarea", { rows: 2, "aria-label": "Your message", enterkeyhint: "send", onkeydown: (event) => {
      if (sends(event)) { event.preventDefault(); this.#send(); }
    } });
    this.button = h("button", { class: "primary" }, "Send");
    this.standing = h("span", {});
    this.link = h("button", { type: "button", class: "link", hidden: true, onclick: () => this.#showBlocks() },
      "Show its blocks");
    this.announced = h("p", { class: "unseen", role: "status" });
    this.clear = h("button", { type: "button", class: "small", onclick: () => this.#clear() }, "Clear");
    const composer = h("form", { class: "composer", onsubmit: (event) => {
      event.preventDefault();
      if (this.#stopping) this.#stopping.abort(); else this.#send();
    } }, this.input, this.button);
    const escape = (event) => { if (event.key === "Escape") this.#stopping?.abort(); };
    this.element = h("section", { class: "chat", onkeydown: escape },
      this.settings.element,
      h("div", { class: "panel talk" }, h("h2", { class: "unseen" }, "Try it"), this.log,
        h("div", { class: "standing" }, h("p", {}, this.standing, this.link), this.clear), composer, this.announced));
    this.#recall();
    addEventListener("beforeunload", () => this.#stopping?.abort()); // its connection is about to be lost
    addEventListener("pagehide", () => this.#keep());
    this.#draw();
  }

  shown() {
    this.#loaded = null; // adapters come and go
    this.state();
    this.#draw();
    this.log.scrollTop = this.log.scrollHeight;
  }

  state() {
    const { source } = this.page;
    if (source.live && source.state && this.#loaded !== source.state.model) this.#load(source.state.model);
    const answer = this.#turns.at(-1);
    if (this.#stopping && source.live && source.state) {
      const { running, waiting, preempted } = source.state.requests;
      const row = [...running, ...waiting, ...preempted].find((one) => one.http_request_id === answer.httpRequestId);
      answer.row = row ?? answer.row;
    }
    this.#drawStanding();
  }

  async #load(model) {
    this.#loaded = model;
    try {
      await this.settings.load();
    } catch (error) {
      if (!(error instanceof NeedsLogin)) return; // a proxy may lack what the fields' defaults are told by
      this.#loaded = null;
      this.page.lost(error);
    }
    this.#draw();
  }

  // -- what is said ----------------------------------------------------------------------------

  #send() {
    const content = this.input.value;
    if (!content.trim() || this.#stopping || !this.page.source.live) return;
    if (this.#ask([...this.#turns, { role: "user", content }])) this.input.value = "";
  }

  /** Have these turns answered; whether that could be asked. */
  #ask(turns) {
    let body;
    try {
      body = this.settings.body(turns.filter(isPart).map(messageOf));
    } catch (error) {
      this.settings.blame(error);
      return false;
    }
    this.#answer(new Answer(this.settings.n, this.settings.form), turns, body);
    return true;
  }

  async #answer(answer, turns, body) {
    this.#turns = [...turns, answer];
    this.#stopping = new AbortController();
    setText(this.announced, "");
    this.#keep();
    this.#draw(true);
    let drawing = 0;
    await answer.receive(this.settings.path, body, this.#stopping.signal, () => {
      drawing ||= requestAnimationFrame(() => { drawing = 0; this.#drawAnswer(answer); this.#drawStanding(); });
    });
    cancelAnimationFrame(drawing);
    if (this.#turns.at(-1) !== answer) return; // it has been cleared
    this.#stopping = null;
    this.#keep();
    this.#draw();
    if (answer.error instanceof NeedsLogin) this.page.lost(answer.error);
    else if (answer.error) this.settings.blame(answer.error);
    setText(this.announced, announcement(answer));
  }

  #answerCalls(answer) {
    const results = answer.choice.calls.map(({ id, name, result }) =>
      ({ role: "tool", name, tool_call_id: id, content: result }));
    this.#ask([...this.#turns, ...results]);
  }

  #before(turn) { return this.#turns.slice(0, this.#turns.indexOf(turn)); }

  #clear() {
    this.#stopping?.abort();
    this.#stopping = null;
    this.#turns = [];
    this.#keep();
    this.#draw();
    this.input.focus();
  }

  /** For this tab, if it is loaded anew. */
  #keep() {
    const kept = { turns: this.#turns, fields: this.settings.values, draft: this.input.value };
    this.#tooLong = false;
    try {
      sessionStorage.removeItem(this.#kept);
      if (this.#turns.length) sessionStorage.setItem(this.#kept, JSON.stringify(kept));
    } catch { this.#tooLong = true; }
  }

  #recall() {
    try {
      const { turns, fields, draft } = JSON.parse(sessionStorage.getItem(this.#kept));
      this.#turns = turns.map((turn) => (turn.role === "assistant" ? Answer.recalled(turn) : turn));
      this.settings.values = fields;
      this.input.value = draft;
    } catch { /* nothing is kept, or another version of this page has kept it */ }
  }

  #showBlocks() {
    this.page.select(this.#turns.at(-1).row.number);
    location.hash = "#memory";
  }

  // -- what is seen ----------------------------------------------------------------------------

  #viewOf(turn) {
    if (turn.role === "tool") return new ToolTurn(turn);
    if (turn.role === "user") {
      return new UserTurn(turn, { edit: (content) => this.#ask([...this.#before(turn), { role: "user", content }]) });
    }
    return new AnswerTurn(turn, {
      again: () => this.#ask(this.#before(turn)),
      results: () => this.#answerCalls(turn),
      choose: () => this.#drawAnswer(turn),
    });
  }

  #draw(follow = false) {
    this.#views = new Map(this.#turns.map((turn) => [turn, this.#views.get(turn) ?? this.#viewOf(turn)]));
    setChildren(this.log, ...(this.#views.size ? [...this.#views.values()].map((view) => view.element) : [this.empty]));
    for (const turn of this.#turns) this.#drawAnswer(turn, follow);
    const { live } = this.page.source;
    setText(this.empty, live ? (this.settings.templated ? WELCOME : GOES_ON) + KEYS : NOBODY);
    setText(this.button, this.#stopping ? "Stop" : "Send");
    this.button.className = this.#stopping ? "danger" : "primary";
    for (const control of [this.input, this.button]) control.disabled = !live;
    this.settings.element.hidden = !live;
    this.input.placeholder = live ? "Your message" : NOBODY;
    for (const button of this.log.querySelectorAll(".needs-rest")) button.disabled = this.#stopping !== null || !live;
    this.clear.hidden = !this.#turns.length;
    this.#drawStanding();
  }

  #drawAnswer(turn, follow = false) {
    const { log } = this;
    const near = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR;
    const asks = turn === this.#turns.at(-1) && turn.done && turn.choice.calls.length > 0;
    this.#views.get(turn)?.show({ pool: this.page.source.state?.pool, longest: this.settings.longest, asks });
    if (near || follow) log.scrollTop = log.scrollHeight;
  }

  #drawStanding() {
    const answer = this.#stopping && this.#turns.at(-1);
    setText(this.standing, answer ? standing(answer) : this.#tooLong ? TOO_LONG : "");
    this.link.hidden = !answer?.row?.blocks;
  }
}

/** An answer that was refused is not part of the conversation. */
const isPart = (turn) => turn.role !== "assistant" || turn.choice.content !== "" || turn.choice.calls.length > 0;

function messageOf(turn) {
  if (turn.role === "assistant") return turn.message();
  const { role, content, tool_call_id } = turn; // a tool's name is for the reader
  return { role, content, tool_call_id };
}

function announcement({ error, stopped, choice }) {
  if (error) return ""; // it is an alert
  if (choice.calls.length) return `The model calls ${choice.calls.map((call) => call.name).join(", ")}.`;
  return `${stopped ? "Stopped" : "Answer complete"}: ${choice.content}`;
}
