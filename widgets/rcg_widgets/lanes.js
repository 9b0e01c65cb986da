// SPDX-License-Identifier: Apache-2.0
// Bars in rows on a time axis, on a canvas: drawing, zooming and finding. scene.js says which bars and
// which rows. Times are in microseconds.
//
// 1e5 bars are drawn at interactive speed: each row finds its visible bars by binary search, and
// bars of a few pixels are added up per column. A column shows the share of time of each kind, from
// below, so that an overview shows where the time went and thin bars are no full-height edges.

import { button, element, inkOn, lowerBound, mixed, shorten, ticksOf } from "./common.js";

const PAD_RIGHT = 14;
const NOTE_GAP = 12;
const AXIS_HEIGHT = 26;
const HEADING_HEIGHT = 24;
const LEAST_SPAN = 0.02;
const LEAST_RANGE = 0.001;
const NARROW = { timeline: 4 }; // pixels: narrower bars are shares of time; where not said otherwise,
const LEAST_BAR = 1.5;
const FADED = 0.22; // what is not lit
const VIEW_HEIGHT = 520; // of rows of their full height
const FIT_HEIGHT = 880; // of all rows, lower if necessary; of very many, what they need at least
const PAD_BOTTOM = 6; // pixels below the last row
const LEAST_ROW = 3;
const LEAST_PART = 0.3; // pixels: less cannot be seen
const CROWDED = 30_000; // bars in sight: columns are wider and not hatched, because a canvas is slow with very many boxes
const LABEL_PITCH = 13; // names do not touch
const INDENT = 14;
const PIN_WIDTH = 13;
const SEND_AFTER_MS = 60; // the window, to the views that are linked
const CLOSE = 6; // pixels that a bar is wide at least when it is gone to
const AROUND = 40; // its lengths that are shown then
const MIN_AROUND = 0.5;
const NARROW_CARD = 480; // pixels: there only names of processes are at the left
// How labels are written: sizes, and whether turned by a right angle. As rcg/views/svg/numbering.py.
const SIZES = [[11.5, false], [10, false]];
const LAST_SIZES = [...SIZES, [9, false], [10, true], [8.5, true]];
const DIGIT = 0.73; // how high a digit is, for a size of 1
const LABEL_ROOM = 4;
const NUMBER_ROOM = 1.5;
const TURNED_ROOM = 3;
const NEARLY_ALL = 0.9; // of alike bars: a label has to fit on so many
const LEAST_LABELLED = 12; // pixels of height
const NUMBER = "0"; // the sign of numbers, in a legend
const FRAMED = new Set(["tinted", "outlined", "faint"]);

/** The bars of one row by start, and the latest end of each bar and all before it. */
export function rowOf(indices, start, duration) {
  const count = indices.length;
  const starts = new Float64Array(count);
  const ends = new Float64Array(count);
  for (let at = 0; at < count; at += 1) starts[at] = start[indices[at]];
  let isSorted = true;
  for (let at = 1; at < count && isSorted; at += 1) isSorted = starts[at] >= starts[at - 1];
  if (!isSorted) {
    indices = indices.slice().sort((one, other) => start[one] - start[other] || duration[other] - duration[one]);
    for (let at = 0; at < count; at += 1) starts[at] = start[indices[at]];
  }
  let latest = -Infinity;
  for (let at = 0; at < count; at += 1) {
    latest = Math.max(latest, starts[at] + duration[indices[at]]);
    ends[at] = latest; // of this bar and all before: ascending, even if bars overlap
  }
  return { indices, starts, latestEnds: ends };
}

/** The positions of the first and after the last bar of a row between two times. */
export function visibleIn(row, from, to) {
  return [lowerBound(row.latestEnds, from), lowerBound(row.starts, to)];
}

/** The time to show around a bar that is too narrow to be visible. */
export function closeUp(start, duration) {
  const length = Math.max(duration * AROUND, MIN_AROUND);
  const middle = start + duration / 2;
  return [middle - length / 2, middle + length / 2];
}

/** The shortest bar of a row at a time, or the nearest within a tolerance; -1 if there is none. */
export function barAt(row, duration, time, tolerance) {
  const [first, last] = visibleIn(row, time - tolerance, time + tolerance);
  let best = -1;
  let bestAway = Infinity;
  for (let at = last - 1; at >= first; at -= 1) {
    const slice = row.indices[at];
    const start = row.starts[at];
    const away = Math.max(0, start - time, time - start - duration[slice]);
    if (away > tolerance) continue;
    if (away < bestAway || (away === bestAway && duration[slice] < duration[best])) {
      best = slice;
      bestAway = away;
    }
  }
  return best;
}

/** From the sums of a column, highlighted and then faded: how much is highlighted, and the total. */
export function litOf(added) {
  let lit = 0;
  let sum = 0;
  for (let slot = 0; slot < added.length; slot += 1) {
    sum += added[slot];
    if (slot < added.length / 2) lit += added[slot];
  }
  return [lit, sum];
}

/** The first label that fits: rather none than a part of one, as in pictures. */
export function labelOf(labels, room, measure) {
  return labels.find((each) => measure(each) <= room) ?? "";
}

/**
 * Places rows one below the other: their `y`, `top` and `height`. Names of processes are `pitch` apart
 * at least. Returns where the last row ends, and where those at the top do.
 */
export function stack(rows, scale, pitch) {
  let y = 4;
  let middle = -Infinity;
  let pinnedHeight = 0;
  for (const row of rows) {
    const [height, gap] = row.natural;
    row.height = Math.max(Math.min(height, LEAST_ROW), height * scale);
    y += gap * scale + (row.heading ? HEADING_HEIGHT : 0);
    if (row.label && !row.isLane) {
      y = Math.max(y, middle + pitch - row.height / 2);
      middle = y + row.height / 2;
    }
    row.y = row.top = scale < 1 ? y : Math.round(y);
    y += row.height;
    if (row.isPinned) pinnedHeight = y += 4;
  }
  return { end: y, pinnedHeight };
}

/** Places rows so that all of them end above a height, if they can be so low. Returns what `stack` does. */
export function stackWithin(rows, most, pitch) {
  const whole = stack(rows, 1, pitch);
  if (whole.end <= most) return whole;
  let [low, high] = [0, 1]; // rows have a least height and names a least distance: no division says the scale
  for (let turn = 0; turn < 16; turn += 1) {
    const scale = (low + high) / 2;
    if (stack(rows, scale, pitch).end <= most) low = scale;
    else high = scale;
  }
  return stack(rows, low, pitch);
}

/** Whether a label of a length, for a font of size 1, fits on a bar. */
export function fitsOn({ form, size, isTurned }, length, width, height) {
  const along = length * size;
  if (isTurned) return size * DIGIT + 1 <= width && along + TURNED_ROOM <= height;
  return along + (form ? LABEL_ROOM : NUMBER_ROOM) <= width && size <= height;
}

/**
 * How the labels of groups of alike bars are written, or null where they do not fit. All have one form,
 * the longest that fits on all that can be labelled; the bars of a method have one size, but where that
 * is turned, those with room for a large upright label have one. A group has its `method`, the `width` that nearly all its bars have, their `height`, and how long its longest
 * label of each form is, from the shortest form on (`lengths`).
 */
export function writingsOf(groups) {
  const stepOf = ({ lengths, width, height }, form) => (form ? SIZES : LAST_SIZES).findIndex(([size, isTurned]) => fitsOn({ form, size, isTurned }, lengths[form], width, height));
  const labelled = groups.filter((each) => stepOf(each, 0) >= 0);
  let form = Math.min(...labelled.map(({ lengths }) => lengths.length)) - 1;
  while (labelled.some((each) => stepOf(each, form) < 0)) form -= 1;
  const steps = new Map();
  for (const each of labelled) steps.set(each.method, [...(steps.get(each.method) ?? []), stepOf(each, form)]);
  const isLarge = (step) => step < SIZES.length;
  return groups.map((each) => {
    if (stepOf(each, 0) < 0) return null;
    const every = steps.get(each.method);
    const smallest = Math.max(...every);
    const isApart = LAST_SIZES[smallest][1] && isLarge(stepOf(each, form));
    const [size, isTurned] = LAST_SIZES[isApart ? Math.max(...every.filter(isLarge)) : smallest];
    return { form, size, isTurned };
  });
}

export class Lanes {
  /**
   * @param card The card.
   * @param scene Its scene: the head and the columns of the payload, the rows, and what is known of bars.
   *   A row with `isLane` belongs to the one above and is indented; one with `isPinned` stays at the top.
   */
  constructor(card, scene) {
    const { rows, head: { range, looks }, columns: { start, duration, look } } = scene;
    Object.assign(this, { card, scene, rows, looks, start, duration, look });
    this.range = [range[0], Math.max(range[1], range[0] + LEAST_RANGE)];
    this.scroller = element("div", { class: "rcg-scroller" });
    this.canvas = element("canvas", { tabindex: 0, role: "application", "aria-label": card.model.get("title") });
    this.spacer = element("div");
    this.axis = element("canvas", { class: "rcg-axis", "aria-hidden": "true" });
    this.scroller.append(this.canvas, this.spacer);
    card.body.append(this.scroller, this.axis);
    this.context = this.canvas.getContext("2d");
    this.span = [...(card.model.get("window") ?? this.range)];
    this.frames = this.looks.map(({ style }) => FRAMED.has(style));
    this.hovered = -1;
    this.brush = null;
    this.brushedRange = null;
    this.isFitted = true;
    for (const row of this.rows) row.natural = [row.height, row.gap];
    this.picked = -1;
    this.widths = new Map();
    this.place();
    this.takeColours();
    card.onTheme(() => {
      this.takeColours();
      this.ask();
    });
    card.onWidth(this.scroller, (width) => this.resize(width));
    this.listen();
    card.root.rcgLanes = this;
  }

  // Layout

  place() {
    const shown = this.rows.filter((row) => !row.hidden);
    this.shown = [...shown.filter((row) => row.isPinned), ...shown.filter((row) => !row.isPinned)];
    let node = "";
    for (const row of this.shown) {
      row.heading = row.isPinned || row.node === node ? "" : row.node; // above the first row of each node of the cluster
      if (!row.isPinned) ({ node } = row);
    }
    const named = this.shown.filter((row) => row.label && !row.isLane);
    const natural = stack(this.shown, 1, 0).end + PAD_BOTTOM;
    this.isTall = natural > VIEW_HEIGHT;
    const headings = this.shown.filter((row) => row.heading).length;
    const pitch = headings * HEADING_HEIGHT + named.length * LABEL_PITCH < FIT_HEIGHT - 4 - PAD_BOTTOM ? LABEL_PITCH : 0; // room for all names
    const { end, pinnedHeight } = this.isFitted ? stackWithin(this.shown, FIT_HEIGHT - PAD_BOTTOM, pitch) : stack(this.shown, 1, pitch);
    this.pinnedHeight = pinnedHeight;
    // Names do not overlap; those of lanes are left out first.
    const taken = [];
    const lanes = this.shown.filter((row) => row.label && row.isLane);
    for (const row of [...named, ...lanes]) {
      const at = row.y + row.height / 2;
      row.isNamed = taken.every((other) => Math.abs(at - other) > LABEL_PITCH - 0.01);
      if (row.isNamed) taken.push(at);
    }
    this.fullHeight = end + PAD_BOTTOM;
    this.viewHeight = this.isFitted ? this.fullHeight : Math.min(this.fullHeight, VIEW_HEIGHT);
    this.scroller.style.height = `${this.viewHeight}px`;
    this.spacer.style.height = `${this.fullHeight - this.viewHeight}px`;
    if (this.fitButton) this.fitButton.hidden = !this.isTall;
    if (this.width) this.resize(this.width);
  }

  /** A button that shows all rows without scrolling, or rows of their full height. */
  fitControl() {
    this.fitButton = button("fit", "fit all rows into the view", () => {
      this.isFitted = !this.isFitted;
      this.fitButton.setAttribute("aria-pressed", this.isFitted);
      this.place();
    });
    this.fitButton.setAttribute("aria-pressed", this.isFitted);
    this.fitButton.hidden = !this.isTall;
    return this.fitButton;
  }

  resize(width) {
    this.width = width;
    const scale = (this.scale = Math.min(window.devicePixelRatio || 1, 3));
    for (const [canvas, height] of [[this.canvas, this.viewHeight], [this.axis, AXIS_HEIGHT]]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const measure = (text, font) => this.measure(text, font);
    // Of all rows and tracks, so that a moment has one place in the views of a graph.
    const isNarrow = width < NARROW_CARD;
    const sub = isNarrow ? 0 : Math.max(...["queue", ...this.rows.map((row) => row.sub ?? "")].map((each) => measure(each, this.font)));
    const most = isNarrow ? width * 0.2 : Math.min(230, width * 0.3);
    const shown = (row) => shorten(row.label, most - 12, (text) => measure(text, this.boldFont)); // on a phone perhaps without its class
    const label = Math.max(isNarrow ? measure("driver", this.boldFont) : 0, ...this.rows.map((row) => (row.label ? measure(isNarrow ? shown(row) : row.label, this.boldFont) + (row.isLane ? INDENT : 0) : 0)));
    this.subWidth = sub;
    const notes = this.rows.filter((row) => row.note).map((row) => measure(row.note, this.boldFont));
    this.noteRoom = notes.length ? NOTE_GAP + Math.ceil(Math.max(measure(this.scene.head.noted, this.font), ...notes)) : 0;
    this.gutter = Math.min(most, Math.ceil(label + (sub ? sub + 12 : 0)) + 12);
    this.draw();
  }

  takeColours() {
    const colour = (name) => this.card.colour(name);
    const family = getComputedStyle(this.card.root).fontFamily;
    this.family = family;
    this.font = `${SIZES[0][0]}px ${family}`;
    this.boldFont = `600 12px ${family}`;
    this.widths.clear();
    this.paints = Object.fromEntries(
      ["text", "faint", "grid", "lane", "wait", "wait-line", "idle-line", "queue", "accent", "strong", "ground"].map((name) => [name, colour(name)]),
    );
    const ground = getComputedStyle(this.card.root).backgroundColor;
    this.fills = this.looks.map(({ colour, share }) => (colour ? mixed(colour, ground, share) : null));
    this.inks = this.fills.map((each) => (each ? inkOn(each) : this.paints.text));
    this.idleHatch = this.hatch(null, this.paints["idle-line"], 7);
    this.waitPlain = mixed(this.paints["wait-line"], ground, 0.35); // as dark as the hatch is
    this.waitHatch = this.hatch(this.paints.wait, this.paints["wait-line"], 5);
  }

  hatch(ground, line, gap) {
    const tile = element("canvas", { width: gap * 2, height: gap * 2 });
    const context = tile.getContext("2d");
    if (ground) {
      context.fillStyle = ground;
      context.fillRect(0, 0, gap * 2, gap * 2);
    }
    context.strokeStyle = line;
    context.lineWidth = 1.5;
    context.beginPath();
    for (let at = -2 * gap; at <= 4 * gap; at += gap * 2) {
      context.moveTo(at - 2, 2 * gap + 2);
      context.lineTo(at + 2 * gap + 2, -2);
    }
    context.stroke();
    const pattern = this.context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(0.5));
    return pattern;
  }

  measure(text, font) {
    const key = font + text;
    let width = this.widths.get(key);
    if (width === undefined) {
      this.context.font = font;
      width = this.context.measureText(text).width;
      if (this.widths.size > 4000) this.widths.clear();
      this.widths.set(key, width);
    }
    return width;
  }

  // Time

  get room() {
    return Math.max(1, this.width - this.gutter - PAD_RIGHT - this.noteRoom);
  }

  get perUs() {
    return this.room / (this.span[1] - this.span[0]);
  }

  x(time) {
    return this.gutter + (time - this.span[0]) * this.perUs;
  }

  time(x) {
    return this.span[0] + (x - this.gutter) / this.perUs;
  }

  show(from, to) {
    const [least, most] = this.range;
    const all = Math.max(most - least, LEAST_SPAN);
    const length = Math.min(Math.max(to - from, LEAST_SPAN), all);
    const middle = (from + to) / 2;
    const start = Math.min(Math.max(middle - length / 2, least), most - length);
    this.span = [start, start + length];
    this.ask();
    clearTimeout(this.sending);
    this.sending = setTimeout(() => this.card.set({ window: this.span.map((each) => Math.round(each * 1e3) / 1e3) }), SEND_AFTER_MS);
  }

  /** Writes the first line of the card: which part is shown, unless all is. */
  tellPart() {
    const [[from, to], [least, most]] = [this.span, this.range];
    const { time, head: { about } } = this.scene;
    const words = to - from < (most - least) * 0.999 ? `${time(from)} to ${time(to)} shown · ${about}` : about;
    if (this.card.subtitle.textContent !== words) this.card.subtitle.textContent = words;
  }

  /** Shows the window of another view, which may have a longer range; null is all of this one. */
  follow() {
    const window = this.card.model.get("window") ?? this.range;
    clearTimeout(this.sending);
    if (window[1] <= this.range[0] || window[0] >= this.range[1]) return; // nothing of it is here
    if (window.every((each, end) => Math.abs(each - this.span[end]) < 2e-3)) return;
    this.span = [window[0], Math.max(window[1], window[0] + LEAST_SPAN)];
    this.ask();
  }

  /** Marks a range; null marks none. */
  mark(range) {
    this.brushedRange = range;
    this.scene.table.show(...(range ?? []));
    this.ask();
  }

  reset() {
    this.show(...this.range);
  }

  zoom(factor, x = this.gutter + this.room / 2) {
    const time = this.time(x);
    const [from, to] = this.span;
    const length = Math.min(Math.max((to - from) * factor, LEAST_SPAN), this.range[1] - this.range[0]);
    const share = (time - from) / (to - from);
    this.show(time - share * length, time + (1 - share) * length);
  }

  pan(pixels) {
    const away = pixels / this.perUs;
    this.show(this.span[0] + away, this.span[1] + away);
  }

  /** Makes a bar visible without zooming out; on request, zooms in until it is wide enough. */
  reveal(slice, isClose = false) {
    const start = this.start[slice];
    const end = start + this.duration[slice];
    const [from, to] = this.span;
    if (isClose && (end - start) * this.perUs < CLOSE) this.show(...closeUp(start, end - start));
    else if (start < from || end > to) {
      const length = Math.max(to - from, (end - start) * 1.4);
      this.show((start + end - length) / 2, (start + end + length) / 2);
    }
    const row = this.scene.rowWith(slice);
    if (row) this.scrollTo(row);
  }

  scrollTo(row) {
    const top = this.scroller.scrollTop;
    if (!row.isPinned && (row.y < top + this.pinnedHeight || row.y + row.height > top + this.viewHeight)) {
      this.scroller.scrollTop = row.y - this.viewHeight / 2;
    }
    this.ask();
  }

  // Input

  listen() {
    const { card, canvas, axis } = this;
    const at = (event) => {
      const frame = canvas.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    card.listen(this.scroller, "scroll", () => this.ask());
    card.listen(card.model, "change:window", () => this.follow());
    card.endings.push(() => clearTimeout(this.sending));
    const wheel = (event) => {
      const isMine = event.ctrlKey || event.metaKey || document.activeElement === canvas || this.root().activeElement === canvas;
      if (!isMine) return; // the page scrolls
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) this.pan(event.deltaX || event.deltaY);
      else this.zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY)) * 0.002), at(event)[0]);
    };
    card.listen(canvas, "wheel", wheel, { passive: false });
    card.listen(axis, "wheel", wheel, { passive: false });
    let held = null;
    const fingers = new Map(); // where each is
    const spread = () => {
      const [one, other] = [...fingers.values()];
      return [(one + other) / 2, Math.max(Math.abs(one - other), 20)];
    };
    const press = (isPan) => (event) => {
      if (event.button > 1) return;
      const [x, y] = at(event);
      const isTouch = event.pointerType === "touch";
      if (isTouch) fingers.set(event.pointerId, x);
      held = { x, y, last: x, isPan: isPan || isTouch || event.shiftKey || event.button === 1, isMoved: fingers.size > 1 };
      event.currentTarget.setPointerCapture(event.pointerId);
    };
    const move = (event) => {
      const [x, y] = at(event);
      if (fingers.size === 2 && fingers.has(event.pointerId)) {
        const [middle, apart] = spread();
        fingers.set(event.pointerId, x);
        const [to, now] = spread();
        this.zoom(apart / now, middle);
        this.pan(middle - to);
        return;
      }
      if (!held) {
        if (event.currentTarget === canvas) this.hover(x, y, event);
        this.pointed = x;
        return;
      }
      held.isMoved ||= Math.abs(x - held.x) > 3;
      if (!held.isMoved) return;
      card.hush();
      if (held.isPan) {
        this.pan(held.last - x);
        held.last = x;
      } else {
        this.brush = [held.x, x].sort((one, other) => one - other).map((each) => Math.min(Math.max(each, this.gutter), this.gutter + this.room));
        this.ask();
      }
    };
    const release = (event) => {
      fingers.delete(event.pointerId);
      if (!held) return;
      if (fingers.size) {
        // The other finger goes on from where it is.
        held.last = [...fingers.values()][0];
        return;
      }
      const { isMoved } = held;
      held = null;
      const brush = this.brush;
      this.brush = null;
      if (brush && event.type === "pointerup" && brush[1] - brush[0] > 3) {
        const [from, to] = brush.map((each) => this.time(each));
        this.mark([from, to]);
        const margin = (to - from) * 0.04; // its edges stay in sight
        this.show(from - margin, to + margin);
      } else if (!isMoved && event.type === "pointerup" && event.currentTarget === canvas) {
        const [x, y] = at(event);
        const row = x < this.gutter - 2 && this.rowAt(y);
        if (row) this.scene.pin(row);
        else this.choose(this.find(x, y));
      }
      this.ask();
    };
    for (const [target, isPan] of [[canvas, false], [axis, true]]) {
      card.listen(target, "pointerdown", press(isPan));
      card.listen(target, "pointermove", move);
      card.listen(target, "pointerup", release);
      card.listen(target, "pointercancel", release);
      card.listen(target, "dblclick", () => this.reset());
    }
    card.listen(canvas, "pointerleave", () => {
      this.pointed = undefined;
      this.hovered = -1;
      this.pickedPoint ? this.tellPicked() : card.hush();
      this.ask();
    });
  }

  root() {
    return this.canvas.getRootNode();
  }

  /** Moves to the next bar in the row of the picked one. */
  step(by) {
    const row = (this.picked >= 0 && this.scene.rowWith(this.picked)) || this.shown.find((each) => each.bars);
    if (!row?.bars.indices.length) return;
    let at = by > 0 ? 0 : row.bars.indices.length - 1;
    if (this.picked >= 0) at = row.bars.indices.indexOf(this.picked) + by;
    else at = Math.min(lowerBound(row.bars.starts, this.span[0]), row.bars.indices.length - 1);
    const slice = row.bars.indices[Math.min(Math.max(at, 0), row.bars.indices.length - 1)];
    this.reveal(slice);
    this.choose(slice);
  }

  /** Whether there is something to let go. */
  get isHeld() {
    return this.picked >= 0 || Boolean(this.brushedRange);
  }

  letGo() {
    if (this.brushedRange) this.mark(null);
    this.choose(-1);
  }

  choose(slice) {
    this.picked = slice;
    this.pickedPoint = slice >= 0;
    this.scene.pick(slice);
    this.draw();
    if (slice >= 0) this.tellPicked();
    else this.card.hush();
  }

  tellPicked() {
    const slice = this.picked;
    const row = slice >= 0 && this.scene.rowWith(slice);
    if (!row) return;
    const frame = this.canvas.getBoundingClientRect();
    const x = Math.min(Math.max(this.x(this.start[slice] + this.duration[slice] / 2), this.gutter), this.gutter + this.room);
    this.card.tell(this.scene.tell(slice), frame.left + x, frame.top + row.y + row.height - this.scroller.scrollTop - 8);
  }

  rowAt(y) {
    const at = y + this.scroller.scrollTop;
    return this.shown.find((row) => at >= row.y - 1 && at <= row.y + row.height + 1 && !row.isCovered);
  }

  find(x, y) {
    const row = this.rowAt(y);
    if (!row?.bars || x < this.gutter - 2) return -1;
    return barAt(row.bars, this.duration, this.time(x), 3 / this.perUs);
  }

  hover(x, y, event) {
    const row = this.rowAt(y);
    const slice = this.find(x, y);
    if (slice !== this.hovered) {
      this.hovered = slice;
      this.ask();
    }
    this.canvas.style.cursor = slice >= 0 || (row && x < this.gutter) ? "pointer" : x < this.gutter ? "default" : "crosshair";
    if (slice >= 0) this.card.tell(this.scene.tell(slice), event.clientX, event.clientY);
    else if (row && x < this.gutter) this.card.tell([row.name, row.detail, row.isPinned ? "click: no longer at the top" : "click: stays at the top"], event.clientX, event.clientY);
    else if (row?.tellAt && x >= this.gutter) this.card.tell(row.tellAt(this.time(x)), event.clientX, event.clientY);
    else if (this.pickedPoint) this.tellPicked();
    else this.card.hush();
  }

  // Drawing

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      if (this.canvas.isConnected) this.draw();
    });
  }

  draw() {
    if (!this.width) return;
    const began = performance.now();
    const context = this.context;
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.width, this.viewHeight);
    this.drawn = this.labelled = 0;
    const top = this.scroller.scrollTop;
    for (const row of this.shown) {
      if (row.isPinned) row.y = row.top + top;
      row.isCovered = !row.isPinned && this.pinnedHeight > 0 && row.y < top + this.pinnedHeight;
    }
    const inSight = this.shown.filter((row) => row.y + row.height > top && row.y < top + this.viewHeight);
    const numBars = inSight.reduce((sum, { bars }) => sum + (bars ? visibleIn(bars, ...this.span).reduce((first, end) => end - first) : 0), 0);
    this.isCrowded = numBars > CROWDED;
    this.writings = this.isCrowded ? new Map() : this.written(inSight);
    context.translate(0, -top);
    const ticks = ticksOf(...this.span, Math.max(2, Math.floor(this.room / 90))).map(([at, text]) => [at, this.scene.head.in_calls ? this.scene.time(at) : text]);
    const within = (x, y, width, height, paint) => {
      context.save();
      context.beginPath();
      context.rect(x, top + y, width, height);
      context.clip();
      paint();
      context.restore();
    };
    this.tellPart();
    this.spelt = new Set(); // the signs of a legend that labels have
    for (const [isPinned, from, to] of [[false, this.pinnedHeight, this.viewHeight], [true, 0, this.pinnedHeight]]) {
      const rows = inSight.filter((row) => row.isPinned === isPinned);
      if (!rows.length) continue;
      within(0, from, this.width, to - from, () => this.drawGround(rows, ticks));
      within(this.gutter, from, this.room + 1, to - from, () => {
        for (const row of rows) {
          if (row.bars) this.drawBars(row);
          row.draw?.(this, context, row);
        }
      });
    }
    if (this.pinnedHeight) {
      context.fillStyle = this.paints.faint;
      context.fillRect(0, top + this.pinnedHeight, this.width, 1);
    }
    within(this.gutter, 0, this.room + 1, this.viewHeight, () => this.scene.paintAbove(this, context));
    this.drawPicked(inSight);
    const marked = this.brush ?? this.brushedRange?.map((each) => Math.min(Math.max(this.x(each), this.gutter), this.gutter + this.room));
    if (marked) {
      context.fillStyle = this.paints.accent;
      context.globalAlpha = this.brush ? 0.18 : 0.07;
      context.fillRect(marked[0], top, marked[1] - marked[0], this.viewHeight);
      context.globalAlpha = 1;
      for (const x of marked) context.fillRect(x - 0.5, top, 1, this.viewHeight);
    }
    this.drawAxis(ticks);
    this.scene.tellSigns(this.spelt);
    const data = this.card.root.dataset;
    data.slices = this.start.length;
    data.drawn = this.drawn;
    data.labelled = this.labelled;
    data.from = this.span[0];
    data.to = this.span[1];
    data.drawMs = (performance.now() - began).toFixed(2);
  }

  /** How calls and spans in sight are labelled, by row and name: those that are alike in one way. */
  written(rows) {
    const { scene, duration, perUs } = this;
    const found = new Map();
    for (const row of rows) {
      if (!row.bars || row.height < LEAST_LABELLED) continue;
      const [first, last] = visibleIn(row.bars, ...this.span);
      for (let at = first; at < last; at += 1) {
        const bar = row.bars.indices[at];
        const start = row.bars.starts[at];
        const kind = scene.alikeOf(bar);
        if (!kind || start < this.span[0] || start + duration[bar] > this.span[1]) continue;
        const key = scene.keyOf(bar);
        if (!found.has(key)) found.set(key, { kind, row, bars: [] });
        found.get(key).bars.push(bar);
      }
    }
    const writings = new Map();
    for (const kind of ["call", "span"]) {
      const own = [...found].filter(([, group]) => group.kind === kind);
      const alike = own.map(([key, { row, bars }]) => {
        const widths = bars.map((bar) => duration[bar] * perUs).sort((one, other) => one - other);
        const whole = widths.filter((each) => each * 2 >= widths[widths.length >> 1]); // not parts of calls
        const last = new Map(bars.map((bar) => [scene.columns.name[bar], bar])); // numbers ascend
        const lengths = [];
        for (const bar of last.values()) {
          scene.labels(bar).reverse().forEach((label, form) => (lengths[form] = Math.max(lengths[form] ?? 0, this.measure(label, this.font) / SIZES[0][0])));
        }
        return { key, method: scene.words.nameOf(bars[0]).text, width: whole[Math.floor((whole.length - 1) * (1 - NEARLY_ALL))], height: row.height, lengths };
      });
      writingsOf(alike).forEach((writing, at) => writings.set(alike[at].key, writing));
    }
    return writings;
  }

  /** Writes the label of a bar into it. */
  drawLabel(slice, from, to, y, height) {
    const { context, scene } = this;
    const labels = scene.labels(slice);
    const width = to - from;
    let [shown, size, isTurned] = ["", SIZES[0][0], false];
    if (scene.alikeOf(slice)) {
      const writing = this.writings.get(scene.keyOf(slice));
      const label = writing && labels.at(-1 - writing.form);
      if (label && fitsOn(writing, this.measure(label, this.font) / size, width, height)) [shown, size, isTurned] = [label, writing.size, writing.isTurned];
    } else {
      shown = width > LEAST_LABELLED ? labelOf(labels, width - LABEL_ROOM, (each) => this.measure(each, this.font)) : "";
    }
    if (!shown) return;
    context.font = `${size}px ${this.family}`;
    context.save();
    context.translate((from + to) / 2, y + height / 2 + 0.5);
    if (isTurned) context.rotate(-Math.PI / 2);
    if (!this.fills[this.look[slice]]) context.strokeText(shown, 0, 0); // a hatch ends around it
    context.fillText(shown, 0, 0);
    context.restore();
    this.labelled += 1;
    const { initial, call, batch } = scene.words.nameOf(slice);
    if (scene.alikeOf(slice) === "call" && (call ?? batch) !== null) this.spelt.add(NUMBER);
    if (initial && shown.startsWith(initial) && Number.isInteger(Number(shown.slice(initial.length)))) this.spelt.add(initial);
  }

  drawGround(rows, ticks) {
    const context = this.context;
    for (const row of this.shown) {
      // The node of the cluster that the lanes below are on; its lane may be out of sight.
      if (!row.heading) continue;
      const line = Math.round(row.y - 5);
      context.fillStyle = this.paints.grid;
      context.fillRect(0, line, this.gutter + this.room, 1);
      context.fillStyle = this.paints.faint;
      context.font = this.boldFont;
      context.textAlign = "left";
      context.textBaseline = "alphabetic";
      context.fillText(row.heading, 0, line - 5);
    }
    // Outside the range nothing is known: that is not idle.
    const [left, right] = this.range.map((each) => Math.min(Math.max(this.x(each), this.gutter), this.gutter + this.room));
    this.card.root.dataset.known = Math.round(right - left);
    for (const row of rows) {
      if (!row.isBare) {
        context.fillStyle = this.paints.lane;
        context.fillRect(left, row.y, right - left, row.height);
      }
      if (row.isHatched) {
        context.fillStyle = this.idleHatch;
        context.fillRect(left, row.y, right - left, row.height);
      }
      context.textBaseline = "middle";
      const room = this.gutter - 12 - (row.sub && this.subWidth ? this.subWidth + 12 : 0);
      const middle = row.y + row.height / 2;
      if (row.label && row.isNamed) {
        const font = row.isLane ? this.font : this.boldFont;
        context.fillStyle = row.isLane ? this.paints.faint : this.paints.text;
        const left = (row.isLane ? INDENT : 0) + (row.isPinned ? PIN_WIDTH : 0);
        const shown = shorten(row.label, Math.max(room - left, 24), (text) => this.measure(text, font));
        context.font = font;
        context.textAlign = "left";
        context.fillText(shown, left, middle + 0.5);
        if (row.isPinned) this.drawPin(left - PIN_WIDTH / 2 - 1, middle);
      }
      if (row.note && row.isNamed) {
        context.fillStyle = this.paints.text;
        context.font = this.boldFont;
        context.textAlign = "right";
        context.fillText(row.note, this.width - 2, middle + 0.5);
      }
      if (row.sub && this.subWidth && row.height >= 8) {
        context.fillStyle = this.paints.faint;
        context.font = this.font;
        context.textAlign = "right";
        context.fillText(row.sub, this.gutter - 9, row.y + row.height / 2 + 0.5);
      }
    }
    const top = this.scroller.scrollTop;
    const outside = left - this.gutter;
    if (this.scene.outside && outside > 24) {
      context.fillStyle = this.paints.faint;
      context.font = this.font;
      context.textAlign = "center";
      context.textBaseline = "middle";
      const shown = shorten(this.scene.outside, outside - 12, (text) => this.measure(text, this.font));
      context.fillText(shown, this.gutter + outside / 2, top + this.viewHeight / 2);
    }
    context.fillStyle = this.paints.grid;
    for (const [at] of ticks) context.fillRect(Math.round(this.x(at)), top, 1, this.viewHeight);
  }

  drawPin(x, y) {
    const { context } = this;
    context.fillStyle = this.paints.accent;
    context.fillRect(x - 3, y - 5, 6, 2);
    context.fillRect(x - 2, y - 3, 4, 4);
    context.fillRect(x - 4, y + 1, 8, 1.5);
    context.fillRect(x - 0.6, y + 2, 1.2, 4);
  }

  drawBars(row) {
    const { context, span, perUs, duration, look, scene } = this;
    const { sums } = scene.head;
    const until = sums?.until_us ?? 0; // there are no sums from then on
    const toBins = (times) => [Math.floor(times[0] / sums.bin_us), Math.ceil(times[1] / sums.bin_us)].map((each) => each * sums.bin_us);
    const { indices, starts } = row.bars;
    const [first, last] = visibleIn(row.bars, ...(span[0] < until ? toBins(span) : span));
    const left = this.gutter - span[0] * perUs;
    const { y } = row;
    const { height } = row;
    const count = this.looks.length;
    const finest = NARROW[scene.head.view] ?? LEAST_BAR;
    const column = Math.floor(finest) * (this.isCrowded ? 2 : 1);
    const acc = (this.acc ??= new Float64Array(2 * count)); // lit, then faded
    const wide = [];
    let now = -1; // columns are those of time, so that they do not change while it is panned
    let from = 0;
    let to = 0;
    let size = column; // its width: of sums, at least that of the time that they are of
    let most = -1; // the largest sum
    const isPlain = scene.isPlain;
    const flush = () => {
      if (to <= from) return;
      const [lit, sum] = litOf(acc);
      const whole = Math.max(2, Math.min(1, (sum * perUs) / size) * height);
      // Whole pixels, so that there are no seams between columns.
      from = Math.round(from * this.scale) / this.scale;
      to = Math.max(Math.round(to * this.scale) / this.scale, from + 1) - (size > 12 && most >= 0 ? 1 : 0);
      // The highlighted share is below, high enough to be visible. The rest is faded.
      const below = lit && lit < sum ? Math.min(Math.max((whole * lit) / sum, 2), whole) : lit ? whole : 0;
      let at = y + height;
      for (let slot = 0; slot < 2 * count; slot += 1) {
        if (!acc[slot]) continue;
        const isLit = slot < count;
        const part = isLit ? (below * acc[slot]) / lit : ((whole - below) * acc[slot]) / (sum - lit);
        context.globalAlpha = isLit ? 1 : FADED;
        context.fillStyle = this.fills[slot % count] ?? (this.isCrowded ? this.waitPlain : this.waitHatch);
        if (part > LEAST_PART) context.fillRect(from, at - part, to - from, part);
        at -= part;
        acc[slot] = 0;
        if (most < 0 || size < 30 || part < 11 || slot % count !== look[most]) continue;
        const text = labelOf(scene.labels(most), size - 8, (each) => this.measure(each, this.font));
        context.font = this.font;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillStyle = isLit && this.fills[slot % count] ? this.inks[slot % count] : this.paints.faint;
        context.globalAlpha = 1;
        context.fillText(text, (from + to) / 2, at + part / 2 + 0.5);
      }
      from = to = 0;
      most = -1;
      this.drawn += 1;
    };
    for (let at = first; at < last; at += 1) {
      const slice = indices[at];
      const x = starts[at] * perUs;
      const width = duration[slice] * perUs;
      const bin = starts[at] < until && scene.isSum(slice) ? sums.bin_us * perUs : 0;
      if (width >= finest && !bin) {
        wide.push(at);
        continue;
      }
      const own = Math.max(column, bin);
      const here = Math.floor(x / own + 1e-6);
      if (here !== now || own !== size) {
        flush();
        now = here;
        size = own;
        from = bin > column ? here * bin + left : x + left;
        to = bin > column ? from + bin : from + 1;
      }
      if (bin && (most < 0 || duration[slice] > duration[most])) most = slice;
      if (bin <= column) to = Math.max(to, x + left + width);
      const isLit = isPlain || scene.isLit(slice);
      const bucket = look[slice];
      acc[bucket + (isLit ? 0 : count)] += Math.max(duration[slice], 1e-3) * this.looks[bucket].height;
    }
    flush();
    context.font = this.font;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const at of wide) {
      const x = left + starts[at] * perUs;
      const end = x + duration[indices[at]] * perUs;
      this.drawBar(indices[at], Math.max(x, this.gutter - 4), Math.min(end, this.gutter + this.room + 4), y, height);
    }
    context.globalAlpha = 1;
  }

  /** Marks the picked bar, which may be too narrow to be visible. */
  drawPicked(rows) {
    const { context, picked } = this;
    const own = picked >= 0 && this.scene.rowWith(picked);
    const row = own && rows.includes(own) && !own.isCovered ? own : null;
    this.card.root.dataset.marked = "";
    if (!row) return;
    const x = this.x(this.start[picked]);
    const width = this.duration[picked] * this.perUs;
    if (x + width < this.gutter || x > this.gutter + this.room) return;
    this.card.root.dataset.marked = "true";
    if (width >= CLOSE) return; // has an outline
    const middle = x + width / 2;
    context.globalAlpha = 1;
    context.fillStyle = this.paints.text;
    context.strokeStyle = this.paints.ground;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(middle, row.y + 5);
    context.lineTo(middle - 5, row.y - 4);
    context.lineTo(middle + 5, row.y - 4);
    context.closePath();
    context.stroke();
    context.fill();
    context.fillRect(middle - 0.75, row.y, 1.5, row.height);
  }

  drawBar(slice, from, to, y, height) {
    const { context, scene } = this;
    const bucket = this.look[slice];
    const colour = this.fills[bucket];
    const share = this.looks[bucket].height;
    if (share < 1) {
      y += (height * (1 - share)) / 2;
      height *= share;
    }
    const width = to - from;
    context.globalAlpha = scene.isLit(slice) ? 1 : FADED;
    context.fillStyle = colour ?? this.waitHatch;
    // A thin gap between neighbours.
    const gap = width > 4 ? 0.5 : 0;
    if (width > 6) {
      context.beginPath();
      context.roundRect(from + gap, y, width - 2 * gap, height, Math.min(2.5, height / 4));
      context.fill();
    } else {
      context.fillRect(from + gap, y, width - 2 * gap, height);
    }
    if (this.frames[bucket] && width > 3) {
      context.strokeStyle = this.looks[bucket].colour;
      context.lineWidth = 1;
      context.strokeRect(from + gap + 0.5, y + 0.5, width - 2 * gap - 1, height - 1);
    }
    this.drawn += 1;
    if (slice === this.picked || slice === this.hovered || scene.isMarked(slice)) {
      context.globalAlpha = 1;
      context.strokeStyle = slice === this.hovered && slice !== this.picked ? this.paints.accent : this.paints.text;
      context.lineWidth = 1.75;
      context.strokeRect(from, y - 0.5, Math.max(width, 2), height + 1);
    }
    if (height >= LEAST_LABELLED) {
      // Text on a faded bar has the colour of text on the background.
      context.fillStyle = context.globalAlpha < 0.5 || !colour ? this.paints.faint : this.inks[bucket];
      context.strokeStyle = this.paints.ground;
      context.lineWidth = 3;
      context.globalAlpha = 1;
      // Of a bar that goes on outside, what is in sight has to have room for it.
      this.drawLabel(slice, Math.max(from, this.gutter), Math.min(to, this.gutter + this.room), y, height);
    }
  }

  drawAxis(ticks) {
    const context = this.axis.getContext("2d");
    context.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    context.clearRect(0, 0, this.width, AXIS_HEIGHT);
    context.font = this.font;
    context.fillStyle = this.paints.faint;
    context.textBaseline = "middle";
    let end = -Infinity;
    for (const [at, text] of ticks) {
      const width = this.measure(text, this.font);
      const middle = Math.min(Math.max(this.x(at), this.gutter + width / 2 - 8), this.width - this.noteRoom - width / 2 - 1);
      if (middle - width / 2 < end + 10) continue;
      context.textAlign = "center";
      context.fillText(text, middle, AXIS_HEIGHT / 2 + 1);
      end = middle + width / 2;
    }
    if (this.noteRoom) {
      context.textAlign = "right";
      context.fillText(this.scene.head.noted, this.width - 2, AXIS_HEIGHT / 2 + 1);
    }
    if (this.gutter > 70) {
      context.textAlign = "left";
      const text = `${this.scene.time(this.span[1] - this.span[0])} shown`;
      if (this.measure(text, this.font) < this.gutter - 24) context.fillText(text, 0, AXIS_HEIGHT / 2 + 1);
    }
  }
}
