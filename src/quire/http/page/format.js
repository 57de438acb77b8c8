// Numbers for people.

const grouped = new Intl.NumberFormat("en-US");

/** 12,345 */
export const count = (number) => grouped.format(Math.round(number));

/** 0.123 → "12.3 %"; null → "–" */
export const percent = (share) => (share === null || !isFinite(share) ? "–" : `${(100 * share).toFixed(1)} %`);

/** "820 µs", "12.3 ms", "1.25 s", "2 min 5 s"; null → "–" */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** The time of day: 23:04:05, or 23:04. time: in seconds since 1970. */
export function clock(time, seconds = true) {
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
  return new Date(time * 1000).toLocaleTimeString("en-GB", seconds ? { ...parts, second: "2-digit" } : parts);
}

/** How long it has been: 1:05, 1:00:00 */
export function elapsed(seconds) {
  const whole = Math.floor(seconds), two = (number) => String(number).padStart(2, "0");
  const minutes = `${Math.floor(whole / 60) % 60}:${two(whole % 60)}`;
  return whole < 3600 ? minutes : `${Math.floor(whole / 3600)}:${minutes.padStart(5, "0")}`;
}

/** 1.5 MiB */
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let which = 0;
  while (number >= 1024 && which < units.length - 1) { number /= 1024; which += 1; }
  return `${number >= 100 || which === 0 ? Math.round(number) : number.toFixed(1)} ${units[which]}`;
}

/** 1 block, 2 blocks */
export const counted = (number, unit) => `${count(number)} ${unit}${number === 1 ? "" : "s"}`;
