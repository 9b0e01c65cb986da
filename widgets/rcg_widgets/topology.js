// SPDX-License-Identifier: Apache-2.0
// The topology: Python draws it, and this makes it answer to the pointer, the keys and the selection.

import { button, drawn, element, renderer } from "./common.js";

const MARGIN = 10;
const LEAST_SCALE = 0.5; // smaller cannot be read at all; more is found by panning
const USUAL_SCALE = 0.8;

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

/** The picture, with its groups for nodes, edges and sizes of values. */
function pictureOf(head) {
  const picture = drawn("svg", { class: "rcg-picture", role: "group", "aria-label": head.subtitle });
  const text = `<svg xmlns="http://www.w3.org/2000/svg"><style>${head.dark}</style>${head.shapes}</svg>`;
  picture.append(...new DOMParser().parseFromString(text, "image/svg+xml").documentElement.childNodes);
  const [nodes, edges, amounts] = [".rcg-node", ".rcg-edge", ".rcg-amount"].map((each) => [...picture.querySelectorAll(each)]);
  nodes.forEach((group, at) => {
    const answers = { tabindex: at ? -1 : 0, role: "button", "aria-pressed": "false", "aria-label": head.nodes[at].tell.join(", ") };
    for (const [name, value] of Object.entries(answers)) group.setAttribute(name, value);
  });
  for (const group of edges) {
    // A thin line is hard to point at.
    group.append(drawn("path", { d: group.querySelector("path").getAttribute("d"), fill: "none", stroke: "transparent", "stroke-width": 12 }));
  }
  return { picture, nodes, edges, amounts };
}

export function fillTopology(card, { head }) {
  const { model } = card;
  const { picture, nodes, edges, amounts } = pictureOf(head);
  card.body.append(picture);
  card.subtitle.textContent = head.subtitle;
  const explains = (group, lines) => {
    card.listen(group, "pointermove", (event) => {
      if (!held) card.tell(lines, event.clientX, event.clientY);
    });
    card.listen(group, "pointerleave", () => card.hush());
  };
  edges.forEach((group, at) => {
    const { ops, tell } = head.edges[at];
    explains(group, tell);
    card.listen(group, "click", (event) => {
      if (wasMoved || !ops.length) return;
      event.stopPropagation();
      choose(...ops[0]);
    });
  });
  nodes.forEach((group, at) => {
    const { tell } = head.nodes[at];
    explains(group, tell);
    card.listen(group, "click", (event) => {
      if (wasMoved) return;
      event.stopPropagation();
      toggle(at);
    });
    card.listen(group, "focus", () => {
      const frame = group.getBoundingClientRect();
      if (group.matches(":focus-visible")) card.tell(tell, frame.left + frame.width / 2, frame.bottom - 6);
    });
    card.listen(group, "blur", () => card.hush());
  });

  // Selection

  let lit = "";
  /** Whether a node is, or a collective contains, an op; null stands for any op of the process. */
  function isAt(node, process, op) {
    const places = node.ranks.length ? node.ranks : [[node.process, node.op]];
    return places.some(([where, which]) => where === process && (op === null || which === op));
  }
  function highlight() {
    const process = model.get("selected_process");
    const op = model.get("selected_op");
    const onNodes = new Set();
    const onEdges = new Set();
    head.nodes.forEach((node, at) => {
      if (isAt(node, process, op)) onNodes.add(at);
    });
    head.edges.forEach((edge, at) => {
      const isOwn = edge.ops.some(([where, which]) => where === process && which === op);
      if (isOwn) {
        onEdges.add(at);
        onNodes.add(edge.source).add(edge.target);
      }
    });
    const pressed = new Set([...onNodes].filter((at) => op !== null && isAt(head.nodes[at], process, op)));
    // A call is highlighted with its inputs and outputs.
    for (const node of [...onNodes]) {
      head.edges.forEach((edge, at) => {
        if (op !== null && !pressed.has(node)) return;
        if (edge.source === node || edge.target === node) {
          onEdges.add(at);
          onNodes.add(edge.source).add(edge.target);
        }
      });
    }
    const isAny = process !== null && onNodes.size > 0;
    nodes.forEach((group, at) => {
      group.classList.toggle("rcg-off", isAny && !onNodes.has(at));
      group.setAttribute("aria-pressed", pressed.has(at));
    });
    edges.forEach((group, at) => {
      group.classList.toggle("rcg-off", isAny && !onEdges.has(at));
      group.classList.toggle("rcg-on", isAny && onEdges.has(at));
    });
    const sources = new Set([...onEdges].map((at) => String(head.edges[at].source)));
    for (const text of amounts) text.classList.toggle("rcg-off", isAny && !sources.has(text.dataset.node));
    lit = isAny ? `${onNodes.size} ${onEdges.size}` : "";
    card.root.dataset.lit = lit;
  }
  function choose(process, op) {
    card.set({ selected_process: process, selected_op: op });
  }
  function toggle(at) {
    const { process, op } = head.nodes[at];
    if (op === null || op === undefined) return;
    const chosen = model.get("selected_op");
    if (chosen !== null && isAt(head.nodes[at], model.get("selected_process"), chosen)) choose(null, null);
    else choose(process, op);
  }
  card.listen(model, "change:selected_process", highlight);
  card.listen(model, "change:selected_op", highlight);

  // Pan and zoom

  const whole = [-MARGIN, -MARGIN, head.width + 2 * MARGIN, head.height + 2 * MARGIN];
  let view = [...whole];
  let held = null;
  let wasMoved = false;
  let room = whole[2];
  let height = 0;
  let fits = 1;
  let isAll = false; // asked for
  const apply = () => {
    picture.setAttribute("viewBox", view.join(" "));
    card.root.dataset.zoom = (whole[2] / view[2]).toFixed(3);
  };
  const fit = (width) => {
    // At most the size as drawn, and large enough to be legible.
    room = width;
    height = Math.min(560, whole[3] * Math.max(LEAST_SCALE, Math.min(1, width / whole[2])));
    picture.style.height = `${height}px`;
    fits = scaleToFit(whole, room, height);
    if (isAll) all();
    else begin();
  };
  const begin = () => {
    // From the left end. If the picture is too high, the part beside the input.
    const scale = fits >= LEAST_SCALE ? fits : Math.max(LEAST_SCALE, Math.min(USUAL_SCALE, room / whole[2]));
    const rest = height / scale - whole[3];
    const input = head.nodes[0].box;
    const top = rest >= 0 ? -rest / 2 : Math.min(Math.max(input[1] + input[3] / 2 - height / scale / 2 - whole[1], 0), -rest);
    view = [whole[0], whole[1] + top, room / scale, height / scale];
    apply();
  };
  const all = () => {
    isAll = true;
    // A picture that was shrunk is centred; another one begins at the left.
    const aside = fits < 1 ? (room / fits - whole[2]) / 2 : 0;
    view = [whole[0] - aside, whole[1] - (height / fits - whole[3]) / 2, room / fits, height / fits];
    apply();
  };
  const perPixel = () => view[2] / room;
  const zoom = (factor, x = room / 2, y = height / 2) => {
    const width = Math.min(Math.max(view[2] * factor, 60), Math.max(whole[2], room / fits) * 3);
    const by = width / view[2];
    const [at, below] = [view[0] + x * perPixel(), view[1] + y * perPixel()];
    view = [at - (at - view[0]) * by, below - (below - view[1]) * by, width, view[3] * by];
    apply();
  };
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
  card.listen(window, "pointermove", (event) => {
    if (!held) return;
    const [dx, dy] = [event.clientX - held[0], event.clientY - held[1]];
    if (!wasMoved && Math.hypot(dx, dy) < 4) return;
    wasMoved = true;
    card.hush();
    picture.classList.add("rcg-held");
    view[0] = held[2] - dx * perPixel();
    view[1] = held[3] - dy * perPixel();
    apply();
  });
  card.listen(window, "pointerup", () => {
    held = null;
    picture.classList.remove("rcg-held");
  });
  card.listen(picture, "dblclick", all);
  card.listen(picture, "click", (event) => {
    if (!wasMoved && event.target === picture) choose(null, null);
  });

  // Keys: one stop for Tab, arrows from call to call.
  const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  card.listen(picture, "keydown", (event) => {
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
    const next = nearestTo(head.nodes.map((node) => node.box), at, directions[event.key]);
    if (next === null) return;
    nodes[at].setAttribute("tabindex", -1);
    nodes[next].setAttribute("tabindex", 0);
    nodes[next].focus();
  });

  card.controls.append(
    button("−", "zoom out", () => zoom(1.25)),
    button("+", "zoom in", () => zoom(0.8)),
    button("all", "show all", all),
  );
  card.explain([]);
  for (const kind of Object.values(head.kinds)) {
    const sample = drawn("svg", { width: 30, height: 8, "aria-hidden": "true" },
      drawn("path", { class: "rcg-line", d: "M0 4H30", "stroke-width": kind.width, "stroke-dasharray": kind.dashes || null }));
    const key = element("span", { class: "rcg-key rcg-style" }, sample, kind.title);
    key.style.setProperty("--rcg-light", kind.light);
    key.style.setProperty("--rcg-dark", kind.dark);
    card.legend.append(key);
  }
  for (const group of head.groups) card.legend.append(element("span", { class: "rcg-key rcg-group" }, group));
  card.legend.append(element("span", { class: "rcg-hint" }, "drag: pan · wheel: zoom (after a click, or with Ctrl) · double click: all"));
  card.root.dataset.nodes = nodes.length;
  card.root.dataset.edges = edges.length;
  card.onWidth(card.body, fit);
  highlight();
}

export default { render: renderer("topology", fillTopology) };
