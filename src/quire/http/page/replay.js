// A recording as a source of moments: what live.js is of a running server.

import { BlockMap } from "./blocks.js";
import { clock, elapsed } from "./format.js";
import { History, pressureOf } from "./history.js";
import { placeAt } from "./recording.js";

const EVERY = 100; // milliseconds
const MOST_DECISIONS = 1000;
export const SPEEDS = [1, 2, 4, 8, 16];

export class Replay {
  /** moved(): called when the time has changed, or it plays or no longer. */
  constructor(listener, recording) {
    this.listener = listener;
    this.recording = recording;
    this.live = false;
    this.clock = recording.header.of === "simulation" ? elapsed : clock; // whose time begins with it
    this.state = null;
    this.decisions = [];
    this.blocks = new BlockMap();
    this.history = new History();
    this.moved = () => {};
    const { states, frames } = recording;
    this.at = Math.max(states[0].t, frames[0]?.t ?? 0); // from then on there is something to see
    this.speed = 1;
    this.timer = null;
    this.places = { state: -1, frame: -1 };
  }

  get playing() { return this.timer !== null; }

  get pressure() { return this.state && pressureOf(this.state); }

  /** States are recorded less often than blocks. */
  get lag() {
    const { recording, places } = this;
    const [state, frame] = [recording.states[places.state], recording.frames[places.frame]];
    return state && frame ? Math.max(0, frame.t - state.t) : 0;
  }

  age() { return 0; }

  /** Show where it is; at first the beginning. */
  start() { this.seek(this.at); }

  stop() { this.pause(); }

  play() {
    if (this.playing) return;
    if (this.at >= this.recording.seconds) this.seek(0);
    let then = performance.now();
    this.timer = setInterval(() => {
      const now = performance.now();
      this.seek(this.at + this.speed * (now - then) / 1000);
      then = now;
    }, EVERY);
    this.moved();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.moved();
  }

  toggle() { if (this.playing) this.pause(); else this.play(); }

  /** To a time, in seconds from the beginning. */
  seek(t) {
    const { recording, places } = this;
    this.at = Math.min(Math.max(t, 0), recording.seconds);
    const state = Math.max(0, placeAt(recording.states, this.at)), frame = placeAt(recording.frames, this.at);
    if (frame !== places.frame) {
      const changed = recording.move(this.blocks, places.frame, frame);
      places.frame = frame;
      this.listener.blocks(changed);
    }
    if (state !== places.state) {
      places.state = state;
      this.#show(recording.states[state], state);
      this.listener.state();
    }
    this.moved();
    if (this.playing && this.at >= recording.seconds) this.pause();
  }

  /** To the next event (1), or the one before (-1). */
  jump(direction) {
    const { events } = this.recording;
    const place = placeAt(events, this.at);
    const event = direction > 0 ? events[place + 1] : events.findLast(({ t }) => t < this.at - 0.05);
    if (event) this.seek(event.t);
  }

  #show({ text, first }, place) {
    const { recording } = this;
    this.state = JSON.parse(text).state;
    const { states, decisions } = recording;
    const from = placeAt(states, states[place].t - this.history.kept);
    this.history.points = states.slice(Math.max(first, from + 1), place + 1).map(({ point }) => point);
    const until = placeAt(decisions, Math.max(this.at, states[place].t)) + 1;
    const begin = until === 0 ? 0 : decisions[until - 1].first;
    this.decisions = decisions.slice(Math.max(begin, until - MOST_DECISIONS), until).map(({ told }) => told);
  }

  /** What was recorded of a request that has not ended; null: nothing. Nobody else can be asked. */
  async story(id) { return this.#story(id); }

  #story(id) {
    const { running, preempted, waiting } = this.state.requests;
    const request = [running, preempted, waiting].flat().find((row) => row.id === id);
    const told = this.recording.stories.get(id) ?? [], { story } = told[placeAt(told, this.at)] ?? {};
    if (!request || !story) return null;
    return { ...story, request, decisions: this.decisions.filter((one) => one.request_id === id) };
  }

  /** Who held a block, by the tables that were recorded. */
  async holders(block) {
    const { kv_groups: kvGroups, block_size: size } = this.state.pool;
    const kvGroup = kvGroups.findLastIndex((one) => one.first_block <= block);
    const first = kvGroups.findIndex((one) => one.first_block === kvGroups[kvGroup].first_block); // of those that share
    const at = (blocks, i) => blocks.findIndex((one) => one <= block && block < one + (kvGroups[i]?.span ?? 1));
    let held = null;
    const holders = [];
    for (const { id, number, status, branches, adapter } of this.state.requests.running) {
      for (const { branch, tokens, on_host: onHost, kv_groups: tables } of this.#story(id)?.tables ?? []) {
        const place = onHost ? -1 : tables.findIndex(({ blocks }, i) => i >= first && i <= kvGroup && at(blocks, i) >= 0);
        if (place < 0) continue;
        const { blocks, sink_blocks: sinks, dropped } = tables[place], index = at(blocks, place);
        held = place;
        const start = (index + (index >= sinks ? dropped : 0)) * size;
        holders.push({ id, number, kind: "request", running: status === "running", branch, branches, adapter,
          first_token: start, end_token: Math.max(start, Math.min(start + size, tokens)), tokens });
      }
    }
    return { kv_group: held ?? kvGroup, num_holders: Math.max(holders.length, this.blocks.shared[block]), holders };
  }

  watch() {}
}
