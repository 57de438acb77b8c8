// What an answer took of memory and time: while it runs from the server's state, afterwards from the answer.

import { figures, h, setText } from "../../dom.js";
import { count, counted, duration, percent } from "../../format.js";

const NAMES = [
  "prompt tokens", "prefix cache hit", "output tokens", "first token", "tokens per second", "most blocks held",
  "block-seconds", "saved by sharing", "blocks copied", "accepted draft tokens", "preemptions",
];
const PARTS = { cached: "prompt, found in the cache", computed: "prompt, computed", written: "written" };

export class Story {
  constructor() {
    this.line = h("span", {});
    this.parts = Object.keys(PARTS).map((name) => h("span", { class: name }));
    const shares = h("span", { class: "shares", "aria-hidden": "true" }, this.parts);
    const key = h("p", { class: "shares-key quiet" }, Object.entries(PARTS).map(([name, text]) =>
      h("span", {}, h("i", { class: name }), text)));
    this.figures = figures(NAMES);
    this.remarks = h("p", { class: "quiet" });
    this.element = h("details", { class: "story", hidden: true }, h("summary", {}, shares, this.line),
      key, this.figures.element, this.remarks);
    this.element.addEventListener("toggle", () => this.element.scrollIntoView({ block: "nearest" }));
  }

  /** pool: its state. longest: tokens that an answer and its prompt may have. */
  show(answer, pool, longest) {
    const told = answer.metrics ? ofMetrics(answer.metrics) : answer.row && answer.done ? ofRow(answer.row) : null;
    this.element.hidden = !told;
    if (!told) return;
    const found = Math.min(told.cached ?? 0, told.prompt);
    [found, told.prompt - found, told.output].forEach((tokens, place) => {
      this.parts[place].style.flexGrow = String(tokens);
    });
    setText(this.line, [
      `${count(told.prompt)} prompt tokens${told.cached ? `, ${count(told.cached)} cached` : ""}`,
      `${count(told.output)} written`,
      told.ttft && `first after ${duration(told.ttft)}`,
      told.rate && `${told.rate.toFixed(1)} a second`,
      told.peak && `${counted(told.peak, "block")}`,
    ].filter((part) => part).join(" · "));
    this.figures.put(textsOf(told));
    setText(this.remarks, remarks(told, answer, pool, longest));
  }
}

/** Where an answer is that has not ended. The state may be a second old: who writes waits no more. */
export function standing({ row, begun }) {
  if (!row || (begun && row.status === "waiting")) return begun ? "running" : "asked";
  if (row.wait) {
    const { text, predicted_seconds: soon } = row.wait;
    return `${row.status}: ${text}${soon === null ? "" : `; likely to start in ${duration(soon)}`}`;
  }
  const found = `, ${count(row.cached_tokens)} of ${count(row.prompt_tokens)} prompt tokens from the cache`;
  const held = `${counted(row.output_tokens, "token")} written, ${counted(row.blocks, "block")} held`;
  return `running: ${held}${row.cached_tokens ? found : ""}`;
}

const ofMetrics = (told) => ({
  prompt: told.num_prompt_tokens, miss: told.miss, cached: told.cached_tokens, fetched: told.fetched_tokens,
  output: told.num_output_tokens, ttft: told.ttft, rate: told.tpot ? 1 / told.tpot : null,
  peak: told.peak_blocks, blockSeconds: told.block_seconds, shared: told.shared_blocks, copied: told.copied_blocks,
  drafted: told.num_draft_tokens, accepted: told.num_accepted_tokens,
  swaps: told.num_swaps, recomputes: told.num_recomputes,
});

const ofRow = (row) => ({
  prompt: row.prompt_tokens, miss: row.miss, cached: row.cached_tokens, fetched: row.fetched_tokens,
  output: row.output_tokens, ttft: null, rate: null,
  peak: row.peak_blocks, blockSeconds: row.block_seconds, shared: row.shared_blocks, copied: row.copied_blocks,
  drafted: row.draft_tokens, accepted: row.accepted_tokens, swaps: row.swaps, recomputes: row.recomputes,
});

function textsOf(told) {
  const found = () => `${count(told.cached)} (${percent(told.cached / told.prompt)})`;
  const preemptions = [[told.swaps, "by swap"], [told.recomputes, "by recompute"]].filter(([times]) => times);
  return {
    "prompt tokens": count(told.prompt), "output tokens": count(told.output),
    "prefix cache hit": told.cached === undefined ? "unknown" : found(),
    "first token": duration(told.ttft), "tokens per second": told.rate ? told.rate.toFixed(1) : "–",
    "most blocks held": count(told.peak),
    "block-seconds": told.blockSeconds === undefined ? "unknown" : told.blockSeconds.toPrecision(3),
    "saved by sharing": count(told.shared), "blocks copied": count(told.copied),
    "accepted draft tokens": told.drafted ? `${count(told.accepted)} of ${count(told.drafted)}` : "none made",
    preemptions: preemptions.map(([times, how]) => `${times} ${how}`).join(", ") || "0",
  };
}

/** What the figures do not tell. */
function remarks(told, answer, pool, longest) {
  const whole = pool && longest ? Math.ceil(longest / pool.block_size) : null;
  return [
    whole && `A block holds ${pool.block_size} tokens. To reserve room for the longest text would have taken `
      + `${counted(whole, "block")} for each answer.`,
    told.fetched && `${counted(told.fetched, "token")} of the cached ones came from the block store.`,
    told.miss && `Prefix cache: ${told.miss.text}.`,
    !answer.metrics && "These are the last figures before it ended.",
  ].filter((text) => text).join(" ");
}
