// The start: the data is decoded, each run is drawn when it is looked at.

const coded = JSON.parse(document.getElementById("data").textContent);
const page = { runs: coded.runs.map(decodeRun), timelines: [], ready: false };
window.ppsimPage = page; // for whoever looks with the browser's console, and for the tests

async function showRun(nth) {
  document.querySelectorAll(".run").forEach((one, i) => (one.hidden = i !== nth));
  document.querySelectorAll(".tabs button").forEach((one, i) => one.setAttribute("aria-selected", `${i === nth}`));
  if (page.timelines[nth] !== undefined) return;
  const run = page.runs[nth];
  const place = document.querySelectorAll(".run")[nth];
  const timeline = (page.timelines[nth] = new Timeline(run, place));
  const hasPasses = run.lanes.some((lane) => lane.start.length);
  place.querySelector(".controls").hidden = !hasPasses;
  if (hasPasses) {
    await timeline.show();
    controls(timeline);
    legend(timeline);
  }
  new RequestTable(run, place.querySelector(".requests"), timeline);
  await showDots(timeline, place.querySelector(".dots-place"));
}

function controls(timeline) {
  const { place, run } = timeline;
  const on = (name, act) => place.querySelector(`.${name}`).addEventListener("click", act);
  on("zoom-in", () => timeline.zoom(0.5));
  on("zoom-out", () => timeline.zoom(2));
  on("earlier", () => timeline.move(-0.5));
  on("later", () => timeline.move(0.5));
  on("all", () => timeline.zoomTo(timeline.whole.from, timeline.whole.to));
  on("first", () => timeline.zoomTo(...run.window.first));
  on("no-request", () => timeline.focus(null));
  place.querySelector(".by").addEventListener("change", ({ target }) => {
    timeline.by = target.value;
    timeline.updateOverview();
    timeline.update();
    legend(timeline);
  });
}

function legend(timeline) {
  const { run, by } = timeline;
  const seen = new Set();
  for (const lane of run.lanes) lane.start.forEach((_, i) => seen.add(classOf(run, lane, i, by)));
  const keys = inOrder(seen).map((kind) => [className(timeline, kind), timeline.colour(kind)]);
  const shown = keys.slice(0, 24);
  if (keys.length > shown.length) shown.push([`and ${keys.length - shown.length} more`, "transparent"]);
  shown.push(["idle", IDLE]);
  timeline.place.querySelector(".legend").replaceChildren(
    ...(run.stands.length ? [element("span", {}, element("span", { class: "triangle" }, "▲ "), "last step of a rank")] : []),
    ...shown.map(([name, colour]) => element("span", {}, element("span", { class: "key", style: `background: ${colour}` }), name)),
  );
}

async function start() {
  document.querySelectorAll(".tabs button").forEach((one, i) => one.addEventListener("click", () => showRun(i)));
  const compared = document.querySelector(".compared-charts");
  if (compared !== null) await showComparison(page.runs, coded.names, compared);
  await showRun(0);
  page.ready = true;
}

start().catch((error) => {
  document.querySelector(".trouble").hidden = false;
  throw error;
});
