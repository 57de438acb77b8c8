// Recordings on the page: making one, opening one, and the bar that moves in its time.

import { ask } from "../api.js";
import { h, setText } from "../dom.js";
import { counted, elapsed } from "../format.js";
import { Recording } from "../recording.js";
import { Replay, SPEEDS } from "../replay.js";
import { Recorder } from "./recorder.js";

const STEP = 1, LEAP = 10; // seconds
const MARK = 3, THUMB = 16; // pixels

export class Recordings {
  constructor(page, tools, bar) {
    this.page = page;
    this.bar = bar;
    this.replay = null;
    this.timer = null;
    this.file = h("input", { type: "file", accept: ".quire", hidden: true, onchange: () => this.#open(this.file.files[0]) });
    this.recordButton = h("button", { type: "button", onclick: () => this.#record() }, "Record");
    this.openButton = h("button", { type: "button", onclick: () => this.file.click() }, "Open…");
    this.openButton.title = "Open a recording: a .quire file. It can also be dropped on the page.";
    tools.append(this.recordButton, this.openButton, this.file);
    this.#makeBar();
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      const [file] = event.dataTransfer.files;
      if (file) this.#open(file);
    });
    addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#drawMarks()).observe(this.marks);
  }

  /** Open one that a server has. */
  async fetch(address) {
    try { await this.#open(await (await ask(address)).blob()); } catch (error) { this.#tell(error.message); }
  }

  // -- making one ------------------------------------------------------------------------------

  async #record() {
    const { live } = this.page;
    if (live.recorder) return this.#save(live.recorder);
    if (!live.state) return;
    const recorder = new Recorder(live.state, () => this.#save(recorder));
    live.record(recorder);
    const told = () => setText(this.recordButton, `Stop and save (${elapsed(recorder.seconds)})`);
    told();
    this.recordButton.classList.add("recording");
    this.timer = setInterval(told, 1000);
  }

  async #save(recorder) {
    clearInterval(this.timer);
    this.page.live.record(null);
    this.recordButton.classList.remove("recording");
    setText(this.recordButton, "Record");
    const content = await recorder.end();
    const when = new Date(1000 * recorder.begun).toISOString().slice(0, 19).replaceAll(":", "");
    const address = URL.createObjectURL(content);
    h("a", { href: address, download: `${recorder.model.split("/").at(-1)}-${when}.quire` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  }

  // -- looking at one --------------------------------------------------------------------------

  async #open(file) {
    if (!file) return;
    this.#tell("reading the recording…");
    try {
      const recording = await Recording.read(file, (seconds) => this.#tell(`reading the recording… ${elapsed(seconds)}`));
      this.#show(recording);
    } catch (error) {
      this.#tell(`The file cannot be shown: ${error.message}`, true);
    }
    this.file.value = "";
  }

  #show(recording) {
    const { page } = this;
    this.replay = new Replay(page, recording);
    this.replay.moved = () => this.#moved();
    this.slider.max = recording.seconds;
    this.bar.classList.remove("told");
    this.bar.hidden = false;
    this.recordButton.hidden = true;
    this.backButton.hidden = !page.live.state;
    const kinds = ["preemption", "refusal"].map((kind) => [kind, recording.events.filter((one) => one.kind === kind).length]);
    const events = kinds.filter(([, count]) => count).map(([kind, count]) => counted(count, kind)).join(", ");
    setText(this.told, [recording.cut ? "cut off before its end" : "", events].filter(Boolean).join(" · "));
    for (const button of [this.before, this.after]) button.disabled = !recording.events.length;
    page.look(this.replay);
    this.#drawMarks();
    this.playButton.focus();
  }

  #back() {
    this.replay = null;
    this.bar.hidden = true;
    this.recordButton.hidden = false;
    this.page.look(this.page.live);
  }

  /** Something in words, in the bar's place if there is no recording. */
  #tell(text, isError = false) {
    this.bar.hidden = false;
    this.bar.classList.toggle("told", this.replay === null);
    this.told.classList.toggle("bad", isError);
    setText(this.told, text);
  }

  // -- the bar ---------------------------------------------------------------------------------

  #makeBar() {
    const button = (text, label, onclick) => h("button", { type: "button", onclick, "aria-label": label, title: label }, text);
    this.playButton = button("▶", "Play", () => this.replay.toggle());
    this.before = button("◂ event", "To the preemption or refusal before", () => this.replay.jump(-1));
    this.after = button("event ▸", "To the next preemption or refusal", () => this.replay.jump(1));
    this.slider = h("input", {
      type: "range", min: 0, step: "any", "aria-label": "Time", oninput: () => this.replay.seek(Number(this.slider.value)),
    });
    this.marks = h("canvas", { "aria-hidden": "true" });
    this.time = h("output", {});
    this.speed = h("select", { "aria-label": "Speed", onchange: () => { this.replay.speed = Number(this.speed.value); } },
      SPEEDS.map((speed) => h("option", { value: speed }, `${speed}×`)));
    this.backButton = h("button", { type: "button", onclick: () => this.#back() }, "Back to live");
    this.told = h("p", { role: "status" });
    this.bar.append(this.playButton, h("div", { class: "track" }, this.marks, this.slider), this.time,
      h("div", { class: "steps" }, this.before, this.after, this.speed, this.backButton), this.told);
  }

  #moved() {
    const { replay } = this;
    if (replay === null) return;
    const { recording } = replay, { begun, of } = recording.header;
    this.slider.value = replay.at;
    const when = begun > 0 && of !== "simulation" ? ` · ${new Date(1000 * (begun + replay.at)).toLocaleTimeString("en-GB")}` : "";
    const text = `${elapsed(replay.at)} / ${elapsed(recording.seconds)}${when}`;
    setText(this.time, text);
    this.slider.setAttribute("aria-valuetext", text);
    const label = replay.playing ? "Pause" : "Play";
    setText(this.playButton, replay.playing ? "❚❚" : "▶");
    this.playButton.setAttribute("aria-label", label);
    this.playButton.title = `${label} (space)`;
  }

  /** A tick for each event: preemptions hang from the top, refusals stand on the ground. */
  #drawMarks() {
    const { marks, replay } = this, { width, height } = marks.getBoundingClientRect();
    if (replay === null || !width) return;
    const scale = devicePixelRatio, colours = getComputedStyle(marks);
    [marks.width, marks.height] = [width * scale, height * scale];
    const drawing = marks.getContext("2d");
    drawing.scale(scale, scale);
    for (const { t, kind } of replay.recording.events) {
      const isRefusal = kind === "refusal";
      drawing.fillStyle = colours.getPropertyValue(isRefusal ? "--bad" : "--warn");
      const x = (THUMB - MARK) / 2 + t / replay.recording.seconds * (width - THUMB);
      drawing.fillRect(x, isRefusal ? height / 2 : 0, MARK, height / 2);
    }
  }

  #key(event) {
    const { replay } = this, { target } = event;
    if (replay === null || event.altKey || event.ctrlKey || event.metaKey) return;
    const isSlider = target === this.slider;
    const moves = { ArrowLeft: -STEP, ArrowDown: -STEP, ArrowRight: STEP, ArrowUp: STEP, PageDown: -LEAP, PageUp: LEAP };
    if (isSlider && event.key in moves) replay.seek(replay.at + moves[event.key]);
    else if (event.key === " " && (isSlider || target === document.body || target.id === "view")) replay.toggle();
    else return;
    event.preventDefault();
  }
}
