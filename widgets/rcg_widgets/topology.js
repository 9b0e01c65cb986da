// SPDX-License-Identifier: Apache-2.0
// The topology: Python draws it, and this makes it answer to the pointer, the keys and the selection.

import { button, drawn, element, isTouched, renderer } from "./common.js";

const MARGIN = 10;
const MOST_HIGH = 1200; // more is found by panning
const PHONE = 480; // pixels of width
const LEAST_SCALE = 0.75; // there

/** The node nearest to another in a direction; null if there is none. */
export function nearestTo(boxes, from, [dx, dy]) {
  const middle = ([x, y, width, height]) => [x + width / 2, y + height / 2];
  const [x, y] = middle(boxes[from]);
  let best = null;
  let bestAway = Infinity;
  boxes.forEach((box, at) => {
    const [toX, toY] = middle(box);
    const along = (toX - x) * dx + (toY - y) * dy;
    const across = Math.abs((toX - x) * dy) + Math.abs((toY - y) * dx);
    if (at === from || along <= 1) return;
    const away = along + 2.5 * across;
    if (away < bestAway) {
      best = at;
      bestAway = away;
    }
  });
  return best;
}

/** The scale at which the whole picture fits, at most 1. */
export function scaleToFit([, , width, height], room, high) {
  return Math.min(1, room / width, high / height);
}

/** A picture, with its groups for boxes, lines and the texts on these. */
function drawingOf(shown, label) {
  const picture = drawn("svg", { class: "rcg-picture", role: "group", "aria-label": label });
  const text = `<svg xmlns="http://www.w3.org/2000/svg"><style>${shown.dark}</style>${shown.shapes}</svg>`;
  picture.append(...new DOMParser().parseFromString(text, "image/svg+xml").documentElement.childNodes);
  const [nodes, edges, amounts] = [".rcg-node", ".rcg-edge", ".rcg-amount"].map((each) => [...picture.querySelectorAll(each)]);
  nodes.forEach((group, at) => {
    const answers = { tabindex: at ? -1 : 0, role: "button", "aria-pressed": "false", "aria-label": shown.nodes[at].tell.join(", ") };
    for (const [name, value] of Object.entries(answers)) group.setAttribute(name, value);
  });
  for (const group of edges) {
    // A thin line is hard to point at.
    group.append(drawn("path", { d: group.querySelector("path").getAttribute("d"), fill: "none", stroke: "transparent", "stroke-width": 12 }));
  }
  return { ...shown, picture, groups: { nodes, edges, amounts } };
}

/** Whether a box has an op; null stands for any op of the process. */
const isAt = ({ places }, process, op) => places.some(([where, which]) => where === process && (op === null || which === op));

/** The first later picture where the ops of a box are in several, and which boxes; null without one. */
export function openingOf(pictures, level, at) {
  const { count, places } = pictures[level].nodes[at];
  if (count < 2) return null;
  for (let next = level + 1; next < pictures.length; next += 1) {
    const boxes = [...pictures[next].nodes.keys()].filter((box) => places.some((place) => isAt(pictures[next].nodes[box], ...place)));
    if (boxes.length > 1) return { level: next, boxes };
  }
  return null;
}

export function fillTopology(card, { head }) {
  const { model } = card;
  const { pictures } = head;
  card.subtitle.textContent = head.subtitle;
  const drawings = [];
  let level = 0;
  let shown = null;

  /** Draws a picture when it is first shown. */
  function drawingAt(at) {
    if (drawings[at]) return drawings[at];
    const drawing = drawingOf(pictures[at], head.subtitle);
    drawings[at] = drawing;
    const explains = (group, lines) => {
      card.listen(group, "pointermove", (event) => {
        if (!held) card.tell(lines, event.clientX, event.clientY);
      });
      card.listen(group, "pointerleave", () => card.hush());
    };
    drawing.groups.edges.forEach((group, edge) => {
      const { ops, tell, count } = drawing.edges[edge];
      explains(group, tell);
      card.listen(group, "click", (event) => {
        if (wasMoved || !ops.length) return;
        event.stopPropagation();
        choose(ops[0][0], count === 1 ? ops[0][1] : null);
      });
    });
    drawing.groups.nodes.forEach((group, node) => {
      const opening = openingOf(pictures, at, node);
      const tell = opening ? [...drawing.nodes[node].tell, "click: open"] : drawing.nodes[node].tell;
      explains(group, tell);
      card.listen(group, "click", (event) => {
        if (wasMoved) return;
        event.stopPropagation();
        toggle(node);
      });
      card.listen(group, "focus", () => {
        const frame = group.getBoundingClientRect();
        if (group.matches(":focus-visible")) card.tell(tell, frame.left + frame.width / 2, frame.bottom - 6);
      });
      card.listen(group, "blur", () => card.hush());
    });
    takePointer(drawing.picture);
    return drawing;
  }

  // Selection

  function highlight() {
    const process = model.get("selected_process");
    const op = model.get("selected_op");
    const onNodes = new Set();
    const onEdges = new Set();
    shown.nodes.forEach((node, at) => {
      if (isAt(node, process, op)) onNodes.add(at);
    });
    shown.edges.forEach((edge, at) => {
      const isOwn = edge.ops.some(([where, which]) => where === process && which === op);
      if (isOwn) {
        onEdges.add(at);
        onNodes.add(edge.source).add(edge.target);
      }
    });
    const pressed = new Set([...onNodes].filter((at) => op !== null && isAt(shown.nodes[at], process, op)));
    // A call is highlighted with its inputs and outputs.
    for (const node of [...onNodes]) {
      shown.edges.forEach((edge, at) => {
        if (op !== null && !pressed.has(node)) return;
        if (edge.source === node || edge.target === node) {
          onEdges.add(at);
          onNodes.add(edge.source).add(edge.target);
        }
      });
    }
    const isAny = process !== null && onNodes.size > 0;
    shown.groups.nodes.forEach((group, at) => {
      group.classList.toggle("rcg-off", isAny && !onNodes.has(at));
      group.setAttribute("aria-pressed", pressed.has(at));
    });
    shown.groups.edges.forEach((group, at) => {
      group.classList.toggle("rcg-off", isAny && !onEdges.has(at));
      group.classList.toggle("rcg-on", isAny && onEdges.has(at));
    });
    for (const text of shown.groups.amounts) text.classList.toggle("rcg-off", isAny && !onEdges.has(Number(text.dataset.edge)));
    card.root.dataset.lit = isAny ? `${onNodes.size} ${onEdges.size}` : "";
  }
  function choose(process, op) {
    card.set({ selected_process: process, selected_op: op });
  }
  /** Opens a box with several calls; selects a call, or nothing if it was selected. */
  function toggle(at) {
    const opening = openingOf(pictures, level, at);
    const { places } = shown.nodes[at];
    if (opening) {
      const processes = new Set(places.map(([process]) => process));
      choose(processes.size === 1 ? places[0][0] : null, null);
      show(opening.level, opening.boxes);
      return;
    }
    if (!places.length) return;
    const chosen = model.get("selected_op");
    if (chosen !== null && isAt(shown.nodes[at], model.get("selected_process"), chosen)) choose(null, null);
    else choose(...places[0]);
  }
  card.listen(model, "change:selected_process", highlight);
  card.listen(model, "change:selected_op", highlight);

  // Pan and zoom

  let whole = [0, 0, 1, 1];
  let view = [...whole];
  let held = null;
  let wasMoved = false;
  let room = 1;
  let first = 1; // the width that is shown first
  let height = 0;
  const apply = () => {
    shown.picture.setAttribute("viewBox", view.join(" "));
    card.root.dataset.zoom = (whole[2] / view[2]).toFixed(3);
    card.root.toggleAttribute("data-near", view[2] < first * 0.99); // fingers move the picture, not the page
  };
  /** Shows all that fits: the whole width, at most as large as drawn; of a high picture the top. */
  const fit = (width, focus = []) => {
    room = width;
    // On a phone, what can be read: more is found aside.
    const scale = Math.max(scaleToFit(whole, room, Infinity), isTouched() && room < PHONE ? LEAST_SCALE : 0);
    height = Math.min(isTouched() ? Infinity : MOST_HIGH, whole[3] * scale);
    first = room / scale;
    shown.picture.style.height = `${height}px`;
    view = [whole[0], whole[1], room / scale, height / scale];
    if (focus.length) {
      // Beside the first of these boxes, if they are far down.
      const tops = focus.map((at) => shown.nodes[at].box[1]);
      view[1] = Math.max(whole[1], Math.min(Math.min(...tops) - 60, whole[1] + whole[3] - view[3]));
    }
    apply();
  };
  const all = () => {
    const scale = scaleToFit(whole, room, height);
    const aside = (room / scale - whole[2]) / 2;
    view = [whole[0] - (scale < 1 ? aside : 0), whole[1] - (height / scale - whole[3]) / 2, room / scale, height / scale];
    apply();
  };
  /** Shows a picture, from the boxes that were opened. */
  const show = (next, focus = []) => {
    card.hush();
    level = next;
    shown = drawingAt(level);
    whole = [-MARGIN, -MARGIN, shown.width + 2 * MARGIN, shown.height + 2 * MARGIN];
    card.body.replaceChildren(shown.picture);
    levels.forEach((each, at) => each.setAttribute("aria-pressed", at === level));
    card.root.dataset.level = shown.level;
    usual.textContent = shown.usual ? `line without a number: ${shown.usual}` : "";
    card.root.dataset.nodes = shown.nodes.length;
    card.root.dataset.edges = shown.edges.length;
    fit(room > 1 ? room : whole[2], focus);
    highlight();
    if (focus.length) {
      const [first] = focus;
      shown.groups.nodes.forEach((group, at) => group.setAttribute("tabindex", at === first ? 0 : -1));
      shown.groups.nodes[first].focus({ preventScroll: true });
    }
  };
  const perPixel = () => view[2] / room;
  const zoom = (factor, x = room / 2, y = height / 2) => {
    const width = Math.min(Math.max(view[2] * factor, 60), Math.max(whole[2], room / scaleToFit(whole, room, height)) * 3);
    const by = width / view[2];
    const [at, below] = [view[0] + x * perPixel(), view[1] + y * perPixel()];
    view = [at - (at - view[0]) * by, below - (below - view[1]) * by, width, view[3] * by];
    apply();
  };
  card.listen(window, "pointermove", (event) => {
    if (!held) return;
    const [dx, dy] = [event.clientX - held[0], event.clientY - held[1]];
    if (!wasMoved && Math.hypot(dx, dy) < 4) return;
    wasMoved = true;
    card.hush();
    shown.picture.classList.add("rcg-held");
    view[0] = held[2] - dx * perPixel();
    view[1] = held[3] - dy * perPixel();
    apply();
  });
  for (const ending of ["pointerup", "pointercancel"]) {
    card.listen(window, ending, () => {
      held = null;
      shown.picture.classList.remove("rcg-held");
    });
  }
  const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  function takePointer(picture) {
    card.listen(picture, "wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey || picture.contains(picture.getRootNode().activeElement))) return;
      event.preventDefault();
      const frame = picture.getBoundingClientRect();
      zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY)) * 0.002), event.clientX - frame.left, event.clientY - frame.top);
    }, { passive: false });
    card.listen(picture, "pointerdown", (event) => {
      if (event.button > 1) return;
      held = [event.clientX, event.clientY, view[0], view[1]];
      wasMoved = false;
    });
    card.listen(picture, "dblclick", all);
    card.listen(picture, "click", (event) => {
      if (!wasMoved && event.target === picture) choose(null, null);
    });
    card.listen(picture, "keydown", onKey);
  }

  // Keys: one stop for Tab, arrows from box to box.
  function onKey(event) {
    const { nodes } = shown.groups;
    const at = nodes.indexOf(event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      Enter: () => toggle(at),
      " ": () => toggle(at),
      Escape: () => choose(null, null),
      "+": () => zoom(0.8),
      "-": () => zoom(1.25),
      0: all,
    }[event.key];
    if (!act && !directions[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    if (act) return void act();
    const next = nearestTo(shown.nodes.map((node) => node.box), at, directions[event.key]);
    if (next === null) return;
    nodes[at].setAttribute("tabindex", -1);
    nodes[next].setAttribute("tabindex", 0);
    nodes[next].focus();
  }

  const meanings = { methods: "alike actors as one", actors: "each actor", calls: "each call" };
  const levels = pictures.map((each, at) => button(each.level, meanings[each.level], () => show(at)));
  card.controls.append(
    ...(levels.length > 1 ? levels : []),
    button("−", "zoom out", () => zoom(1.25)),
    button("+", "zoom in", () => zoom(0.8)),
    button("all", "show all", all),
  );
  card.explain([]);
  const usual = element("span", { class: "rcg-key" });
  for (const kind of Object.values(head.kinds)) {
    const sample = drawn("svg", { width: 30, height: 8, "aria-hidden": "true" },
      drawn("path", { class: "rcg-line", d: "M0 4H30", "stroke-width": kind.width, "stroke-dasharray": kind.dashes || null }));
    const key = element("span", { class: "rcg-key rcg-style" }, sample, kind.title);
    key.style.setProperty("--rcg-light", kind.light);
    key.style.setProperty("--rcg-dark", kind.dark);
    card.legend.append(key);
  }
  if (head.has_path) {
    const heat = element("span", { class: "rcg-swatch rcg-heat-key" });
    card.legend.append(element("span", { class: "rcg-key" }, heat, "share of the critical path"));
  }
  if (head.width) {
    const wide = drawn("svg", { width: 30, height: 8, "aria-hidden": "true" }, drawn("path", { class: "rcg-wide-key", d: "M0 3.4L30 1V7L0 4.6z" }));
    card.legend.append(element("span", { class: "rcg-key" }, wide, head.width));
  }
  card.legend.append(usual);
  for (const group of head.groups) card.legend.append(element("span", { class: "rcg-key rcg-group" }, group));
  const hint = isTouched() ? "tap a box: open or select · drag: pan" : "click a box: open or select · drag: pan · wheel: zoom (after a click, or with Ctrl) · double click: all";
  card.legend.append(element("span", { class: "rcg-hint" }, hint));
  show(0);
  card.onWidth(card.body, (width) => fit(width));
}

export default { render: renderer("topology", fillTopology) };
