// Bokeh figures in the page's style.

const IDLE = "#e6e3dc";
const INK = "#22262b";
const SOFT = "#5f6670";
const MODE_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#8a8a8a", "#8a8a8a"];
const KV_COLOUR = "#444444";
const BLUE = "#0072b2";
const DARK = "#3d4250"; // of counts: no colour of a mode
const VERMILION = "#c2410c";
const RED = "#c1121f";
const BAR = 0.8; // of a lane's height

function figureOf(attributes) {
  const figure = Bokeh.Plotting.figure({
    sizing_mode: "stretch_width",
    tools: "",
    toolbar_location: null,
    min_border_right: 18,
    outline_line_color: null,
    background_fill_color: null,
    border_fill_color: null,
    styles: { outline: "none" }, // the frame of dots around a figure that was clicked
    ...attributes,
  });
  for (const axis of figure.axes) {
    Object.assign(axis, {
      axis_line_color: null,
      major_tick_line_color: "#b5b0a5",
      minor_tick_line_color: null,
      major_label_text_color: INK,
      major_label_text_font_size: "12px",
      axis_label_text_color: SOFT,
      axis_label_text_font_size: "12px",
      axis_label_text_font_style: "normal",
    });
  }
  for (const grid of figure.grids) grid.grid_line_color = "#e3e0d8";
  figure.xaxis.formatter = model("BasicTickFormatter", { use_scientific: false });
  return figure;
}

function model(name, attributes) {
  const Type = Bokeh.Models.get(name);
  return new Type(attributes);
}

function source(...columns) {
  return model("ColumnDataSource", { data: Object.fromEntries(columns.map((name) => [name, []])) });
}

// An axis of counts: plain numbers, few of them.
function countAxis(figure) {
  figure.yaxis.ticker = model("BasicTicker", { desired_num_ticks: 4, num_minor_ticks: 0, min_interval: 1 });
  figure.yaxis.formatter = model("NumeralTickFormatter", { format: "0,0" });
  figure.y_range.start = 0;
}

// A logarithmic axis of durations: plain ones as ticks, all different, few enough that none touches the next. The
// chart's values are in seconds; ``times`` are those that it shows, in ns.
function durationAxis(axis, times, says) {
  const ticks = apart(durationTicks(Math.min(...times), Math.max(...times)));
  axis.ticker = model("FixedTicker", { ticks: ticks.map((ns) => ns / 1e9), minor_ticks: [] });
  axis.major_label_overrides = new Map(ticks.map((ns) => [ns / 1e9, plainDuration(ns)]));
  axis.axis_label = `${says}, logarithmic scale`;
}

function durationTicks(low, high) {
  const within = [];
  for (let ten = 1; ten <= high * 1.05; ten *= 10) {
    for (const digit of [1, 2, 5]) if (digit * ten >= low / 1.05 && digit * ten <= high * 1.05) within.push(digit * ten);
  }
  if (within.length > 7) return within.filter((ns) => Number.isInteger(Math.log10(ns)));
  if (within.length >= 3) return within;
  if (low === high) return [low];
  const power = 10 ** Math.floor(Math.log10(high - low)); // all close together: even steps of a round length
  const evenly = (step) => {
    const even = [];
    for (let nth = Math.ceil(low / step); nth * step <= high; nth++) even.push(nth * step);
    return even;
  };
  return [1, 0.5, 0.2].map((part) => evenly(part * power)).find((even) => even.length >= 3);
}

// Those of them that a narrow axis can name: the words of one take a sixth of its length.
function apart(ticks) {
  const least = Math.log(ticks[ticks.length - 1] / ticks[0]) * 0.16;
  let last = 0;
  return ticks.filter((ns) => {
    if (last && Math.log(ns / last) < least) return false;
    last = ns;
    return true;
  });
}

function plainDuration(ns) {
  const [unit, length] = UNITS.find(([, one]) => ns >= one) ?? UNITS[3];
  return `${Number((ns / length).toPrecision(6))} ${unit}`;
}

// Charts that belong together, because they share a range: one document, a box for each of them.
class Charts {
  constructor() {
    this.document = new Bokeh.Document();
    this.boxes = [];
  }

  // The box in which the figure will be drawn.
  put(figure, place, name) {
    const box = element("div", { class: `chart ${name}` });
    place.append(box);
    this.document.add_root(figure);
    this.boxes.push(box);
    return box;
  }

  draw() {
    return Bokeh.embed.add_document_standalone(this.document, document.body, this.boxes);
  }
}
