// The timeline of a run: the whole of it above, a part below, requests and KV over the same part.

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];
const LEAST_NS = 20; // of a part

class Timeline {
  constructor(run, place) {
    this.run = run;
    this.place = place;
    this.by = "mode";
    this.request = null;
    const [from, to] = run.window.whole;
    this.whole = { from, to: Math.max(to, from + 1) };
    [this.unit, this.unitNs] = UNITS.find(([, ns]) => this.whole.to - from >= ns) ?? UNITS[3];
    const latest = run.origin + BigInt(Math.ceil(this.whole.to));
    const fits = latest < 9007199254740992n && run.origin > -9007199254740992n;
    this.base = fits ? Number(run.origin) : 0; // ns between what the axes show and the columns
    this.says = fits ? `time in ${this.unit}` : `time in ${this.unit}, counted from ${shownInstant(run, 0)}`;
    this.sources = {
      boxes: source("y", "left", "right", "colour", "edge", "alpha"),
      labels: source("x", "y", "text", "colour"),
      all: source("top", "bottom", "left", "right", "colour"),
      shares: source("top", "bottom", "left", "right", "colour"),
      hovered: source("y", "left", "right"),
      life: source("y", "left", "right", "colour"),
    };
  }

  x(ns) {
    return (ns + this.base) / this.unitNs;
  }

  ns(x) {
    return x * this.unitNs - this.base;
  }

  // The part that is shown, in ns.
  part() {
    return { from: this.ns(this.range.start), to: this.ns(this.range.end) };
  }

  async show() {
    const { run, whole } = this;
    const pad = (whole.to - whole.from) * 0.004;
    const [start, end] = [this.x(whole.from - pad), this.x(whole.to + pad)];
    this.range = model("Range1d", { start, end, bounds: [start, end], min_interval: LEAST_NS / this.unitNs });
    this.left = 26 + 7 * Math.max(8, ...run.lanes.map((lane) => Math.min(20, lane.name.length)));
    const charts = this.place.querySelector(".charts");
    const num = run.lanes.length;
    this.overview = this.lanesFigure(model("Range1d", { start, end }), clamp(Math.floor(200 / num), 4, 17), false);
    this.detail = this.lanesFigure(this.range, clamp(Math.floor(560 / num), 11, 40), true);
    this.fillOverview();
    this.fillDetail();
    this.charts = new Charts();
    this.charts.put(this.overview, charts, "overview");
    charts.append(this.place.querySelector(".part"));
    this.detailBox = this.charts.put(this.detail, charts, "detail");
    this.lifeBox = this.charts.put(this.lifeFigure(), charts, "life");
    for (const counts of run.counts) this.showCounts(counts, charts);
    await this.charts.draw();
    this.lifeBox.hidden = true;
    this.range.change.connect(() => this.later());
    this.overview.properties.inner_width.change.connect(() => this.updateOverview());
    this.detail.properties.inner_width.change.connect(() => this.later());
    this.updateOverview();
    this.detail.on_event("mousemove", (event) => hover(this, event));
    this.detail.on_event("mouseleave", () => leave(this));
    this.detail.on_event("tap", (event) => choose(this, event));
    this.zoomTo(...run.window.first);
    this.update();
  }

  // --- figures ---

  lanesFigure(range, pitch, isDetail) {
    const { lanes } = this.run;
    const figure = figureOf({
      x_range: range,
      y_range: model("Range1d", { start: -lanes.length + 0.5, end: 0.5 }),
      height: pitch * lanes.length + (isDetail ? 46 : 24),
      min_border_left: this.left,
    });
    const every = Math.ceil(13 / pitch);
    const named = lanes.map((_, i) => i).filter((i) => i % every === 0);
    figure.yaxis.ticker = model("FixedTicker", { ticks: named.map((i) => -i), minor_ticks: [] });
    figure.yaxis.major_label_overrides = new Map(named.map((i) => [-i, shortName(lanes[i].name, 20)]));
    figure.yaxis.major_tick_line_color = null;
    if (isDetail) figure.xaxis.axis_label = this.says;
    for (const grid of figure.grids) grid.grid_line_color = null;
    const bands = model("ColumnDataSource", { data: { y: lanes.map((_, i) => -i) } });
    const [left, right] = [this.x(this.whole.from), this.x(this.whole.to)];
    figure.hbar({ y: { field: "y" }, left, right, height: BAR, source: bands, fill_color: IDLE, line_color: null });
    return figure;
  }

  fillOverview() {
    this.sharesGlyph(this.overview, this.sources.all);
    const tool = model("RangeTool", { x_range: this.range, start_gesture: "pan" });
    Object.assign(tool.overlay, { fill_color: "#ffd166", fill_alpha: 0.13, line_color: RED, line_alpha: 1, line_width: 2, line_dash: [] });
    this.overview.add_tools(tool);
    this.overview.toolbar.active_multi = tool;
  }

  fillDetail() {
    const { detail, sources } = this;
    this.sharesGlyph(detail, sources.shares);
    const box = { y: { field: "y" }, left: { field: "left" }, right: { field: "right" }, height: BAR };
    detail.hbar({ ...box, source: sources.boxes, fill_color: { field: "colour" }, fill_alpha: { field: "alpha" }, line_color: "white", line_alpha: { field: "edge" } });
    detail.text({
      x: { field: "x" }, y: { field: "y" }, text: { field: "text" }, source: sources.labels, text_color: { field: "colour" },
      text_align: "center", text_baseline: "middle", text_font_size: "11px",
    });
    detail.hbar({ ...box, source: sources.hovered, fill_color: null, line_color: "black", line_width: 2.5 });
    const stands = this.run.stands.map(({ lane, since }) => [this.run.lanes.findIndex(({ name }) => name === lane), since]);
    detail.scatter({
      x: stands.map(([, since]) => this.x(since)), y: stands.map(([lane]) => -lane - BAR / 2), marker: "triangle", size: 11, color: RED,
    });
    detail.add_tools(
      model("PanTool", { dimensions: "width" }),
      model("WheelZoomTool", { dimensions: "width", modifiers: { ctrl: true } }),
    );
    const [pan, wheel] = detail.toolbar.tools;
    detail.toolbar.active_drag = pan;
    detail.toolbar.active_scroll = wheel;
  }

  sharesGlyph(figure, data) {
    figure.quad({
      top: { field: "top" }, bottom: { field: "bottom" }, left: { field: "left" }, right: { field: "right" }, source: data,
      fill_color: { field: "colour" }, line_color: null,
    });
  }

  lifeFigure() {
    const figure = figureOf({
      x_range: this.range, y_range: model("Range1d", { start: -0.5, end: 0.5 }), height: 40, min_border_left: this.left,
    });
    figure.xaxis.visible = false;
    figure.yaxis.ticker = model("FixedTicker", { ticks: [0], minor_ticks: [] });
    figure.yaxis.major_tick_line_color = null;
    for (const grid of figure.grids) grid.grid_line_color = null;
    figure.hbar({
      y: { field: "y" }, left: { field: "left" }, right: { field: "right" }, height: BAR, source: this.sources.life,
      fill_color: { field: "colour" }, line_color: null,
    });
    this.lifeAxis = figure.yaxes[0];
    return figure;
  }

  showCounts(counts, charts) {
    const name = counts.name ? `${counts.name}: ` : "";
    const lines = [
      [`${name}requests: running and waiting for a batch`, [["running", counts.running, DARK, "solid"], ["waiting", counts.waiting, VERMILION, [5, 2]]]],
      [`${name}KV tokens of the first rank (pool of ${shownNumber(counts.kv_most)})`, [["held by requests", counts.kv_in_use, DARK, "solid"], ["only cached", counts.kv_cached, VERMILION, [5, 2]]]],
    ];
    for (const [says, series] of lines) {
      if (!series.some(([, one]) => one.time.length)) continue;
      const title = element("h4", {}, says);
      for (const [label, , colour, dash] of series) {
        title.append(element("span", { class: `key line${dash === "solid" ? "" : " dashed"}`, style: `color: ${colour}` }), label);
      }
      charts.append(title);
      const figure = figureOf({ x_range: this.range, y_range: model("DataRange1d", {}), height: 120, min_border_left: this.left });
      for (const [, one, colour, dash] of series) {
        const x = [...one.time, this.whole.to].map((ns) => this.x(ns));
        const y = [...one.value, one.value.at(-1) ?? 0];
        figure.step({ x, y, mode: "after", line_color: colour, line_dash: dash, line_width: 1.6 });
      }
      countAxis(figure);
      this.charts.put(figure, charts, "counts");
    }
  }

  // --- what is drawn of the part ---

  later() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.update();
    });
  }

  updateOverview() {
    const { start, end } = this.overview.x_range;
    this.sources.all.data = this.sharesIn(this.overview, this.ns(start), this.ns(end));
  }

  update() {
    const { from, to } = this.part();
    const parts = this.run.lanes.map((lane) => visible(lane, from, to));
    this.isExact = parts.every(([first, stop]) => stop - first <= MOST_BOXES);
    const { boxes, labels } = this.isExact ? this.boxesIn(parts, from, to) : this.boxesIn([], from, to);
    this.sources.boxes.data = boxes;
    this.sources.labels.data = labels;
    this.sources.shares.data = this.sharesIn(this.detail, from, this.isExact ? from : to);
    leave(this);
    this.tell(from, to);
  }

  colour(kind) {
    if (kind === "kv") return KV_COLOUR;
    return this.by === "slot" ? this.run.slot_colours[kind] : MODE_COLOURS[kind];
  }

  boxesIn(parts, from, to) {
    const boxes = { y: [], left: [], right: [], colour: [], edge: [], alpha: [] };
    const labels = { x: [], y: [], text: [], colour: [] };
    const pixels = Math.max(200, this.place.clientWidth - this.left - 30) / (to - from);
    parts.forEach(([first, stop], row) => {
      const lane = this.run.lanes[row];
      for (let i = first; i < stop; i++) {
        const colour = this.colour(classOf(this.run, lane, i, this.by));
        const isDim = this.request !== null && !holds(lane, i, this.request);
        boxes.y.push(-row);
        boxes.left.push(this.x(lane.start[i]));
        boxes.right.push(this.x(lane.end[i]));
        boxes.colour.push(colour);
        boxes.edge.push(lane.length[i] * pixels > 5 ? 1 : 0);
        boxes.alpha.push(isDim ? 0.25 : 1);
        const text = `${lane.iteration[i]}`;
        const [left, right] = [Math.max(lane.start[i], from), Math.min(lane.end[i], to)];
        if ((right - left) * pixels < 7 * text.length + 6) continue;
        labels.x.push(this.x((left + right) / 2));
        labels.y.push(-row);
        labels.text.push(text);
        labels.colour.push(isDim ? INK : inkOn(colour));
      }
    });
    return { boxes, labels };
  }

  sharesIn(figure, from, to) {
    const found = { top: [], bottom: [], left: [], right: [], colour: [] };
    if (to <= from) return found;
    const numBins = binsOf(figure);
    this.run.lanes.forEach((lane, row) => {
      const given = { lane, row, from, to, numBins, by: this.by };
      stackShares(this.run, given, found, (ns) => this.x(ns), (kind) => this.colour(kind));
    });
    return found;
  }

  tell(from, to) {
    const how = this.isExact
      ? "each box is a forward pass, the number in it its iteration; grey is idle time (bubble)"
      : "too many passes to draw one by one: height is the share of time in which the rank computed; zoom in to see passes";
    const [begins, ends] = [from, to].map((at) => shownInstant(this.run, at, stepOf(to - from)));
    this.place.querySelector(".part").textContent = `${begins} to ${ends}: ${how}`;
  }

  // --- moving about ---

  zoomTo(from, to) {
    const middle = (from + to) / 2;
    const length = clamp(to - from, LEAST_NS, this.whole.to - this.whole.from || LEAST_NS);
    const start = clamp(middle - length / 2, this.whole.from, Math.max(this.whole.from, this.whole.to - length));
    this.range.setv({ start: this.x(start), end: this.x(start + length) });
  }

  zoom(factor) {
    const { from, to } = this.part();
    const length = (to - from) * factor;
    this.zoomTo((from + to - length) / 2, (from + to + length) / 2);
  }

  move(share) {
    const { from, to } = this.part();
    this.zoomTo(from + share * (to - from), to + share * (to - from));
  }

  // Make a request stand out, with its life in a lane of its own; null: none.
  focus(request, mayMove = true) {
    if (this.lifeBox === undefined) return; // nothing was computed, so there is no timeline
    this.request = request;
    const life = request === null ? null : lifeOf(this.run, request);
    this.lifeBox.hidden = life === null;
    if (life !== null) {
      this.sources.life.data = this.lifeBoxes(life);
      this.lifeAxis.major_label_overrides = new Map([[0, shortName(this.run.rids[request], 20)]]);
      const { from, to } = this.part();
      if (mayMove && (life.arrived > to || life.ended < from)) {
        const pad = Math.max(LEAST_NS, (life.ended - life.arrived) * 0.05);
        this.zoomTo(life.arrived - pad, life.ended + pad);
      }
    }
    const chosen = this.place.querySelector(".chosen-request");
    chosen.hidden = life === null;
    chosen.querySelector("b").textContent = life === null ? "" : this.run.rids[request];
    this.update();
  }

  lifeBoxes(life) {
    const steps = [[life.arrived, life.read, "#bdb8ac"], [life.read, life.first, MODE_COLOURS[0]], [life.first, life.ended, MODE_COLOURS[1]]];
    const shown = steps.filter(([from, to]) => to > from);
    return {
      y: shown.map(() => 0),
      left: shown.map(([from]) => this.x(from)),
      right: shown.map(([, to]) => this.x(to)),
      colour: shown.map(([, , colour]) => colour),
    };
  }
}

function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

function holds(lane, i, request) {
  const batch = lane.kind === "kv" ? undefined : lane.batches.get(lane.iteration[i]);
  return batch !== undefined && batch.pieces.some(([one]) => one === request);
}

function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue < 150 ? "white" : "black";
}

// Instants of a request, those that never came at the end of the run; of several with one id the first.
function lifeOf(run, request) {
  const { requests } = run;
  const i = requests.rid.indexOf(request);
  if (i < 0) return null;
  const end = run.window.whole[1];
  const ended = requests.ended[i] ?? end;
  const read = requests.read[i] ?? ended;
  const arrived = requests.arrived[i] ?? read;
  return { arrived, read, first: requests.first[i] ?? ended, ended };
}
