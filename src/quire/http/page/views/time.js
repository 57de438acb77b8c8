// The last minutes as charts that point at one moment together.

import { h, setText } from "../dom.js";
import { count, duration, percent } from "../format.js";
import { Chart, Cursor } from "../parts/chart.js";
import { preemptions } from "../parts/preemptions.js";

export const time = { id: "time", title: "Time", make };

const rate = (number) => (number < 10 && number % 1 ? number.toFixed(1) : count(number));
const tokens = { format: (number) => `${rate(number)} tok/s`, brief: count, least: 10 };
const seconds = { format: duration, brief: (value) => (value ? duration(value) : "0") };
const shares = { format: percent, brief: (share) => `${100 * share} %`, top: 1 };
const line = (name, colour, of) => ({ name, colour, of });

/** What a counter has gained each second since the point before. */
const gained = (of) => (point, before) => (
  point.time > before.time ? (of(point) - of(before)) / (point.time - before.time) : null);

/** null: this model never misses so. */
const looked = (name) => (point, before) => (
  name === STATELESS && !point.prefix[name] ? null : gained((one) => one.prefix[name] ?? 0)(point, before));

const perMinute = (of) => (point, before) => 60 * gained(of)(point, before);

/** A share of what several counters have gained since the point before. */
function shareOf(name, names, of) {
  return (point, before) => {
    const gains = names.map((one) => of(point)[one] - of(before)[one]);
    const all = gains.reduce((a, b) => a + b, 0);
    return all > 0 ? gains[names.indexOf(name)] / all : null;
  };
}

const PREFIX = [["found", "found", "--cached"], ["fetched", "fetched", "--window"],
  ["evicted", "missed: evicted", "--external"], ["stateless", "missed: no snapshot", "--sink"],
  ["tail", "missed: tail of a block", "--internal"], ["new", "missed: new", "--reserved"]];
const STATELESS = "stateless_tokens"; // of models with recurrent layers; not in older recordings
const SLOTS = [["used", "--used"], ["reserved", "--reserved"], ["internal", "--internal"],
  ["external", "--external"]];
const PARTS = [["plan", "--sink"], ["moves", "--internal"], ["draft", "--draft"], ["forward", "--used"],
  ["sampling", "--window"], ["update", "--cached"], ["rest", "--reserved"]];

const accepted = ({ speculation: now }, { speculation: before }) => (now === null || before === null ? null
  : (now.accepted_tokens - before.accepted_tokens) / (now.draft_tokens - before.draft_tokens));

/** Of a step; null where there is none, or no draft model. */
const spent = (parts, name) => (!parts || (name === "draft" && !parts.draft) ? null : parts[name]);

function latency(title, of, note) {
  return { title, ...seconds, note, least: 1e-3, series: [
    line("p50", "--accent", (point) => of(point).p50), line("p90", "--warn", (point) => of(point).p90),
    line("p99", "--bad", (point) => of(point).p99)] };
}

/** Of what states tell; `optional` ones are shown once there is something to tell. */
function specified() {
  return [
    { title: "Throughput", ...tokens, note: "Over the latest ten seconds.", series: [
      line("out", "--accent", (point) => point.rates.generated_tokens_per_second),
      line("in", "--good", (point) => point.rates.prompt_tokens_per_second)] },
    { title: "Batch and queue", format: rate, brief: count, least: 4,
      note: "Requests; the batch is sequences in a step.", series: [
      line("running", "--accent", (point) => point.running), line("waiting", "--warn", (point) => point.waiting),
      line("preempted", "--bad", (point) => point.preempted),
      line("batch", "--good", (point) => point.rates.sequences)] },
    latency("Time to first token", (point) => point.firstToken, "Of the latest 4,096 requests."),
    latency("Between tokens", (point) => point.betweenTokens, "Of the latest 4,096 tokens."),
    { title: "A step's time by part", ...seconds, stacked: true, least: 1e-4,
      note: "Mean over the latest ten seconds, measured only while a page is open.",
      series: PARTS.map(([name, colour]) => line(name, colour, (point) => spent(point.parts, name))) },
    { title: "Prefix cache: prompt tokens hit or missed", ...tokens, stacked: true,
      series: PREFIX.map(([name, title, colour]) => line(title, colour, looked(`${name}_tokens`))) },
    { title: "Use of held slots", ...shares, stacked: true,
      note: "Used slots hold tokens; all others are waste.",
      series: SLOTS.map(([name, colour]) => (
        line(name, colour, shareOf(name, SLOTS.map(([one]) => one), (point) => point.slotSeconds)))) },
    { title: "Preemptions", format: (number) => `${rate(number)}/min`, brief: count, stacked: true, least: 4,
      series: [line("by recompute", "--internal", perMinute((point) => point.decisions.recompute ?? 0)),
        line("by swap", "--sink", perMinute((point) => point.decisions.swap ?? 0))] },
    { title: "Speculation", ...shares, note: "Share of the verified draft tokens.",
      optional: (point) => point.speculation?.draft_tokens > 0, series: [line("accepted", "--accent", accepted)] },
  ];
}

function make(page) {
  const cursor = new Cursor(), clock = (...time) => page.source.clock(...time);
  const charts = specified().map((one) => ({ ...one, chart: new Chart({ ...one, cursor, clock }) }));
  const panels = charts.map(({ chart }) => h("div", { class: "panel" }, chart.element));
  const latest = preemptions(page);
  const nothing = h("p", { class: "panel quiet" });
  const element = h("div", { class: "grid" }, h("h2", { class: "unseen" }, "Time"), nothing,
    h("div", { class: "grid time-charts" }, panels), latest.element);

  function state() {
    const { points } = page.source.history;
    nothing.hidden = points.length > 1;
    setText(nothing, page.source.live ? "No data yet. This page updates every second."
      : "Charts begin with the second moment: play, or move the slider.");
    charts.forEach(({ chart, optional }, i) => {
      panels[i].hidden = points.length < 2 || (optional !== undefined && !points.some(optional));
      if (!panels[i].hidden) chart.draw(points);
    });
    latest.draw(page.source.decisions);
  }
  return { element, state, shown: () => page.source.state && state() };
}
