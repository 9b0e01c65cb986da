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

/** The shapes in a text, as children of an element. */
function shapesIn(parent, text) {
  const svg = `<svg xmlns="http://www.w3.org/2000/svg">${text}</svg>`;
  parent.append(...new DOMParser().parseFromString(svg, "image/svg+xml").documentElement.childNodes);
  return parent;
}

/** A picture, with its groups for boxes, lines and the texts on these, and the words about them. */
function drawingOf(shown, label) {
  const picture = drawn("svg", { class: "rcg-picture", role: "group", "aria-label": label });
  shapesIn(picture, `<style>${shown.dark}</style>${shown.shapes}`);
  const [nodes, edges, amounts] = [".rcg-node", ".rcg-edge", ".rcg-amount"].map((each) => [...picture.querySelectorAll(each)]);
  const tells = new Map();
  for (const title of picture.querySelectorAll("title")) {
    tells.set(title.parentNode, title.textContent.split("\n"));
    title.remove(); // the card has a tooltip of its own
  }
  const boxes = nodes.map((group) => ["x", "y", "width", "height"].map((name) => Number(group.querySelector("rect").getAttribute(name))));
  nodes.forEach((group, at) => {
    const answers = { tabindex: at ? -1 : 0, role: "button", "aria-pressed": "false", "aria-label": tells.get(group).join(", ") };
    for (const [name, value] of Object.entries(answers)) group.setAttribute(name, value);
  });
  for (const group of edges) {
    // A thin line is hard to point at.
    group.append(drawn("path", { d: group.querySelector("path").getAttribute("d"), fill: "none", stroke: "transparent", "stroke-width": 12 }));
  }
  return { ...shown, picture, boxes, tells, groups: { nodes, edges, amounts } };
}

/** Whether a box has an op; null stands for any op of the process. */
const isAt = (ops, process, op) => ops.some(([where, which]) => where === process && (op === null || which === op));

/** The first later picture where the ops of a box are in several, and which boxes; null without one. */
export function openingOf(pictures, level, at) {
  const ops = pictures[level].nodes[at];
  for (let next = level + 1; next < pictures.length; next += 1) {
    const boxes = [...pictures[next].nodes.keys()].filter((box) => ops.some((op) => isAt(pictures[next].nodes[box], ...op)));
    if (boxes.length > 1) return { level: next, boxes };
  }
  return null;
}

export function fillTopology(card, { head }) {
  const { model } = card;
  const { pictures } = head;
  const drawings = new Map();
  let level = 0;
  let isNarrow = false;
  let shown = null;

  /** Draws a picture, or its narrow form, when it is first shown. */
  function drawingAt(at) {
    const picture = pictures[at];
    const form = (isNarrow && picture.narrow) || picture;
    if (drawings.has(form)) return drawings.get(form);
    const drawing = drawingOf({ ...picture, ...form }, picture.about);
    drawings.set(form, drawing);
    const { tells, groups, edges } = drawing;
    groups.nodes.forEach((group, node) => {
      if (openingOf(pictures, at, node)) tells.get(group).push("click: open");
      card.listen(group, "click", (event) => {
        if (wasMoved) return;
        event.stopPropagation();
        toggle(node);
      });
      card.listen(group, "focus", () => {
        const frame = group.getBoundingClientRect();
        if (group.matches(":focus-visible")) card.tell(tells.get(group), frame.left + frame.width / 2, frame.bottom - 6);
      });
      card.listen(group, "blur", () => card.hush());
    });
    groups.edges.forEach((group, edge) => {
      const [, , count, ops] = edges[edge];
      card.listen(group, "click", (event) => {
        if (wasMoved || !ops.length) return;
        event.stopPropagation();
        choose(ops[0][0], count === 1 ? ops[0][1] : null);
      });
    });
    for (const [group, lines] of tells) {
      card.listen(group, "pointermove", (event) => {
        if (!held) card.tell(lines, event.clientX, event.clientY);
      });
      card.listen(group, "pointerleave", () => card.hush());
    }
    takePointer(drawing.picture);
    return drawing;
  }

  // Selection

  function highlight() {
    const process = model.get("selected_process");
    const op = model.get("selected_op");
    const onNodes = new Set();
    const onEdges = new Set();
    shown.nodes.forEach((ops, at) => {
      if (isAt(ops, process, op)) onNodes.add(at);
    });
    const pressed = new Set(op === null ? [] : onNodes);
    const centres = new Set(onNodes);
    // A call is highlighted with its inputs and outputs, a value with its ends.
    shown.edges.forEach(([source, target, , ops], at) => {
      const isOwn = op !== null && isAt(ops, process, op);
      if (!isOwn && !centres.has(source) && !centres.has(target)) return;
      onEdges.add(at);
      onNodes.add(source).add(target);
    });
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
    const places = shown.nodes[at];
    if (opening) {
      const processes = new Set(places.map(([process]) => process));
      choose(processes.size === 1 ? places[0][0] : null, null);
      show(opening.level, opening.boxes);
      return;
    }
    if (!places.length) return;
    const chosen = model.get("selected_op");
    if (chosen !== null && isAt(places, model.get("selected_process"), chosen)) choose(null, null);
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
      const tops = focus.map((at) => shown.boxes[at][1]);
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
    card.subtitle.textContent = shown.about;
    card.legend.replaceChildren(...shown.legend.map(keyOf), ...shown.notes.map((group) => element("span", { class: "rcg-key rcg-group" }, group)), hint);
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
    const next = nearestTo(shown.boxes, at, directions[event.key]);
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
  const keyOf = ([shape, words]) => element("span", { class: "rcg-key" }, shapesIn(drawn("svg", { width: 32, height: 12, viewBox: "0 -6 32 12", "aria-hidden": "true" }), shape), words);
  const means = isTouched() ? "tap a box: open or select · drag: pan" : "click a box: open or select · drag: pan · wheel: zoom (after a click, or with Ctrl) · double click: all";
  const hint = element("span", { class: "rcg-hint" }, means);
  show(0);
  card.onWidth(card.body, (width) => {
    const wasNarrow = isNarrow;
    isNarrow = width < PHONE;
    room = width;
    if (isNarrow === wasNarrow) fit(width);
    else show(level);
  });
}

export default { render: renderer("topology", fillTopology) };
