// What lies under the pointer, in words beside it; a click keeps it below the picture.

// {lane, i} of a pass, {lane, before} of idle time, {lane, bin} of a share; null where there is nothing.
function under(timeline, x, y) {
  const row = Math.round(-y);
  const lane = timeline.run.lanes[row];
  if (lane === undefined || Math.abs(-y - row) > BAR / 2) return null;
  const at = timeline.ns(x);
  if (at < timeline.whole.from || at > timeline.whole.to) return null;
  if (!timeline.isExact) return { lane, row, at };
  const { from, to } = timeline.part();
  const near = ((to - from) / Math.max(200, timeline.place.clientWidth)) * 2; // two pixels: thin passes can be hit
  const [first, stop] = visible(lane, at - near, at + near);
  let best = null;
  let bestDistance = near;
  for (let i = first; i < stop; i++) {
    const distance = Math.max(lane.start[i] - at, at - lane.end[i], 0);
    if (distance < bestDistance || (distance === 0 && best === null)) [best, bestDistance] = [i, distance];
  }
  return best === null ? { lane, row, idle: at } : { lane, row, i: best };
}

function linesOf(timeline, found) {
  const { run, by } = timeline;
  const { lane } = found;
  if (found.i !== undefined) return [passTitle(run, lane, found.i), passLines(run, lane, found.i)];
  if (found.idle !== undefined) {
    const stop = firstAbove(lane.reached ?? running(lane.end), found.idle);
    const from = stop > 0 ? lane.reached[stop - 1] : timeline.whole.from;
    const to = stop < lane.start.length ? lane.start[stop] : timeline.whole.to;
    return [`${lane.name}: idle`, [["for", shownTime(to - from)], ["from", shownInstant(run, from)], ["to", shownInstant(run, to)]]];
  }
  const { from, to } = timeline.part();
  const numBins = binsOf(timeline.detail);
  const bin = clamp(Math.floor(((found.at - from) / (to - from)) * numBins), 0, numBins - 1);
  const { classes, passes, length } = covered(run, lane, from, to, numBins, by);
  const lines = [["from", shownInstant(run, from + bin * length)], ["to", shownInstant(run, from + (bin + 1) * length)]];
  let busy = 0;
  for (const kind of inOrder(classes.keys())) {
    const bins = classes.get(kind);
    if (!bins[bin]) continue;
    busy += bins[bin];
    lines.push([className(timeline, kind), shownPercent(bins[bin] / length)]);
  }
  lines.unshift(["passes", shownNumber(passes[bin])]);
  return [`${lane.name}: computes ${shownPercent(busy / length)} of this time`, lines];
}

function className(timeline, kind) {
  if (kind === "kv") return "KV transfer";
  return timeline.by === "slot" ? `slot ${timeline.run.slots[kind]}` : MODE_WORDS[kind];
}

function described([title, lines]) {
  const rows = lines.map(([name, value]) => element("tr", {}, element("th", {}, name), element("td", {}, value)));
  return [element("b", {}, title), element("table", {}, ...rows)];
}

function hover(timeline, event) {
  const found = under(timeline, event.x, event.y);
  const tip = document.getElementById("tip");
  if (found === null) return leave(timeline);
  tip.replaceChildren(...described(linesOf(timeline, found)));
  tip.hidden = false;
  const box = timeline.detailBox.getBoundingClientRect();
  const [x, y] = [box.left + event.sx, box.top + event.sy];
  const left = x + 18 + tip.offsetWidth < document.documentElement.clientWidth ? x + 18 : x - 18 - tip.offsetWidth;
  tip.style.left = `${Math.max(4, left) + window.scrollX}px`;
  tip.style.top = `${y + 18 + window.scrollY}px`;
  const { lane, row, i } = found;
  timeline.sources.hovered.data =
    i === undefined ? { y: [], left: [], right: [] } : { y: [-row], left: [timeline.x(lane.start[i])], right: [timeline.x(lane.end[i])] };
}

function leave(timeline) {
  document.getElementById("tip").hidden = true;
  if (timeline.sources.hovered.data.y.length) timeline.sources.hovered.data = { y: [], left: [], right: [] };
}

// A click on a pass: what it was, with all of its requests to choose from.
function choose(timeline, event) {
  const found = under(timeline, event.x, event.y);
  const place = timeline.place.querySelector(".chosen-pass");
  place.hidden = found === null || found.i === undefined;
  if (place.hidden) return;
  const { run } = timeline;
  const { lane, i } = found;
  const batch = lane.kind === "kv" ? undefined : lane.batches.get(lane.iteration[i]);
  const lines = passLines(run, lane, i).filter(([name]) => !name.startsWith("request"));
  const words = lines.map(([name, value]) => `${name} ${value}`).join(", ");
  const buttons = (batch?.pieces ?? []).map((piece) => {
    const show = () => timeline.focus(piece[0], false);
    return element("button", { type: "button", title: "show this request", onclick: show }, pieceWords(run, piece));
  });
  place.replaceChildren(element("b", {}, passTitle(run, lane, i)), ` ${words} `, element("span", { class: "pieces" }, ...buttons));
}
