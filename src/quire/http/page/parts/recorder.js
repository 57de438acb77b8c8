// Keeps what the page is told, in a recording's form (docs/observing.md), packed as it comes.

import { MOST } from "../recording.js";

const LAST_LINE = 200; // characters that are kept free for it
const PATH = /^([/~.\\]|[A-Za-z]:[/\\])/;

export class Recorder {
  /** state: the latest one. full(): no more can be kept. */
  constructor(state, full) {
    this.begun = state.time;
    this.model = nameOf(state.model);
    this.seconds = 0;
    this.full = full;
    this.room = MOST.bytes - LAST_LINE;
    this.why = "stopped";
    const packing = new CompressionStream("gzip");
    this.writer = packing.writable.getWriter();
    this.packed = new Response(packing.readable).blob();
    this.#write({
      quire: "recording", format: 1, of: "server", model: this.model, begun: this.begun, version: state.version, text: false,
    });
  }

  state(state) { this.#add(state.time, { state: { ...state, model: nameOf(state.model) } }); }

  blocks(time, frame) { this.#add(time, { blocks: frame }); }

  decisions(time, decisions) { if (decisions.length) this.#add(time, { decisions }); }

  story(time, story) { this.#add(time, { story: { ...story, prompt: null, outputs: null, decisions: [] } }); }

  /** The file's content. */
  async end() {
    this.#write({ t: this.seconds, end: this.why });
    await this.writer.close();
    return this.packed;
  }

  #add(time, value) {
    const t = Math.max(this.seconds, Math.round(1000 * (time - this.begun)) / 1000);
    if (this.why !== "stopped") return;
    if (t > MOST.seconds) this.#stop("seconds");
    else if (this.#write({ t, ...value })) this.seconds = t;
    else this.#stop("bytes");
  }

  #stop(why) { this.why = why; this.full(); }

  #write(value) {
    const line = new TextEncoder().encode(`${JSON.stringify(value)}\n`);
    if (!("end" in value) && line.length > Math.min(this.room, MOST.line)) return false;
    this.room -= line.length;
    this.writer.write(line);
    return true;
  }
}

/** What a recording calls a model: of a path its last part, since it goes to others. */
function nameOf(model) {
  if (!PATH.test(model)) return model;
  return model.replace(/[/\\]+$/, "").split(/[/\\]/).at(-1) || "model";
}
