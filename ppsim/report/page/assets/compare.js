// Several runs in one picture: of all requests, the share whose first (or each further) token took no longer than that.

const RUN_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#8c6d31"];
const RUN_DASHES = ["solid", [8, 3], [2, 2], [10, 3, 2, 3]];

async function showComparison(runs, names, place) {
  for (const [key, says] of [["ttft", "time to first token (TTFT)"], ["tpot", "time per output token (TPOT)"]]) {
    const values = runs.map((run) => requestRows(run).map((row) => row[key]).filter((value) => value !== null && value > 0));
    if (!values.some((one) => one.length)) continue;
    const box = element("div", { class: "half" }, element("h4", {}, `Share of requests within a ${says}`));
    place.append(box);
    const figure = figureOf({ height: 260, x_axis_type: "log", x_range: model("DataRange1d", {}), y_range: model("Range1d", { start: 0, end: 1 }), min_border_left: 50 });
    figure.xaxis.axis_label = "seconds";
    figure.xaxis.formatter = model("LogTickFormatter", { min_exponent: 6 });
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
  const keys = names.map((name, i) => {
    const dashed = RUN_DASHES[i % RUN_DASHES.length] === "solid" ? "" : " dashed";
    return element("span", {}, element("span", { class: `key line${dashed}`, style: `color: ${RUN_COLOURS[i % RUN_COLOURS.length]}` }), `${name} `);
  });
  place.append(element("p", { class: "keys" }, ...keys));
}
