// Numbers and batches in words. Everything here becomes text, never markup.

const MOST_PIECES = 6;
const MODE_WORDS = ["prefill", "decode", "prefill + decode", "empty", "other"];

function shownNumber(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

// A length of time with three or four digits.
function shownTime(ns) {
  if (ns === null || ns === undefined) return "–";
  const size = Math.abs(ns);
  for (const [unit, length] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= length) return `${(ns / length).toFixed(size >= 100 * length ? 1 : size >= 10 * length ? 2 : 3)} ${unit}`;
  }
  return `${ns} ns`;
}

// An instant of the run's clock in seconds: with every nanosecond, or rounded to a multiple of ``step`` of them.
function shownInstant(run, ns, step = 1n) {
  const exact = run.origin + BigInt(Math.round(ns));
  const whole = ((exact + (exact < 0n ? -step : step) / 2n) / step) * step;
  const size = whole < 0n ? -whole : whole;
  const rest = (size % 1000000000n).toString().padStart(9, "0").replace(/^(\d{3})000000$|^(\d{6})000$/, "$1$2");
  return `${whole < 0n ? "−" : ""}${size / 1000000000n}.${rest} s`;
}

// What rounds the ends of a part: a thousandth of it tells them apart, and more digits say nothing more.
function stepOf(length) {
  return 10n ** BigInt(Math.max(0, Math.floor(Math.log10(Math.max(length, 1) / 1000))));
}

function shownPercent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

// A name that fits on a line; whoever needs all of it finds it in the title.
function shortName(name, most = 48) {
  return name.length <= most ? name : `${name.slice(0, most - 1)}…`;
}

function pieceWords(run, [request, prefix, tokens]) {
  return `${shortName(run.rids[request], 32)} [${prefix}:${prefix + tokens}]`;
}

// Lines of [name, value] that say what a pass was.
function passLines(run, lane, i) {
  const batch = lane.kind === "kv" ? undefined : lane.batches.get(lane.iteration[i]);
  const pieces = batch ? batch.pieces : [];
  const tokens = pieces.reduce((sum, piece) => sum + piece[2], 0);
  const shown = pieces.slice(0, MOST_PIECES).map((piece) => pieceWords(run, piece));
  if (pieces.length > shown.length) shown.push(`and ${pieces.length - shown.length} more`);
  const lines = [
    ["iteration", `${lane.iteration[i]}`],
    ["slot", lane.kind === "kv" ? "–" : `${lane.slot[i]}`],
    ["took", shownTime(lane.end[i] - lane.start[i])],
    ["from", shownInstant(run, lane.start[i])],
    ["to", shownInstant(run, lane.end[i])],
  ];
  if (batch) lines.push(["tokens", `${shownNumber(tokens)} in ${pieces.length} request${pieces.length === 1 ? "" : "s"}`]);
  if (batch) lines.push([pieces.length === 1 ? "request" : "requests", shown.join("\n")]);
  return lines;
}

function passTitle(run, lane, i) {
  if (lane.kind === "kv") return `${lane.name}: transfer`;
  const batch = lane.batches.get(lane.iteration[i]);
  return `${lane.name}: ${batch ? MODE_WORDS[batch.mode] : "forward pass"}`;
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
