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
