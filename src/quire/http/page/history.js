// What the charts draw: a point for each state of the last ten minutes, small enough to keep.

const KEPT = 600; // seconds

export class History {
  constructor(kept = KEPT) { this.points = []; this.kept = kept; }

  add(state) {
    const last = this.points.at(-1);
    if (last && (state.time <= last.time || state.step < last.step)) {
      if (state.step < last.step) this.points = []; // the server began anew
      else return;
    }
    this.points.push(pointOf(state));
    while (this.points[0].time < state.time - this.kept) this.points.shift();
  }

  /** What was before the first point. states: oldest first. */
  recall(states) {
    const own = this.points;
    this.points = [];
    for (const state of states) this.add(state);
    this.points.push(...own.filter((point) => point.time > (this.latest?.time ?? 0)));
  }

  get latest() { return this.points.at(-1) ?? null; }
}

function pointOf(state) {
  const { pool, rates, latencies, requests, prefix_cache: prefix } = state;
  return {
    time: state.time, step: state.step, slots: pool.slots, contiguous: pool.contiguous,
    running: requests.num_running, waiting: requests.num_waiting, preempted: requests.num_preempted,
    rates, firstToken: latencies.first_token, betweenTokens: latencies.between_tokens,
    prefix, decisions: state.decisions, speculation: state.speculation,
    slotSeconds: state.slot_seconds, parts: state.step_parts,
  };
}

/** What a state says of the pool and its queue, as a frame of blocks has it with it. */
export function pressureOf({ time, step, pool, kv_efficiency, requests }) {
  const { num_running, num_waiting, num_preempted, preempted, waiting } = requests;
  const first = [...preempted, ...waiting].find((one) => one.wait?.ahead === 0) ?? null;
  return { time, step, pool, kv_efficiency, num_running, num_waiting, num_preempted, first };
}
