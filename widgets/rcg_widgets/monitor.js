// SPDX-License-Identifier: Apache-2.0
// The monitor of a running graph: five numbers, each with its history, and a row for each actor.

import { button, bytesText, countText, drawn, element, rateText, shareText, Card } from "./common.js";

const COLUMNS = ["time", "throughput", "in_flight", "queued", "waiting", "memory"];
const ROOMY = 12; // so many rows have room for everything; more are compact, in several columns
const USUAL = ["running", "waiting", "gave up", "ready", "ended"]; // states; of others the row says more
const TILES = [
  { name: "throughput", title: "throughput", text: (value) => [rateText(value), ""] },
  { name: "in_flight", title: "in flight", text: (value, facts) => [countText(value), facts.limit ? `of ${countText(facts.limit)}` : ""] },
  { name: "queued", title: "queue depth", text: (value) => [countText(value), value === 1 ? "value" : "values"] },
  { name: "waiting", title: "waiting", text: (value) => [shareText(value, 0), "of the time"], most: 1 },
  { name: "memory", title: "memory", text: (value, facts) => [bytesText(value), facts.cap ? `of ${bytesText(facts.cap)}` : ""] },
];

/** The rows of a history: one object per column, by time. */
export function historyOf(view) {
  const copy = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  const values = new Float64Array(copy);
  const count = values.length / COLUMNS.length;
  return Object.fromEntries(COLUMNS.map((name, column) => [name, Float64Array.from({ length: count }, (_, row) => values[row * COLUMNS.length + column])]));
}

/** A line and an area through values in a box, with gaps where a value is not known. */
export function sparkOf(times, values, width, height, most) {
  const known = [...values].filter(Number.isFinite);
  const top = most ?? Math.max(1e-9, ...known) * 1.05;
  const [from, to] = [times[0], times.at(-1)];
  let line = "";
  let area = "";
  let begun = null;
  let last = null;
  const close = () => {
    if (begun !== null) area += `L${last} ${height}L${begun} ${height}Z`;
    begun = null;
  };
  values.forEach((value, at) => {
    if (!Number.isFinite(value)) return close();
    const x = to > from ? Number((((times[at] - from) / (to - from)) * width).toFixed(2)) : width;
    const y = Number((height - (height * Math.min(value, top)) / top).toFixed(2));
    const command = `${begun === null ? "M" : "L"}${x} ${y}`;
    line += command;
    area += command;
    begun ??= x;
    last = x;
  });
  close();
  return { line, area };
}

/** What a row says of an actor, in words. */
export function wordsOf(row) {
  return {
    busy: row.busy === null ? "" : shareText(row.busy, 0),
    queue: row.slots ? `${countText(row.queued)} of ${countText(row.slots)}` : "",
    doing: row.doing || row.state,
    hint: [
      row.label,
      `${row.state}${row.doing ? `: ${row.doing}` : ""}`,
      row.busy === null ? "" : `busy ${shareText(row.busy, 0)} of the time since the last look`,
      row.slots ? `${countText(row.queued)} of ${countText(row.slots)} values wait in what it reads` : "nothing waits in what it reads",
      `${bytesText(row.memory)} of shared memory`,
    ].filter(Boolean).join("\n"),
  };
}

/** The line of an actor, and what writes a row in it. */
function actorLine() {
  const [name, busy, share, queue, frames, doing, memory] = ["name", "meter", "number", "meter rcg-queue", "number frames", "doing", "number rcg-memory"]
    .map((each) => element("span", { class: each.split(" ").map((part) => (part.startsWith("rcg-") ? part : `rcg-row-${part}`)).join(" ") }));
  const bars = [busy, queue].map((each) => each.appendChild(element("i")));
  const node = element("div", { class: "rcg-row", role: "row" }, name, busy, share, queue, frames, doing, memory);
  const write = (row) => {
    const words = wordsOf(row);
    node.dataset.state = row.state;
    node.classList.toggle("rcg-alarm", !USUAL.includes(row.state));
    node.title = words.hint;
    name.textContent = row.label;
    bars[0].style.width = `${(row.busy ?? 0) * 100}%`;
    bars[1].style.width = `${row.slots ? (row.queued / row.slots) * 100 : 0}%`;
    share.textContent = words.busy;
    frames.textContent = words.queue;
    doing.textContent = words.doing;
    memory.textContent = bytesText(row.memory);
  };
  return { node, write };
}

function render({ model, el }) {
  const card = new Card(model, el, "monitor");
  const state = element("span", { class: "rcg-state", role: "status" });
  const toggle = button("", "", () => card.set({ running: !model.get("running") }));
  card.controls.append(toggle);
  const tiles = TILES.map((tile) => {
    const value = element("span", {});
    const unit = element("small", {});
    const most = element("span", { class: "rcg-tile-most", title: "the most since the monitor began" });
    const line = drawn("path", { class: "rcg-spark-line" });
    const area = drawn("path", { class: "rcg-spark-area" });
    const spark = drawn("svg", { class: "rcg-spark", viewBox: "0 0 200 38", preserveAspectRatio: "none", "aria-hidden": "true" },
      drawn("path", { class: "rcg-spark-base", d: "M0 38H200" }), area, line);
    const node = element("div", { class: "rcg-tile", "data-name": tile.name },
      element("div", { class: "rcg-tile-name" }, tile.title, most), element("div", { class: "rcg-tile-value" }, value, " ", unit), spark);
    return { ...tile, value, unit, mostText: most, line, area, node };
  });
  const head = element("div", { class: "rcg-row rcg-row-head", "aria-hidden": "true" },
    ...["process", "busy", "", "queue", "", "", "memory"].map((text) => element("span", text === "memory" ? { class: "rcg-memory" } : {}, text)));
  const lines = [];
  const list = element("div", { class: "rcg-rows", role: "table", "aria-label": "actors" });
  card.body.append(element("div", { class: "rcg-tiles" }, ...tiles.map((each) => each.node)), list);
  card.subtitle.append(state);

  const show = () => {
    const history = historyOf(model.get("history"));
    const facts = model.get("facts");
    const count = history.time.length;
    for (const tile of tiles) {
      const values = history[tile.name];
      const newest = count ? values[count - 1] : NaN;
      const [text, unit] = Number.isFinite(newest) ? tile.text(newest, facts) : ["–", ""];
      tile.value.textContent = text;
      tile.unit.textContent = unit;
      const most = facts.most?.[tile.name];
      tile.mostText.textContent = Number.isFinite(most) ? `max ${tile.text(most, facts)[0]}` : "";
      const spark = count ? sparkOf(history.time, values, 200, 38, tile.most) : { line: "", area: "" };
      tile.line.setAttribute("d", spark.line);
      tile.area.setAttribute("d", spark.area);
    }
    card.root.dataset.samples = model.get("samples");
  };
  const showActors = () => {
    const rows = model.get("actors");
    const isCompact = rows.length > ROOMY;
    list.classList.toggle("rcg-compact", isCompact);
    while (lines.length < rows.length) lines.push(actorLine());
    lines.length = rows.length;
    rows.forEach((row, at) => lines[at].write(row));
    const wanted = [...(rows.length && !isCompact ? [head] : []), ...lines.map((each) => each.node)];
    if (wanted.length !== list.children.length || wanted[0] !== list.firstChild) list.replaceChildren(...wanted);
    card.explain(isCompact ? [["rcg-busy", "busy since the last look"], ["rcg-fill", "queue of what it reads"]] : []);
  };
  const showState = () => {
    const isRunning = model.get("running");
    toggle.textContent = isRunning ? "stop" : "start";
    toggle.title = isRunning ? "stop looking" : "look again";
    toggle.setAttribute("aria-label", toggle.title);
    toggle.disabled = model.get("ended");
    const status = model.get("status");
    state.textContent = status;
    card.root.dataset.state = state.dataset.state = model.get("ended") ? (status.includes("broken") ? "broken" : "ended") : model.get("stuck") ? "stuck" : !isRunning ? "stopped" : status.startsWith("ready") ? "ready" : "running";
    card.root.dataset.running = isRunning;
  };
  card.listen(model, "change:history", show);
  card.listen(model, "change:actors", showActors);
  for (const trait of ["running", "status", "stuck", "ended"]) card.listen(model, `change:${trait}`, showState);
  show();
  showActors();
  showState();
  card.root.dataset.ready = "true";
  // Python stops sampling when no view is left.
  const view = `${Date.now()}-${Math.random()}`;
  const say = (shown) => {
    try {
      model.send({ view, shown });
    } catch {
      // The kernel has ended.
    }
  };
  say(true);
  return () => {
    say(false);
    card.dispose();
  };
}

export default { render };
