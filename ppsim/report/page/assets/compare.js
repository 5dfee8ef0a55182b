// Several runs in one picture: of all requests, the share whose first (or each further) token took no longer than that.

const RUN_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#8c6d31"];
const RUN_DASHES = ["solid", [8, 3], [2, 2], [10, 3, 2, 3]];

const GAP = 0.6; // rows between two runs
const MOST_ROWS = 48; // of ranks of all runs together

// All runs on one axis of time, each from its own first instant on.
async function showTogether(runs, place) {
  const whole = Math.max(1, ...runs.map((run) => run.window.whole[1] - run.window.whole[0]));
  const [unit, unitNs] = UNITS.find(([, ns]) => whole >= ns) ?? UNITS[3];
  const forward = runs.map((run) => run.lanes.filter((lane) => lane.kind === "forward"));
  const isAll = forward.reduce((sum, lanes) => sum + lanes.length, 0) <= MOST_ROWS;
  const rows = runs.flatMap((run, i) =>
    forward[i].filter((_, at, all) => isAll || at === 0 || at === all.length - 1).map((lane) => ({ run, lane, i, says: `${letterOf(i)}  ${lane.name}` })),
  );
  if (!rows.length || rows.length > MOST_ROWS) return;
  const heights = rows.map(({ i }, row) => row + GAP * i); // the runs a little apart
  const lowest = heights.at(-1);
  const pitch = clamp(Math.floor(420 / rows.length), 12, 26);
  const figure = figureOf({
    height: (lowest + 1) * pitch + 46,
    x_range: model("Range1d", { start: 0, end: whole / unitNs }),
    y_range: model("Range1d", { start: -lowest - 0.5, end: 0.5 }),
    min_border_left: 110,
  });
  figure.xaxis.axis_label = `time in ${unit} since each run's first instant; height is the share of time in which the rank computed${isAll ? "" : "; of each run the first and the last rank"}`;
  figure.yaxis.ticker = model("FixedTicker", { ticks: heights.map((at) => -at), minor_ticks: [] });
  figure.yaxis.major_label_overrides = new Map(rows.map(({ says }, nth) => [-heights[nth], shortName(says, 20)]));
  figure.yaxis.major_tick_line_color = null;
  for (const grid of figure.grids) grid.grid_line_color = null;
  const ends = rows.map(({ run }) => (run.window.whole[1] - run.window.whole[0]) / unitNs);
  figure.hbar({ y: heights.map((at) => -at), left: 0, right: ends, height: BAR, fill_color: IDLE, line_color: null });
  const shares = source("top", "bottom", "left", "right", "colour");
  figure.quad({
    top: { field: "top" }, bottom: { field: "bottom" }, left: { field: "left" }, right: { field: "right" }, source: shares,
    fill_color: { field: "colour" }, line_color: null,
  });
  const fill = () => {
    const found = { top: [], bottom: [], left: [], right: [], colour: [] };
    rows.forEach(({ run, lane }, row) => {
      const from = run.window.whole[0];
      const given = { lane, row: heights[row], from, to: from + whole, numBins: binsOf(figure), by: "mode" };
      stackShares(run, given, found, (ns) => (ns - from) / unitNs, (kind) => MODE_COLOURS[kind]);
    });
    shares.data = found;
  };
  const charts = new Charts();
  const box = element("div", { class: "full" }, element("h4", {}, "All on one axis of time"), element("p", { class: "legend" }, ...modeKeys(rows)));
  place.append(box);
  charts.put(figure, box, "together");
  await charts.draw();
  figure.properties.inner_width.change.connect(fill);
  fill();
}

// What the colours mean, of the modes that occur.
function modeKeys(rows) {
  const seen = new Set(rows.flatMap(({ run, lane }) => lane.start.map((_, i) => classOf(run, lane, i, "mode"))));
  const keys = [...inOrder(seen).map((kind) => [MODE_WORDS[kind], MODE_COLOURS[kind]]), ["idle", IDLE]];
  return keys.map(([name, colour]) => element("span", {}, element("span", { class: "key", style: `background: ${colour}` }), name));
}

function letterOf(i) {
  return i < 26 ? String.fromCharCode(65 + i) : `${i + 1}`;
}

async function showComparison(runs, names, place) {
  await showTogether(runs, place);
  const told = place.childElementCount;
  for (const [key, says] of [["ttft", "time to first token (TTFT)"], ["tpot", "time per output token (TPOT)"]]) {
    const values = runs.map((run) => requestRows(run).map((row) => row[key]).filter((value) => value !== null && value > 0));
    if (!values.some((one) => one.length > 2)) continue;
    const box = element("div", { class: "half" }, element("h4", {}, `Share of requests within a ${says}`));
    place.append(box);
    const times = values.flat();
    const [low, high] = [Math.min(...times), Math.max(...times)];
    const margin = low === high ? 1.05 : (high / low) ** 0.04; // times that are close together fill the axis too
    const range = model("Range1d", { start: low / margin / 1e9, end: (high * margin) / 1e9 });
    const figure = figureOf({ height: 260, x_axis_type: "log", x_range: range, y_range: model("Range1d", { start: 0, end: 1 }), min_border_left: 50 });
    durationAxis(figure.xaxis, times, key.toUpperCase());
    figure.yaxis.formatter = model("NumeralTickFormatter", { format: "0 %" });
    values.forEach((one, i) => {
      const x = one.map((ns) => ns / 1e9).sort((a, b) => a - b);
      const y = x.map((_, nth) => (nth + 1) / x.length);
      const colour = RUN_COLOURS[i % RUN_COLOURS.length];
      const dash = RUN_DASHES[i % RUN_DASHES.length];
      if (x.length) figure.step({ x: [x[0], ...x], y: [0, ...y], mode: "after", line_color: colour, line_dash: dash, line_width: 2 });
    });
    const charts = new Charts();
    charts.put(figure, box, "shares");
    await charts.draw();
  }
  if (place.childElementCount === told) return;
  const keys = names.map((name, i) => {
    const dashed = RUN_DASHES[i % RUN_DASHES.length] === "solid" ? "" : " dashed";
    return element("span", {}, element("span", { class: `key line${dashed}`, style: `color: ${RUN_COLOURS[i % RUN_COLOURS.length]}` }), `${name} `);
  });
  place.append(element("p", { class: "keys" }, ...keys));
}
