// Where a chart's values and moments lie, and what is written beside them.

const SPANS = [[60, 15], [120, 30], [300, 60], [600, 120]]; // seconds shown, seconds between two ticks
const STEPS = [1, 2, 4, 6, 10];

/** What was seen, rounded up: a chart that has just begun to be drawn is not a sliver. */
export function timeScale(points) {
  const end = points.at(-1).time, seen = end - points[0].time;
  const [span, apart] = SPANS.find(([seconds]) => seen <= seconds) ?? SPANS.at(-1);
  return { begin: end - span, end, span, apart };
}

/** The top of an axis that has room for `most`: a number whose half is round too. */
export function roundTop(most, least) {
  const wanted = Math.max(most, least);
  const power = 10 ** Math.floor(Math.log10(wanted));
  return STEPS.find((step) => step * power >= wanted * 0.999) * power;
}

/** Moments to be named, at round times of the clock; none before a clock that counts from 0. */
export function timeTicks({ begin, end, span, apart }, clock) {
  const ticks = [];
  for (let time = Math.ceil(Math.max(begin, 0) / apart) * apart; time <= end; time += apart) {
    const place = (time - begin) / span;
    if (place > 0.04 && place < 0.96) ticks.push({ place, text: clock(time, apart < 60) });
  }
  return ticks;
}

/** The index of the point that is nearest to a time. */
export function nearest(points, time) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].time < time) low = middle + 1; else high = middle;
  }
  return low > 0 && time - points[low - 1].time < points[low].time - time ? low - 1 : low;
}
