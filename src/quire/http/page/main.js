// The page's frame: its views, which of them is shown, what it is told of, and the login.

import { NeedsLogin, Refused, logIn } from "./api.js";
import { h, setText } from "./dom.js";
import { count, elapsed } from "./format.js";
import { pressureOf } from "./history.js";
import { Live } from "./live.js";
import { Recordings } from "./parts/recordings.js";
import { chat } from "./views/chat.js";
import { memory } from "./views/memory.js";
import { more } from "./views/more.js";
import { requests } from "./views/requests.js";
import { time } from "./views/time.js";

/**
 * A view is {id, title, make}. `make(page)` gives {element, state?, blocks?, shown?}:
 * state(): the source has a new one; blocks(changed): blocks have changed; both only while shown.
 * shown(): it has just come into sight, and must draw all.
 *
 * page.source: what is looked at: live.js's server, or replay.js's recording, which has no `live`;
 * it may change, and then `shown` is called. page.select(number): show whose blocks these are, everywhere.
 */
const VIEWS = [memory, requests, time, chat, more];
const OLD = 3; // seconds
const byId = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.selected = null; // number of a request or session
    this.live = new Live(this);
    this.source = this.live;
    this.recordings = new Recordings(this, byId("tools"), byId("replay"));
    this.views = new Map(VIEWS.map((view) => [view.id, { ...view, made: null }]));
    byId("tabs").append(...VIEWS.map((view) => h("a", { href: `#${view.id}` }, view.title)));
    addEventListener("hashchange", () => this.show());
    byId("login").querySelector("form").addEventListener("submit", (event) => this.#logIn(event));
    byId("login").addEventListener("cancel", (event) => event.preventDefault());
    document.addEventListener("visibilitychange", () => this.#attend());
    setInterval(() => this.#tellStatus(), 1000); // it grows old
    this.show();
    const recording = document.querySelector("meta[name=quire-recording]").content;
    if (recording) this.recordings.fetch(recording);
    else this.source.start();
  }

  /** Look at something else: a recording, or the server again. */
  look(source) {
    this.source.stop();
    this.selected = null;
    this.source = source;
    this.source.watch(this.shown.blocks !== undefined);
    this.source.start();
    this.shown.shown?.();
  }

  /** Nothing is asked for while nobody sees it, unless it is recorded. */
  #attend() {
    if (document.hidden && !this.live.recorder) this.source.stop();
    else if (!document.hidden) this.source.start();
  }

  show() {
    const id = location.hash.slice(1);
    const view = this.views.get(id) ?? this.views.get(VIEWS[0].id);
    view.made ??= view.make(this);
    this.shown = view.made;
    byId("view").replaceChildren(view.made.element);
    for (const tab of byId("tabs").children) {
      if (tab.hash === `#${view.id}`) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = `${view.title} · Quire`;
    this.source.watch(view.made.blocks !== undefined);
    this.shown.shown?.();
  }

  select(number) {
    this.selected = number;
    this.shown.shown?.();
  }

  // -- what a source tells ---------------------------------------------------------------------

  state() {
    const { state } = this.source;
    setText(byId("model"), state.model);
    this.#tellLoss("");
    this.#tellStatus();
    this.shown.state?.();
  }

  blocks(changed) {
    this.shown.blocks?.(changed);
    this.#tellStatus();
  }

  /** Of the moment that is shown: beside blocks that of their frame. */
  #tellStatus() {
    const { source } = this, ofBlocks = this.shown.blocks !== undefined;
    if (!source.state) return;
    const { step, num_running, num_preempted, num_waiting } = ofBlocks ? source.pressure : pressureOf(source.state);
    const age = source.age(ofBlocks), isOld = age > OLD;
    setText(byId("status"), `${source.live ? "" : "recorded: "}step ${count(step)} · ${count(num_running)} running, `
      + `${num_preempted ? `${count(num_preempted)} preempted, ` : ""}${count(num_waiting)} waiting`
      + (isOld ? ` · ${elapsed(age)} old` : ""));
    byId("status").classList.toggle("old", isOld);
  }

  lost(error) {
    if (error instanceof NeedsLogin) {
      if (!byId("login").open) byId("login").showModal();
      return;
    }
    const what = error instanceof Refused ? "The server answers with an error" : "No answer from the server";
    this.#tellLoss(`${what}; trying again (${error.message}). This is what it said last.`);
  }

  /** Steps are not announced, or a screen reader would say nothing else; that there are none is. */
  #tellLoss(text) {
    setText(byId("lost"), text);
    byId("view").classList.toggle("lost", text !== "");
  }

  async #logIn(event) {
    event.preventDefault();
    const form = event.target;
    const told = form.querySelector(".error");
    try {
      await logIn(form.key.value);
      form.reset();
      setText(told, "");
      byId("login").close();
      this.source.start();
    } catch (error) {
      setText(told, error instanceof NeedsLogin ? "The server does not know this key." : error.message);
    }
  }
}

new Page();
