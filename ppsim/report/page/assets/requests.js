// Requests of a run as a table that sorts by any column, and their time to the first token over time.

const PAGE_ROWS = 20;
const COLUMNS = [
  // key, heading, explanation, how a value is shown
  ["rid", "request", "its id", (value) => value],
  ["status", "status", "finished, aborted, refused, or open when the run ended", (value) => value],
  ["prompt", "prompt", "prompt tokens", shownNumber],
  ["output", "output", "tokens that the client got", shownNumber],
  ["arrived", "arrived", "instant at which the client sent it", null],
  ["queue", "unread for", "from arrival until the first rank read it", shownTime],
  ["ttft", "TTFT", "time to first token, from arrival", shownTime],
  ["tpot", "TPOT", "time per output token after the first", shownTime],
  ["e2e", "E2E", "from arrival to the last reply", shownTime],
];

// One object for each request, times in ns; null where it never came to that.
function requestRows(run) {
  const of = run.requests;
  const less = (a, b) => (a === null || b === null ? null : a - b);
  return of.rid.map((request, i) => ({
    request,
    rid: run.rids[request],
    status: of.status[i],
    prompt: of.prompt[i],
    output: of.output[i],
    arrived: of.arrived[i],
    queue: less(of.read[i], of.arrived[i]),
    ttft: less(of.first[i], of.arrived[i]),
    tpot: of.output[i] > 1 ? less(of.last[i], of.first[i]) / (of.output[i] - 1) : null,
    e2e: of.status[i] === "finished" ? less(of.ended[i], of.arrived[i]) : null,
  }));
}

class RequestTable {
  constructor(run, place, timeline) {
    this.run = run;
    this.timeline = timeline;
    this.rows = requestRows(run);
    this.key = "arrived";
    this.isDown = false;
    this.most = PAGE_ROWS;
    this.search = element("input", { type: "search", placeholder: "find a request", "aria-label": "find a request" });
    this.search.addEventListener("input", () => this.draw());
    this.found = element("span", { class: "soft" });
    this.head = element("tr");
    this.body = element("tbody");
    const table = element("table", { class: "numbers" }, element("thead", {}, this.head), this.body);
    this.more = element("button", { type: "button", onclick: () => this.showMore() }, "more");
    place.append(element("p", {}, this.search, " ", this.found), element("div", { class: "wide" }, table), this.more);
    this.draw();
  }

  sortBy(key) {
    this.isDown = this.key === key ? !this.isDown : false;
    this.key = key;
    this.draw();
  }

  showMore() {
    this.most *= 4;
    this.draw();
  }

  // The rows that the search leaves, in order; what has no value is last whichever way.
  ordered() {
    const part = this.search.value.trim().toLowerCase();
    const rows = this.rows.filter(({ rid, status }) => !part || rid.toLowerCase().includes(part) || status === part);
    const sign = this.isDown ? -1 : 1;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    return rows.sort(({ [this.key]: a }, { [this.key]: b }) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * compare(a, b);
    });
  }

  draw() {
    const rows = this.ordered();
    this.head.replaceChildren(...COLUMNS.map((column) => this.heading(...column)));
    this.body.replaceChildren(...rows.slice(0, this.most).map((row) => this.line(row)));
    this.found.textContent = `${shownNumber(rows.length)} of ${shownNumber(this.rows.length)} requests; a click shows one in the timeline`;
    this.more.hidden = rows.length <= this.most;
    this.more.textContent = `show more (${shownNumber(rows.length - this.most)} left)`;
  }

  heading(key, says, title) {
    const sort = this.key !== key ? "none" : this.isDown ? "descending" : "ascending";
    const mark = { none: "", ascending: " ▲", descending: " ▼" }[sort];
    const button = element("button", { type: "button", title: `${title}; click to sort`, onclick: () => this.sortBy(key) }, says + mark);
    return element("th", { scope: "col", "aria-sort": sort, "data-key": key }, button);
  }

  line(row) {
    const cells = COLUMNS.map(([key, , , shown]) => {
      const value = row[key];
      const words = key === "arrived" && value !== null ? shownInstant(this.run, value) : value === null ? "–" : shown(value);
      if (key !== "rid") return element("td", key === "status" ? { class: `is-${value}` } : {}, words);
      return element("td", { title: words }, element("button", { type: "button", class: "plain", onclick: () => this.show(row) }, shortName(words)));
    });
    return element("tr", {}, ...cells);
  }

  show(row) {
    this.timeline.focus(row.request);
    this.timeline.place.querySelector(".timeline").scrollIntoView({ behavior: "smooth" });
  }
}

// A dot for each request that got a token: when it came, how long it waited.
async function showDots(timeline, place) {
  const rows = requestRows(timeline.run).filter((row) => row.ttft !== null && row.ttft > 0);
  if (rows.length < 3) return;
  const seconds = rows.map((row) => row.ttft / 1e9);
  const figure = figureOf({ height: 200, min_border_left: 70, y_axis_type: "log", x_range: model("DataRange1d", {}), y_range: model("DataRange1d", {}) });
  figure.xaxis.axis_label = `arrival, ${timeline.says}`;
  durationAxis(figure.yaxis, rows.map((row) => row.ttft), "TTFT");
  const data = model("ColumnDataSource", {
    data: { x: rows.map((row) => timeline.x(row.arrived)), y: seconds, rid: rows.map((row) => shortName(row.rid)), ttft: rows.map((row) => shownTime(row.ttft)), prompt: rows.map((row) => row.prompt) },
  });
  const dots = figure.scatter({ x: { field: "x" }, y: { field: "y" }, source: data, size: 6, fill_color: BLUE, fill_alpha: 0.55, line_color: null });
  const tooltips = [["request", "@rid"], ["TTFT", "@ttft"], ["prompt tokens", "@prompt"]];
  figure.add_tools(model("HoverTool", { tooltips, renderers: [dots] }));
  const charts = new Charts();
  charts.put(figure, place, "dots");
  await charts.draw();
}
