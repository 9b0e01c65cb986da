// SPDX-License-Identifier: Apache-2.0
// The topology: actors as boxes, calls in them, lines for values. Python computes the layout.

import { button, drawn, element, renderer } from "./common.js";

const MARGIN = 10;
const ARROW = 7;
const LEAST_SCALE = 0.5; // smaller cannot be read at all; more is found by panning
const USUAL_SCALE = 0.8;

/** A path through the points that ends at the base of its arrow. */
export function curveOf(points) {
  let path = `M${points[0][0]} ${points[0][1]}`;
  for (let at = 1; at < points.length; at += 1) {
    const [x, y] = points[at - 1];
    let [toX, toY] = points[at];
    if (at === points.length - 1) toX -= ARROW;
    const middle = (x + toX) / 2;
    path += y === toY ? `H${toX}` : `C${middle} ${y} ${middle} ${toY} ${toX} ${toY}`;
  }
  return path;
}

/**
 * The upper left corner of an edge's label: above its longest horizontal part, else under the middle
 * of its curve, on the free side.
 */
export function labelPoint(points, width) {
  let best = null;
  for (let at = 1; at < points.length; at += 1) {
    const [x, y] = points[at - 1];
    const [toX, toY] = points[at];
    const length = y === toY ? toX - x : 0;
    if (length > 0 && (!best || length > best.length)) best = { x: (x + toX) / 2, y, length };
  }
  if (best) return [best.x - ARROW / 2 - width / 2, best.y - 17];
  const [x, y] = points.at(-2);
  const [toX, toY] = points.at(-1);
  const [middle, height] = [(x + toX - ARROW) / 2, (y + toY) / 2];
  return [toY > y ? middle - width - 5 : middle + 5, height + 1];
}

/** The labels that do not overlap one before them: boxes as [x, y, width, height]. */
export function withoutOverlaps(boxes, taken) {
  const kept = [...taken];
  return boxes.map((box) => {
    const isFree = kept.every(([x, y, width, height]) => box[0] >= x + width || box[0] + box[2] <= x || box[1] >= y + height || box[1] + box[3] <= y);
    if (isFree) kept.push(box);
    return isFree;
  });
}

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

export function fillTopology(card, { head }) {
  const { model } = card;
  const picture = drawn("svg", { class: "rcg-picture", role: "group", "aria-label": head.subtitle });
  card.body.append(picture);
  card.subtitle.textContent = head.subtitle;

  // Nodes of the cluster, actors, lines, calls: from back to front.
  for (const frame of head.frames) {
    const [x, y, width, height] = frame.box;
    picture.append(
      drawn("g", { class: "rcg-node-frame", "data-node": frame.node },
        drawn("title", {}, frame.tell.join("\n")),
        drawn("rect", { class: "rcg-node-frame-rect", x, y, width, height, rx: 14 }),
        drawn("text", { class: "rcg-node-frame-name", x: x + 14, y: y + 19 }, frame.label)),
    );
  }
  for (const actor of head.actors) {
    const [x, y, width, height] = actor.box;
    picture.append(
      drawn("g", { class: "rcg-actor", "data-process": actor.process },
        drawn("title", {}, `${actor.name} (${actor.detail})`),
        drawn("rect", { class: "rcg-actor-rect", x, y, width, height, rx: 10 }),
        drawn("text", { class: "rcg-name", x: x + 12, y: y + 18 }, actor.label),
        drawn("text", { class: "rcg-small", x: x + 12, y: y + 33 }, actor.detail)),
    );
  }
  const edges = head.edges.map((edge) => {
    const group = drawn("g", { class: "rcg-edge" });
    if (edge.points) {
      const kind = head.kinds[edge.kind];
      group.style.setProperty("--rcg-light", kind.light);
      group.style.setProperty("--rcg-dark", kind.dark);
      const [x, y] = edge.points.at(-1);
      const path = curveOf(edge.points);
      group.append(
        drawn("path", { d: path, fill: "none", stroke: "transparent", "stroke-width": 12 }),
        drawn("path", { class: "rcg-edge-line", d: path, fill: "none", "stroke-width": kind.width, "stroke-dasharray": kind.dashes || null }),
        drawn("path", { class: "rcg-edge-tip", d: `M${x} ${y}l${-ARROW - 1} ${-ARROW / 2}v${ARROW}z` }),
      );
      if (edge.tag) {
        const [left, top, width, high] = edge.tag;
        group.append(
          drawn("rect", { class: "rcg-tag", x: left, y: top, width, height: high, rx: 4 }),
          drawn("text", { class: "rcg-tag-text", x: left + width / 2, y: top + 11, "text-anchor": "middle" }, head.tag),
        );
      }
    } else {
      const [sx, , width] = head.nodes[edge.source].box;
      const [tx, ty, , height] = head.nodes[edge.target].box;
      group.append(drawn("path", { class: "rcg-joint", d: `M${sx + width} ${ty + height / 2}H${tx}` }));
    }
    picture.append(group);
    card.listen(group, "pointermove", (event) => {
      if (!held) card.tell(edge.tell, event.clientX, event.clientY);
    });
    card.listen(group, "pointerleave", () => card.hush());
    card.listen(group, "click", (event) => {
      if (wasMoved || !edge.ops.length) return;
      event.stopPropagation();
      const [process, op] = edge.ops[0];
      choose(process, op);
    });
    return group;
  });
  const nodes = head.nodes.map((node, at) => {
    const [x, y, width, height] = node.box;
    const isPart = node.kind === "part" || node.kind === "attribute";
    const isMeeting = node.kind === "collective";
    const radius = node.kind === "call" ? 6 : Math.min(height, 40) / 2;
    const middle = y + height / 2 + 4;
    const isTimed = Boolean(node.time);
    const name = drawn("text", {
      class: node.kind === "call" || isPart ? "rcg-mono" : "rcg-name",
      x: isTimed ? x + 12 : x + width / 2, y: middle, "text-anchor": isTimed ? "start" : "middle",
    }, node.name);
    const group = drawn("g", { class: `rcg-node rcg-${node.kind}`, tabindex: at ? -1 : 0, role: "button", "aria-pressed": "false", "aria-label": node.tell.join(", ") },
      drawn("rect", { class: "rcg-node-rect", x, y, width, height, rx: radius }), name);
    if (isMeeting) {
      group.style.setProperty("--rcg-light", head.meeting.light);
      group.style.setProperty("--rcg-dark", head.meeting.dark);
    }
    if (isTimed) group.append(drawn("text", { class: "rcg-small", x: x + width - 10, y: middle, "text-anchor": "end" }, node.time));
    picture.append(group);
    card.listen(group, "pointermove", (event) => {
      if (!held) card.tell(node.tell, event.clientX, event.clientY);
    });
    card.listen(group, "pointerleave", () => card.hush());
    card.listen(group, "click", (event) => {
      if (wasMoved) return;
      event.stopPropagation();
      toggle(at);
    });
    card.listen(group, "focus", () => {
      const frame = group.getBoundingClientRect();
      if (group.matches(":focus-visible")) card.tell(node.tell, frame.left + frame.width / 2, frame.bottom - 6);
    });
    card.listen(group, "blur", () => card.hush());
    return group;
  });
  // Sizes of values, if there is room.
  const labelled = head.edges.filter((edge) => edge.moved && edge.points);
  const boxes = labelled.map((edge) => {
    const width = edge.moved.length * 6.2 + 4;
    return [...labelPoint(edge.points, width), width, 14];
  });
  const isFree = withoutOverlaps(boxes, [...head.nodes.map((node) => node.box), ...head.edges.map((edge) => edge.tag).filter(Boolean)]);
  const amounts = new Map();
  labelled.forEach((edge, at) => {
    if (!isFree[at]) return;
    const [x, y, width] = boxes[at];
    const text = drawn("text", { class: "rcg-moved", x: x + width / 2, y: y + 11, "text-anchor": "middle" }, edge.moved);
    amounts.set(edge, text);
    picture.append(text); // above all lines
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
      amounts.get(head.edges[at])?.classList.toggle("rcg-off", isAny && !onEdges.has(at));
    });
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
      drawn("path", { class: "rcg-edge-line", d: "M0 4H30", "stroke-width": kind.width, "stroke-dasharray": kind.dashes || null }));
    const key = element("span", { class: "rcg-key rcg-edge" }, sample, kind.title);
    key.style.setProperty("--rcg-light", kind.light);
    key.style.setProperty("--rcg-dark", kind.dark);
    key.style.cursor = "default";
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
