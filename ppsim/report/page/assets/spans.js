// Passes of a lane as boxes, or, where too many share the picture, as the share of each interval that they cover.
// Rule: coloured area is busy time at every zoom. Time that two passes of a lane cover belongs to the earlier one.

const MOST_BOXES = 500; // of a lane, in a picture; beyond, single ones would be thinner than two pixels
const BIN_PX = 2;

// Intervals of whole pixels across a figure, so that the edges of their boxes are sharp.
function binsOf(figure) {
  return Math.max(50, Math.floor((figure.inner_width || 1000) / BIN_PX));
}

// [first, last + 1) of the passes that meet [from, to), in nanoseconds.
function visible(lane, from, to) {
  lane.reached ??= running(lane.end);
  return [firstAbove(lane.reached, from), firstAtLeast(lane.start, to)];
}

// The latest end up to each pass: it ascends also where a pass lies within an earlier one.
function running(ends) {
  let latest = -Infinity;
  return ends.map((end) => (latest = Math.max(latest, end)));
}

function firstAbove(ascending, value) {
  return search(ascending, (one) => one > value);
}

function firstAtLeast(ascending, value) {
  return search(ascending, (one) => one >= value);
}

function search(ascending, holds) {
  let low = 0;
  let high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(ascending[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

// What a pass is coloured by: its mode (a place in MODE_WORDS) or its slot (a place in run.slots); "kv" of a transfer.
function classOf(run, lane, i, by) {
  if (lane.kind === "kv") return "kv";
  if (by === "slot") return run.slots.indexOf(lane.slot[i]);
  const batch = lane.batches.get(lane.iteration[i]);
  return batch ? batch.mode : MODE_WORDS.length - 1;
}

// Classes in the order in which they are stacked and named: by number, transfers last.
function inOrder(classes) {
  return [...classes].sort((a, b) => (a === "kv") - (b === "kv") || a - b);
}

// For each class the ns that its passes cover in each of numBins equal parts of [from, to); and their number there.
function covered(run, lane, from, to, numBins, by) {
  const length = (to - from) / numBins;
  const [first, stop] = visible(lane, from, to);
  const classes = new Map();
  const passes = new Array(numBins).fill(0);
  let reached = first > 0 ? lane.reached[first - 1] : -Infinity;
  for (let i = first; i < stop; i++) {
    const start = Math.max(lane.start[i], reached, from);
    const end = Math.min(lane.end[i], to);
    reached = Math.max(reached, lane.end[i]);
    if (end <= start) continue;
    const one = classOf(run, lane, i, by);
    if (!classes.has(one)) classes.set(one, new Array(numBins).fill(0));
    const bins = classes.get(one);
    const last = Math.min(numBins - 1, Math.ceil((end - from) / length) - 1);
    for (let bin = Math.min(numBins - 1, Math.floor((start - from) / length)); bin <= last; bin++) {
      const left = from + bin * length;
      const share = Math.min(end, left + length) - Math.max(start, left);
      if (share <= 0) continue;
      bins[bin] += share;
      passes[bin] += 1;
    }
  }
  return { classes, passes, length };
}

// Add to ``found`` the boxes of a lane's shares, its classes upon each other; x: ns -> place on the axis.
function stackShares(run, { lane, row, from, to, numBins, by }, found, x, colour) {
  const { classes, length } = covered(run, lane, from, to, numBins, by);
  const below = new Array(numBins).fill(-row - BAR / 2);
  for (const kind of inOrder(classes.keys())) {
    classes.get(kind).forEach((busy, bin) => {
      if (!busy) return;
      const top = below[bin] + (busy / length) * BAR;
      found.bottom.push(below[bin]);
      found.top.push(top);
      found.left.push(x(from + bin * length));
      found.right.push(x(from + (bin + 1) * length));
      found.colour.push(colour(kind));
      below[bin] = top;
    });
  }
}
