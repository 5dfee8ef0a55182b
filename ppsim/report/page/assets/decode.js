// The page's data back into plain columns; the coding is described in ppsim/report/page/data.py.

function summed(differences) {
  const values = new Array(differences.length);
  let at = 0;
  for (let i = 0; i < differences.length; i++) values[i] = at += differences[i];
  return values;
}

function decodeRun(coded) {
  const batches = coded.batches.map(decodeBatches);
  const lanes = coded.lanes.map((lane) => {
    const start = summed(lane.start);
    const end = start.map((at, i) => at + lane.length[i]);
    return { ...lane, start, end, iteration: summed(lane.iteration), batches: batches[lane.batches] };
  });
  const series = ({ time, value }) => ({ time: summed(time), value: summed(value) });
  const counts = coded.counts.map((one) => ({
    ...one,
    running: series(one.running),
    waiting: series(one.waiting),
    kv_in_use: series(one.kv_in_use),
    kv_cached: series(one.kv_cached),
  }));
  return { ...coded, origin: BigInt(coded.origin_ns), lanes, batches, counts };
}

// A Map from iteration to {mode, pieces: [[request, prefix, new tokens], ...]}.
function decodeBatches(table) {
  const reached = new Map();
  const last = new Map();
  const found = new Map();
  const iterations = summed(table.iteration);
  table.pieces.forEach((coded, i) => {
    const row = coded === 0 ? last.get(table.slot[i]) : coded;
    last.set(table.slot[i], row);
    const pieces = [];
    for (let at = 0; at < row.length; at++) {
      const number = row[at];
      const piece = number >= 0 ? [number, reached.get(number), 1] : [-1 - number, row[++at], row[++at]];
      reached.set(piece[0], piece[1] + piece[2]);
      pieces.push(piece);
    }
    found.set(iterations[i], { mode: table.mode[i], pieces });
  });
  return found;
}
