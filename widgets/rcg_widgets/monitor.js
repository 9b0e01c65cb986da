// SPDX-License-Identifier: Apache-2.0
// The monitor of a running graph: four numbers, each with its history.

import { button, countText, drawn, element, Card } from "./common.js";

const COLUMNS = ["time", "throughput", "in_flight", "queued", "waiting"];
const TILES = [
  { name: "throughput", title: "throughput", text: (value) => [countText(value), "per second"] },
  { name: "in_flight", title: "in flight", text: (value, facts) => [countText(value), facts.limit ? `of ${countText(facts.limit)}` : ""] },
  { name: "queued", title: "queue depth", text: (value) => [countText(value), value === 1 ? "frame" : "frames"] },
  { name: "waiting", title: "waiting", text: (value) => [`${Math.round(value * 100)} %`, "of the actors' time"], most: 1 },
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

function render({ model, el }) {
  const card = new Card(model, el, "monitor");
  const state = element("span", { class: "rcg-state", role: "status" });
  const toggle = button("", "", () => card.set({ running: !model.get("running") }));
  card.controls.append(toggle);
  const tiles = TILES.map((tile) => {
    const value = element("span", {});
    const unit = element("small", {});
    const line = drawn("path", { class: "rcg-spark-line" });
    const area = drawn("path", { class: "rcg-spark-area" });
    const spark = drawn("svg", { class: "rcg-spark", viewBox: "0 0 200 38", preserveAspectRatio: "none", "aria-hidden": "true" },
      drawn("path", { class: "rcg-spark-base", d: "M0 38H200" }), area, line);
    const node = element("div", { class: "rcg-tile", "data-name": tile.name },
      element("div", { class: "rcg-tile-name" }, tile.title), element("div", { class: "rcg-tile-value" }, value, " ", unit), spark);
    return { ...tile, value, unit, line, area, node };
  });
  card.body.append(element("div", { class: "rcg-tiles" }, ...tiles.map((each) => each.node)));
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
      const spark = count ? sparkOf(history.time, values, 200, 38, tile.most) : { line: "", area: "" };
      tile.line.setAttribute("d", spark.line);
      tile.area.setAttribute("d", spark.area);
    }
    card.root.dataset.samples = model.get("samples");
  };
  const showState = () => {
    const isRunning = model.get("running");
    toggle.textContent = isRunning ? "stop" : "start";
    toggle.title = isRunning ? "stop looking" : "look again";
    toggle.setAttribute("aria-label", toggle.title);
    toggle.disabled = model.get("ended");
    const status = model.get("status");
    state.textContent = status;
    state.dataset.state = model.get("ended") ? (status.includes("broken") ? "broken" : "ended") : model.get("stuck") ? "stuck" : !isRunning ? "stopped" : status.startsWith("ready") ? "ready" : "running";
    card.root.dataset.running = isRunning;
  };
  card.listen(model, "change:history", show);
  for (const trait of ["running", "status", "stuck", "ended"]) card.listen(model, `change:${trait}`, showState);
  show();
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
