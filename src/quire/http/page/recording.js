// A recording, read without trust: from somebody, maybe damaged, maybe made to do harm.
// docs/observing.md has its form. What is wrong is told with the number of its line.

import { BlockMap, fromBase64 } from "./blocks.js";
import { History } from "./history.js";

const MEGABYTE = 2 ** 20;
export const MOST = { seconds: 3600, packed: 64 * MEGABYTE, bytes: 256 * MEGABYTE, line: 32 * MEGABYTE };
const BLOCK_BYTES = 9;
const HEADER = 24;
/** What marks a moment on the slider. */
export const EVENTS = { swap: "preemption", recompute: "preemption", refuse: "refusal", expire: "refusal" };

/** What views rely on, by example. */
const ROW = { id: "", number: 0, status: "", seconds: 0, prompt_tokens: 0, output_tokens: 0, blocks: 0 };
const COUNTS = { used: 0, reserved: 0, internal: 0, external: 0, cached: 0, free: 0 };
const STATE = {
  model: "", version: "", time: 0, step: 0, slot_seconds: COUNTS, decisions: {}, prefix_cache: {}, rates: {},
  latencies: { first_token: {}, between_tokens: {} },
  pool: { block_size: 0, num_blocks: 0, slots: COUNTS, kv_groups: [{ first_block: 0, num_blocks: 0 }], contiguous: {} },
  requests: { num_running: 0, num_waiting: 0, num_preempted: 0, running: [ROW], waiting: [ROW], preempted: [ROW] },
};
const DECISION = { number: 0, time: 0, what: "", request_id: "", why: "" };
const TABLE = { branch: 0, tokens: 0, on_host: false, kv_groups: [{ blocks: [0], sink_blocks: 0, dropped: 0 }] };
const STORY = { request: ROW, tables: [TABLE], decisions: [DECISION] };

/** Whether a value has at least what the example has. */
function fits(value, example) {
  if (Array.isArray(example)) {
    return Array.isArray(value) && value.every((one) => example.length === 0 || fits(one, example[0]));
  }
  if (typeof value !== typeof example || value === null || Array.isArray(value)) return false;
  return typeof example !== "object" || Object.keys(example).every((key) => fits(value[key], example[key]));
}

/** Lines of a gzip file, and in the end whether it was cut off. */
async function* linesOf(file) {
  const text = file.stream().pipeThrough(new DecompressionStream("gzip")).pipeThrough(new TextDecoderStream());
  const reader = text.getReader();
  let pieces = [], length = 0, total = 0;
  for (;;) {
    let read;
    try { read = await reader.read(); } catch { return; } // damaged, or cut off
    if (read.done) return;
    const lines = read.value.split("\n");
    total += read.value.length;
    length = (lines.length === 1 ? length : 0) + lines.at(-1).length;
    if (total > MOST.bytes || length > MOST.line) {
      await reader.cancel();
      throw new Error("it holds more than a recording may");
    }
    pieces.push(lines.shift());
    while (lines.length) {
      yield pieces.join("");
      pieces = [lines.shift()];
    }
  }
}

/** The last place whose `key` is not above this; -1: none. */
export function placeAt(sorted, most, key = "t") {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle][key] <= most) low = middle + 1; else high = middle;
  }
  return low - 1;
}

export class Recording {
  constructor() {
    this.header = null;
    this.seconds = 0;
    this.cut = true; // until its end is read
    this.states = []; // {t, text, point, first}: first: the place where this life of the server began
    this.decisions = []; // {t, first, …}
    this.frames = []; // {t, frame}
    this.stories = new Map(); // by request: [{t, story}]
    this.events = []; // {t, kind}
    this.keyframes = []; // {place, columns}: blocks after the frame of that place
    this.blocks = new BlockMap(); // as of the latest frame read
  }

  /** Of a File or Blob. `progress`: called now and then with the seconds read. */
  static async read(file, progress = () => {}) {
    if (file.size > MOST.packed) throw new Error("the file is larger than a recording may be");
    const recording = new Recording();
    let number = 0;
    for await (const line of linesOf(file)) {
      number += 1;
      try { recording.#take(line); } catch (error) { throw new Error(`line ${number}: ${error.message}`); }
      if (!recording.cut) break;
      if (number % 500 === 0) progress(recording.seconds);
    }
    if (!recording.header) throw new Error("this is not a recording");
    if (!recording.states.length) throw new Error("the recording is empty");
    recording.events.sort((one, other) => one.t - other.t);
    return recording;
  }

  #take(line) {
    let value;
    try { value = JSON.parse(line); } catch { throw new Error("it is not JSON"); }
    if (this.header === null) {
      const fit = fits(value, { quire: "", format: 0, model: "", begun: 0 });
      if (!fit || value.quire !== "recording") throw new Error("this is not a recording");
      if (value.format !== 1) throw new Error(`this page reads recordings of format 1, not ${value.format}`);
      this.header = value;
      return;
    }
    if (!fits(value, { t: 0 }) || !(value.t >= this.seconds) || value.t > MOST.seconds) {
      throw new Error("its time must be one, and not before that of another");
    }
    this.seconds = value.t;
    if (fits(value.state, STATE)) this.#takeState(value.t, value.state, line);
    else if (fits(value.decisions, [DECISION])) this.#takeDecisions(value.t, value.decisions);
    else if (typeof value.blocks === "string") this.#takeFrame(value.t, value.blocks);
    else if (fits(value.story, STORY)) this.#takeStory(value.t, value.story);
    else if (typeof value.end === "string") this.cut = false;
    else throw new Error("it holds nothing that a recording has");
  }

  #takeState(t, state, line) {
    const before = this.states.at(-1), history = new History();
    history.add(state);
    const same = before && state.step >= before.point.step;
    this.states.push({ t, text: line, point: history.latest, first: same ? before.first : this.states.length });
  }

  #takeDecisions(t, decisions) {
    for (const told of decisions) {
      const before = this.decisions.at(-1);
      const same = before && told.number > before.told.number;
      this.decisions.push({ t, told, first: same ? before.first : this.decisions.length });
      const kind = Object.hasOwn(EVENTS, told.what) && EVENTS[told.what], at = told.time - this.header.begun;
      if (kind && at >= 0) this.events.push({ t: Math.min(at, t), kind });
    }
  }

  #takeFrame(t, text) {
    const place = this.frames.length;
    const frame = checkedFrame(text, this.blocks.length, place === 0);
    this.blocks.apply(frame);
    this.frames.push({ t, frame });
    const apart = Math.max(100, this.blocks.length * BLOCK_BYTES / 1024); // frames: 64 MiB at most for all
    if (frame[3] === 0) this.keyframes.push({ place, columns: null });
    else if (place - this.keyframes.at(-1).place >= apart) {
      this.keyframes.push({ place, columns: columnsOf(this.blocks) });
    }
  }

  #takeStory(t, story) {
    const id = story.request.id;
    if (!this.stories.has(id)) this.stories.set(id, []);
    this.stories.get(id).push({ t, story });
  }

  // -- a moment --------------------------------------------------------------------------------

  /** Bring blocks from one frame's place to another's. The blocks that have changed; null: any. */
  move(blocks, from, to) {
    if (to < 0) { blocks.resize(0); return null; }
    const key = this.keyframes[placeAt(this.keyframes, to, "place")];
    let changed = [];
    if (from > to || from < key.place) {
      if (key.columns === null) blocks.apply(this.frames[key.place].frame);
      else Object.assign(blocks, copied(key.columns));
      [from, changed] = [key.place, null];
    }
    for (let place = from + 1; place <= to; place += 1) {
      const which = blocks.apply(this.frames[place].frame);
      changed = changed === null || which === null ? null : changed.concat(Array.from(which));
    }
    return changed;
  }
}

function checkedFrame(text, size, isFirst) {
  const wrong = new Error("it holds no frame of blocks");
  let frame;
  try { frame = fromBase64(text); } catch { throw wrong; }
  if (frame.length < HEADER) throw wrong;
  const view = new DataView(frame.buffer);
  const [isDelta, count] = [view.getUint8(3), view.getUint32(12, true)];
  const known = view.getUint16(0) === 0x5142 && view.getUint8(2) === 1 && isDelta <= 1;
  if (!known || frame.length !== HEADER + count * (BLOCK_BYTES + 4 * isDelta)) throw wrong;
  if (!isDelta) return frame;
  for (let place = 0; place < count; place += 1) {
    if (isFirst || view.getUint32(HEADER + 4 * place, true) >= size) {
      throw new Error("its blocks go with no snapshot before it");
    }
  }
  return frame;
}

const NAMES = ["owners", "shared", "found", "states"];
const columnsOf = (blocks) => copied(Object.fromEntries(["step", "time", "number", ...NAMES].map((name) => [name, blocks[name]])));
const copied = (columns) => ({ ...columns, ...Object.fromEntries(NAMES.map((name) => [name, columns[name].slice()])) });
