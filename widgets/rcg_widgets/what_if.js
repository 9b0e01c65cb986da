// SPDX-License-Identifier: Apache-2.0
// What if: a slider for each thing that may change, and the predicted figures beside the measured.

import { button, countText, element, Card } from "./common.js";

const PAUSE_MS = 120; // after a slider has moved, before the kernel is asked

/** A slider with its name and its value; `tell` sets its position. */
function sliderOf(name, { min, max, step, text, onmove }) {
  const value = element("span", { class: "rcg-value" });
  const input = element("input", {
    class: "rcg-range", type: "range", min, max, step, "aria-label": name,
    oninput: () => {
      value.textContent = text(Number(input.value));
      onmove(Number(input.value));
    },
    onkeydown: (event) => event.stopPropagation(),
  });
  const tell = (position) => {
    input.value = position;
    value.textContent = text(position);
  };
  return { node: element("label", { class: "rcg-knob" }, element("span", {}, name), input, value), tell };
}

function render({ model, el }) {
  const card = new Card(model, el, "what-if");
  const { in_flight: [least, most], now, factor: [low, high], methods, communicates } = model.get("choices");
  const factorText = (factor) => (factor === 1 ? "as now" : `${countText(factor)}x`);
  let timer = null;
  const send = (values) => {
    clearTimeout(timer);
    card.root.dataset.waiting = "true";
    timer = setTimeout(() => card.set(values()), PAUSE_MS);
  };

  const inFlight = sliderOf("in flight", {
    min: least, max: most, step: 1, text: (count) => (count === now ? `${countText(count)}, as now` : countText(count)),
    onmove: (count) => send(() => ({ in_flight: count })),
  });
  const ofFactor = (name, onmove) => sliderOf(name, { min: low, max: high, step: 0.05, text: factorText, onmove });
  const communication = ofFactor("communication", (factor) => send(() => ({ communication: factor })));
  const chosen = element("select", { class: "rcg-input", "aria-label": "method", onchange: () => tell() },
    ...methods.map((name) => element("option", { value: name }, name)));
  const method = ofFactor("time of", (factor) => {
    const name = chosen.value;
    send(() => ({ scale: { ...model.get("scale"), [name]: factor } }));
  });
  const reset = button("reset", "all as measured", () => {
    clearTimeout(timer);
    card.set({ in_flight: now, communication: 1, scale: {} });
  });
  const knobs = element("div", { class: "rcg-knobs" }, inFlight.node);
  if (methods.length) {
    method.node.insertBefore(chosen, method.node.children[1]);
    knobs.append(method.node);
  }
  if (communicates) knobs.append(communication.node);
  card.controls.append(reset);
  const answer = element("p", { class: "rcg-answer", role: "status" });
  const rows = element("div", { class: "rcg-changes", role: "table", "aria-label": "measured and predicted" });
  card.body.append(knobs, answer, rows);

  const lineOf = ({ name, texts, shares }) => {
    const bars = shares.map((share, at) => {
      const fill = element("i", {});
      fill.style.width = `${100 * share}%`;
      return element("span", { class: `rcg-change ${at ? "rcg-then" : "rcg-now"}`, role: "cell", title: at ? "predicted" : "measured" },
        element("span", { class: "rcg-track" }, fill), element("span", { class: "rcg-figure" }, texts[at]));
    });
    return element("div", { class: "rcg-change-row", role: "row" }, element("span", { class: "rcg-change-name", role: "rowheader" }, name), ...bars);
  };
  const tell = () => {
    inFlight.tell(model.get("in_flight"));
    communication.tell(model.get("communication"));
    method.tell(model.get("scale")[chosen.value] ?? 1);
  };
  const show = () => {
    const found = model.get("found");
    answer.textContent = found.answer;
    card.subtitle.textContent = found.changes;
    rows.replaceChildren(...found.rows.map(lineOf));
    card.explain([...(found.rows.length ? [["rcg-now", "measured"], ["rcg-then", "predicted"]] : []), ...found.notes.map((note) => ["rcg-note", note])]);
    card.root.dataset.answer = found.answer;
    card.root.dataset.waiting = "false";
  };
  for (const trait of ["in_flight", "scale", "communication"]) card.listen(model, `change:${trait}`, tell);
  card.listen(model, "change:found", show);
  tell();
  show();
  card.root.dataset.ready = "true";
  return () => {
    clearTimeout(timer);
    card.dispose();
  };
}

export default { render };
