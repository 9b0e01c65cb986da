// SPDX-License-Identifier: Apache-2.0
// Paints a scene (see rcg/views/scene.py): bars in rows over time, what joins them, and what is said
// about them, by the templates of the scene. Widgets and saved pages paint the same payload.

import { button, bytesText, countText, element, isTouched, lowerBound, renderer, speedText, timeText } from "./common.js";
import { Lanes, rowOf } from "./lanes.js";
import { Filter, Keys, Search, Stepper, SumsTable, sumsOf } from "./panel.js";

const COMMUNICATION = 1;
const SERIALIZATION = 2;
const WAITING = 3;
const NOBODY = 65535;
const [VALUE, WIRE, EXCHANGE, COLLECTIVE] = [0, 1, 2, 3];
const BETTER = { [WIRE]: "within1", [EXCHANGE]: "rate2", [COLLECTIVE]: "rate3" };
const LINK_ROOM = 9; // pixels of width for each link that is drawn
const MAX_LINKS = 4; // in a tooltip
const QUEUE_LANES = 16; // processes: with more, the queues are shown on request
const MAX_CAUSES = 8; // arrows of the picked bar
const MAX_BEFORE = 400; // bars that they are looked for in
const PATH_ROOM = 4; // pixels for each step of the path from row to row
const MAX_GB_PER_S = 100; // a write that seems faster forwarded its block
const TRAITS = ["selected_process", "selected_op", "selected_execution"];
const PARTS = { queue: ["queues", "show how many values are on their way to each process"], predicted: ["predicted", "show what was predicted"], ideal: ["ideal", "show the ideal"] };
const BELOW = new Set(["predicted", "ideal"]); // parts whose rows need no name

/** A template with its values; "" if one of them is not known. */
export function filled(template, values) {
  let isWhole = true;
  const text = template.replace(/\{(\w+)\}/g, (_, name) => {
    isWhole &&= values[name] !== undefined;
    return values[name];
  });
  return isWhole ? text : "";
}

/** For each bar, the links that it is an end of. */
export function linksOf(first, ends, count) {
  const offsets = new Int32Array(count + 1);
  for (const bar of ends) offsets[bar + 1] += 1;
  for (let bar = 0; bar < count; bar += 1) offsets[bar + 1] += offsets[bar];
  const found = new Int32Array(ends.length);
  const next = offsets.slice();
  for (let link = 0; link + 1 < first.length; link += 1) {
    for (let at = first[link]; at < first[link + 1]; at += 1) found[next[ends[at]]++] = link;
  }
  return (bar) => found.subarray(offsets[bar], offsets[bar + 1]);
}

/** What is said about the bars of a payload, as in rcg/views/scene.py. */
export class Words {
  constructor({ head, columns }) {
    Object.assign(this, { head, columns });
    this.count = columns.start.length;
    this.links = linksOf(columns.link_first, columns.link_ends, this.count);
    this.time = head.in_calls ? (us) => this.inCalls(us) : timeText;
  }

  inCalls(us) {
    const number = countText(us / 1e3);
    return `${number} call${number === "1" ? "" : "s"}`;
  }

  ends(link) {
    const { link_first: first, link_ends: ends } = this.columns;
    return ends.subarray(first[link], first[link + 1]);
  }

  nameOf(bar) {
    return this.head.names[this.columns.name[bar]];
  }

  rowOf(bar) {
    return this.head.rows[this.columns.row[bar]];
  }

  isSum(bar) {
    return this.columns.execution[bar] < 0;
  }

  values(bar) {
    const { start, duration, kind, peer, execution, bytes, count, shortest, longest } = this.columns;
    const { text, role, group, call, initial, batch } = this.nameOf(bar);
    const row = this.rowOf(bar);
    const values = {
      row: row.label, name: text, initial, execution: `${execution[bar]}`, number: `${call ?? execution[bar]}`,
      kind: this.head.kinds[kind[bar]], took: this.time(duration[bar]), at: this.time(start[bar]),
    };
    if (group) values.short = text.replace(` ${group}`, "");
    if (call !== null) values.call = `${call}`;
    if (batch !== null) values.batch = `${batch}`;
    if (peer[bar] !== NOBODY) values.peer = this.head.rows[peer[bar]].label;
    const isMoving = kind[bar] === COMMUNICATION;
    if (bytes[bar] && !(group && isMoving)) { // an exchange says its bytes in its link
      values.bytes = bytesText(bytes[bar]);
      // Reading copies nothing, and a bar of a lane may be a part of what moved these bytes.
      const isWhole = isMoving && (role === "write" || role === "reference") && !row.under;
      const speed = bytes[bar] / duration[bar] / 1e3;
      if (isWhole && speed <= MAX_GB_PER_S) values.rate = speedText(speed);
    }
    if (row.members.length) Object.assign(values, { count: `${count[bar]}`, shortest: this.time(shortest[bar]), longest: this.time(longest[bar]) });
    return values;
  }

  /** The possible labels of a bar, the preferred one first. */
  labels(bar) {
    const { labels } = this.head;
    const { text, role, call, initial, batch } = this.nameOf(bar);
    if (this.isSum(bar)) return [`${countText(this.columns.count[bar])} × ${text}`, `${countText(this.columns.count[bar])} ×`];
    let key = role in labels ? role : "other";
    if (batch !== null) key = "batch";
    else if (call !== null) key = initial ? "numbered" : "call";
    if (this.columns.kind[bar] === WAITING) key = "waiting";
    else if (this.columns.kind[bar] === SERIALIZATION) key = "serialization";
    const values = this.values(bar);
    return labels[key].map((each) => filled(each, values)).filter(Boolean);
  }

  /** What is said about a bar, line by line. */
  hover(bar) {
    const { words, slots, groups } = this.head;
    const { role, channel, group } = this.nameOf(bar);
    const values = this.values(bar);
    const say = (...names) => names.map((each) => filled(words[each], values)).find(Boolean) ?? "";
    if (role === "share") return [say("op")];
    const lines = [say(this.columns.kind[bar] === WAITING ? "waits" : role === "call" ? "call" : "op")];
    if (role !== "reference") lines.push(say("numbered", "execution"));
    lines.push(say("batch"), say("took"), say("peer"), say("rate", "bytes"), say("median"));
    const links = [...this.links(this.movingBar(bar))];
    lines.push(...links.slice(0, MAX_LINKS).map((each) => this.linkText(each)));
    if (links.length > MAX_LINKS) lines.push(filled(words.more, { count: `${links.length - MAX_LINKS}` }));
    if (links.length && !group && channel in slots) lines.push(filled(words.slots, { channel, slots: `${slots[channel]}` }));
    const rank = group ? groups[group].processes.indexOf(this.rowOf(bar).process) : -1;
    if (rank >= 0) lines.push(filled(words.rank, { group, library: groups[group].library, rank: `${rank}`, ranks: `${groups[group].processes.length}` }));
    return lines.filter(Boolean);
  }

  linkText(link) {
    const { link_kind: kinds, link_begin: begin, link_until: until, bytes } = this.columns;
    const kind = kinds[link];
    const ends = this.ends(link);
    const took = until[link] - begin[link];
    const [one, other] = [this.rowOf(ends[0]), this.rowOf(ends.at(-1))];
    const values = { source: one.label, target: other.label, took: this.time(took), ranks: `${ends.length}` };
    const size = kind === COLLECTIVE ? Math.max(...Array.from(ends, (bar) => bytes[bar])) : bytes[ends[0]];
    if (size && took > 0 && !this.head.in_calls) Object.assign(values, { bytes: bytesText(size), rate: speedText(size / took / 1e3) });
    const error = one.error_us + other.error_us;
    if (error) values.error = timeText(error);
    const better = BETTER[kind];
    return (better && filled(this.head.words[better], values)) || filled(this.head.words[`link${kind}`], values);
  }

  /** The bar of the same event that has links, if another one has them. */
  movingBar(bar) {
    const { row, name, execution, op } = this.columns;
    if (this.links(bar).length || op[bar] === NOBODY) return bar;
    const isSame = (near) => near >= 0 && near < this.count && row[near] === row[bar] && name[near] === name[bar] && execution[near] === execution[bar];
    for (const by of [1, -1]) {
      for (let near = bar + by; isSame(near); near += by) if (this.links(near).length) return near;
    }
    return bar;
  }
}

class Scene {
  constructor(card, payload) {
    this.card = card;
    this.model = card.model;
    this.words = new Words(payload);
    this.head = payload.head;
    this.columns = payload.columns;
    const { head, columns } = this;
    this.time = this.words.time;
    const { count, total, longest, duration } = columns;
    this.isSum = (bar) => this.words.isSum(bar);
    this.isMedian = (bar) => head.rows[columns.row[bar]].members.length > 0;
    this.countOf = (bar) => (this.isSum(bar) ? count[bar] : 1);
    this.weightOf = (bar) => (this.isSum(bar) && duration[bar] ? total[bar] / duration[bar] : 1);
    this.longestOf = (bar) => (this.isSum(bar) ? longest[bar] : duration[bar]);
    const calls = Uint8Array.from(head.names, ({ role }) => (role === "call" ? 1 : 0));
    this.isCall = (bar) => calls[columns.name[bar]] === 1;
    // Calls, each with its number, and spans are labelled like those in their row that are alike.
    const kinds = head.names.map(({ role }) => (role === "call" || role === "span" ? role : ""));
    this.alikeOf = (bar) => (columns.kind[bar] === WAITING || columns.kind[bar] === SERIALIZATION || this.isSum(bar) ? "" : kinds[columns.name[bar]]);
    const texts = [...new Set(head.names.map(({ text }) => text))];
    const textOf = head.names.map(({ text }) => texts.indexOf(text));
    this.keyOf = (bar) => columns.row[bar] * texts.length + textOf[columns.name[bar]];
    this.chosen = new Set(); // the bars that the picked one is linked to
    this.causes = []; // the picked bar, the one that it waited for, and so on
    this.isPathShown = true;
    this.isOwn = false;
    this.letters = [];
    this.takeSelection();
    card.root.classList.add("rcg-scene", `rcg-${head.view}`);
    this.makeRows();
    this.search = new Search(this);
    this.stepper = new Stepper(this);
    const { first, last } = this.stepper;
    this.outside = first > 0 ? `here are executions ${countText(first)} to ${countText(last)}` : "";
    this.labels = (bar) => this.words.labels(bar);
    this.tell = (bar) => (this.isSum(bar) ? this.tellSums(bar) : this.words.hover(bar));
    this.isMarked = (bar) => this.chosen.has(bar) || bar === this.causes[1];
    this.lanes = new Lanes(card, this);
    this.table = new SumsTable(this);
    this.filter = new Filter(this);
    this.addControls();
    for (const trait of TRAITS) card.listen(this.model, `change:${trait}`, () => this.follow());
    this.filter.apply();
    this.stepper.tell();
  }

  // Rows

  makeRows() {
    const { head, columns } = this;
    const counts = new Int32Array(head.rows.length + 1);
    for (const row of columns.row) counts[row + 1] += 1;
    for (let row = 0; row < head.rows.length; row += 1) counts[row + 1] += counts[row];
    this.rows = head.rows.map((each, lane) => {
      const isFirst = each.part === "" || head.rows[lane - 1]?.process !== each.process;
      const indices = Int32Array.from({ length: counts[lane + 1] - counts[lane] }, (_, at) => counts[lane] + at); // sorted by row
      const sub = each.part && head.rows[lane - 1]?.part === each.part ? "" : BELOW.has(each.part) ? "" : each.part;
      return {
        ...each, lane, isFirst, name: each.label, sub, isLane: Boolean(each.under),
        label: isFirst ? each.short || each.label : "",
        gap: isFirst && lane && !each.under ? 10 : 3,
        isPinned: false, isHatched: each.has_ground, isBare: each.part === "queue",
        bars: each.part === "queue" ? null : rowOf(indices, columns.start, columns.duration),
      };
    });
    let first = null;
    this.standing = new Map(); // the row that stands for each
    for (const row of this.rows) {
      if (row.isFirst) first = row;
      row.head = first.lane;
      for (const each of row.members) this.standing.set(each, row);
    }
    let at = 0;
    for (const steps of head.steps) {
      const row = this.rows[steps.row];
      const times = columns.step_at.subarray(at, at + steps.count);
      const depths = columns.step_depth.subarray(at, at + steps.count);
      at += steps.count;
      row.detail = `${head.queued}; there is room for ${steps.slots}`;
      row.tellAt = (time) => {
        const depth = depths[Math.max(lowerBound(times, time + 1e-9) - 1, 0)];
        return [`${row.name}: ${head.sums && time < head.sums.until_us ? "at most " : ""}${countText(depth)} in the queue`, `at most ${steps.most}, room for ${steps.slots}`];
      };
      row.draw = (lanes, context) => drawQueue(lanes, context, row, times, depths, Math.max(head.depth, 1));
    }
  }

  /** The shown row of a bar: its own, or one that stands for it. */
  rowWith(bar) {
    const row = this.rows[this.columns.row[bar]];
    if (!row.hidden) return row;
    const other = this.standing.get(row.lane);
    return other && !other.hidden ? other : undefined;
  }

  /** The same, if no pinned row covers it. */
  rowInSight(bar) {
    const row = this.rowWith(bar);
    return row?.isCovered ? undefined : row;
  }

  /** Keeps the rows of a process at the top, or lets them go. */
  pin(row) {
    if (!row) return;
    const { process, isPinned } = row;
    for (const each of this.rows) if (each.process === process || each.under === process) each.isPinned = !isPinned;
    this.filter.apply();
  }

  // Selection

  takeSelection() {
    const [process, op, execution] = TRAITS.map((each) => this.model.get(each));
    this.selected = { process, op, execution };
  }

  select(values) {
    this.isOwn = true;
    this.card.set(values);
    this.isOwn = false;
    this.takeSelection();
    this.stepper.tell();
  }

  pick(bar) {
    const { row, op, execution } = this.columns;
    this.chosen = this.linkedTo(bar);
    this.causes = this.causesOf(bar);
    this.card.root.dataset.ends = this.chosen.size;
    this.select({
      selected_process: bar < 0 ? null : this.head.rows[row[bar]].process,
      selected_op: bar < 0 || op[bar] === NOBODY ? null : op[bar],
      selected_execution: bar < 0 || this.isSum(bar) ? null : execution[bar],
    });
  }

  /** Another view changed the selection. */
  follow() {
    if (this.isOwn) return;
    const before = JSON.stringify(this.selected);
    const turn = this.selected.execution;
    this.takeSelection();
    if (JSON.stringify(this.selected) === before) return;
    this.letGo();
    this.stepper.tell();
    // The other view may show it already, in the window that it shares.
    if (this.selected.execution !== turn) this.stepper.goTo(false);
  }

  letGo() {
    this.chosen = new Set();
    this.causes = [];
    this.lanes.picked = -1;
    this.lanes.pickedPoint = false;
    this.card.hush();
    this.lanes.ask();
  }

  /** Whether all bars are lit. */
  get isPlain() {
    return !this.search.hits && this.selected.execution === null && this.selected.process === null;
  }

  isLit(bar) {
    if (this.search.hits) return this.search.isHit(bar);
    const { process, op, execution } = this.selected;
    // An execution is lit in all rows, or the micro-batch that was clicked; without one, a process or an op in all executions.
    const batch = this.batchOf(this.lanes.picked);
    if (batch !== null && this.batchOf(bar) !== batch) return false;
    const isOfOne = this.head.view === "pipeline" && !this.stepper.extents.has(execution); // which is another one
    if (execution !== null && !isOfOne) return this.columns.execution[bar] === execution;
    if (process === null) return true;
    const { process: own, members } = this.head.rows[this.columns.row[bar]];
    const isOf = own === process || members.some((each) => this.head.rows[each].process === process);
    return isOf && (op === null || this.columns.op[bar] === op);
  }

  batchOf(bar) {
    return bar < 0 ? null : this.words.nameOf(bar).batch;
  }

  linkedTo(bar) {
    if (bar < 0) return new Set();
    const links = this.words.links(this.words.movingBar(bar));
    if (!links.length) return new Set();
    const found = new Set([bar]);
    for (const link of links) {
      for (const end of this.words.ends(link)) found.add(end);
      // All that a value goes to.
      if (this.columns.link_kind[link] !== COLLECTIVE) for (const other of this.words.links(this.words.ends(link)[0])) for (const end of this.words.ends(other)) found.add(end);
    }
    return found;
  }

  /** A bar, the one that it waited for, the one that this waited for, and so on. */
  causesOf(bar) {
    const { cause } = this.columns;
    const found = [];
    for (let at = bar; at >= 0 && found.length < MAX_BEFORE; at = cause[at] ?? -1) found.push(at);
    return found;
  }

  goToCause() {
    if (this.causes.length < 2) return;
    const [, bar] = this.causes;
    this.lanes.reveal(bar);
    this.lanes.choose(bar);
  }

  /** Shows what is selected: a range, a bar, an execution; else all. */
  fit() {
    const { picked, brushedRange, start, duration } = this.lanes;
    if (brushedRange) this.lanes.show(...brushedRange);
    else if (picked >= 0) this.lanes.show(start[picked] - duration[picked] / 2, start[picked] + 1.5 * duration[picked]);
    else if (this.stepper.current !== null) this.stepper.goTo();
    else this.lanes.reset();
  }

  /** The sums of a bin, those that take longest first. */
  tellSums(bar) {
    const { head, columns } = this;
    const length = head.sums.bin_us;
    const from = Math.floor(columns.start[bar] / length + 1e-6) * length;
    const row = this.rows[columns.row[bar]];
    const sums = sumsOf([row], columns.start, columns.duration, (each) => (this.isSum(each) ? each : -1), from, from + length, this.countOf, this.longestOf, this.weightOf).filter((each) => this.isSum(each.slice));
    return [
      `${row.name}: sums of ${timeText(length)} at ${timeText(from)}`,
      ...sums.slice(0, 6).map(({ slice, count, total, longest }) => `${this.words.nameOf(slice).text}, ${head.kinds[columns.kind[slice]]}: ${countText(count)} in ${timeText(total)}, longest ${timeText(longest)}`),
      sums.length > 6 ? `and ${sums.length - 6} more` : "",
    ];
  }

  // Painting

  paintAbove(each, context) {
    if (this.head.sums) this.drawBorder(each, context);
    if (this.isPathShown) this.drawPath(each, context);
    this.drawLinks(each, context);
    this.drawCollectives(each, context);
    this.drawCauses(each, context);
  }

  /** Where the sums end and the single bars begin. */
  drawBorder(each, context) {
    const x = each.x(this.head.sums.until_us);
    if (x < each.gutter || x > each.gutter + each.room) return;
    context.globalAlpha = 1;
    context.fillStyle = each.paints.accent;
    context.fillRect(Math.round(x) - 1, each.scroller.scrollTop, 2, each.viewHeight);
  }

  linkColour(kind) {
    const look = this.head.link_looks[kind];
    return this.card.root.dataset.theme === "dark" ? look.dark : look.light;
  }

  /** The links of some kinds in sight; null if they are too many to tell apart. */
  linksInSight(each, isWanted) {
    const { link_kind: kind, link_begin: begin, link_until: until } = this.columns;
    const found = [];
    for (let link = 0; link < kind.length; link += 1) {
      if (begin[link] > each.span[1] || until[link] < each.span[0] || !isWanted(kind[link], link)) continue;
      found.push(link);
      if (found.length * LINK_ROOM > each.room) return null;
    }
    return found;
  }

  /** Collectives as lines through the rows of their ranks, where the last of them arrived. */
  drawCollectives(each, context) {
    const isChosen = (link) => !this.chosen.size || this.chosen.has(this.words.ends(link)[0]);
    const wanted = this.linksInSight(each, (kind, link) => kind === COLLECTIVE && isChosen(link)) ?? [];
    context.strokeStyle = context.fillStyle = this.linkColour(COLLECTIVE);
    context.lineWidth = 1.5;
    for (const link of wanted) {
      const bars = [...this.words.ends(link)];
      const rows = [...new Set(bars.map((bar) => this.rowInSight(bar)))].filter(Boolean);
      if (rows.length < 2) continue;
      const x = each.x(this.columns.link_begin[link]);
      const middles = rows.map((row) => row.y + row.height / 2);
      context.globalAlpha = this.chosen.size || bars.some((bar) => this.isLit(bar)) ? 1 : 0.1;
      context.beginPath();
      context.moveTo(x, Math.min(...middles));
      context.lineTo(x, Math.max(...middles));
      context.stroke();
      for (const y of middles) {
        context.beginPath();
        context.arc(x, y, 2.6, 0, 7);
        context.fill();
      }
    }
    context.globalAlpha = 1;
    this.card.root.dataset.collectives = wanted.length;
  }

  /** The transfers of the bar that is pointed at, and of the one that is picked; of tensors, all that there is room for. */
  drawLinks(each, context) {
    const pointed = each.hovered >= 0 ? [each.hovered] : [];
    const picked = each.picked >= 0 ? [each.picked] : [];
    const links = new Set();
    for (const bar of [...pointed, ...picked]) {
      for (const link of this.words.links(this.words.movingBar(bar))) {
        for (const other of this.words.links(this.words.ends(link)[0])) if (this.words.ends(other)[0] === this.words.ends(link)[0]) links.add(other);
      }
    }
    const exchanges = this.linksInSight(each, (kind) => kind === EXCHANGE) ?? [];
    for (const link of exchanges) links.add(link);
    const top = each.scroller.scrollTop;
    const { link_kind: kind, link_begin: begin, link_until: until } = this.columns;
    let count = 0;
    for (const link of links) {
      if (kind[link] === COLLECTIVE) continue;
      const [one, other] = [...this.words.ends(link)].map((bar) => this.rowInSight(bar));
      if (!one || !other || one === other || Math.max(one.y, other.y) < top || Math.min(one.y, other.y) > top + each.viewHeight) continue;
      const { dashes } = this.head.link_looks[kind[link]];
      count += 1;
      context.globalAlpha = this.isLit(this.words.ends(link)[0]) ? 1 : 0.15;
      context.lineWidth = kind[link] === EXCHANGE ? 1.4 : 1.75;
      context.strokeStyle = context.fillStyle = this.linkColour(kind[link]);
      context.setLineDash(dashes ? dashes.split(" ").map(Number) : []);
      const [x, y] = joinRows(context, one, other, each.x(begin[link]), each.x(until[link]), kind[link] === EXCHANGE);
      context.setLineDash([]);
      context.beginPath();
      context.arc(x, y, 2, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
    this.card.root.dataset.transfers = count;
  }

  /** Arrows from what the picked bar waited for, and from what that waited for, from row to row. */
  drawCauses(each, context) {
    const { start, duration, kind } = this.columns;
    let count = 0;
    context.strokeStyle = context.fillStyle = each.paints.accent;
    context.lineWidth = 1.75;
    for (let at = 1; at < this.causes.length && count < MAX_CAUSES; at += 1) {
      const [bar, cause] = [this.causes[at - 1], this.causes[at]];
      const [row, other] = [this.rowInSight(bar), this.rowInSight(cause)];
      if (!row || !other || row === other) continue;
      const until = start[bar] + (kind[bar] === WAITING ? duration[bar] : 0);
      const [x, y, way] = joinRows(context, other, row, each.x(Math.min(start[cause] + duration[cause], until)), each.x(until));
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x - 3.5, y - 7 * way);
      context.lineTo(x + 3.5, y - 7 * way);
      context.fill();
      count += 1;
    }
    this.card.root.dataset.causes = count;
  }

  /** The critical path of the selected execution, or of all: a line below the bars that are on it. */
  drawPath(each, context) {
    const { path_row: rows, path_begin: starts, path_end: ends, path_until: until } = this.columns;
    if (!until.length) return;
    const at = Math.max(this.head.paths.indexOf(this.selected.execution), 0);
    const first = lowerBound(ends, each.span[0], at ? until[at - 1] : 0, until[at]);
    const last = lowerBound(starts, each.span[1], first, until[at]);
    const hasSteps = (last - first) * PATH_ROOM < each.room;
    context.globalAlpha = 1;
    context.fillStyle = each.paints.text;
    const drawn = new Float64Array(this.rows.length).fill(-Infinity); // up to where, by row
    const { perUs } = each;
    const left = each.gutter - each.span[0] * perUs;
    let before = null;
    for (let number = first; number < last; number += 1) {
      const x = left + starts[number] * perUs;
      const end = Math.max(left + ends[number] * perUs, x + 1);
      if (!hasSteps && end <= drawn[rows[number]] + 0.5) continue;
      const row = this.rows[rows[number]];
      if (row.hidden || row.isCovered) continue;
      const y = row.y + row.height;
      if (end > drawn[rows[number]] + 0.5) {
        context.fillRect(x, y, end - x, 2);
        drawn[rows[number]] = end;
      }
      if (hasSteps && before !== null) context.fillRect(x - 0.5, Math.min(before, y), 1, Math.abs(y - before) + 2);
      before = y;
    }
    this.card.root.dataset.path = last - first;
  }

  // Controls

  addControls() {
    const { card, head, columns, lanes, filter } = this;
    if (columns.path_row.length) {
      filter.toggle("critical path", "show the critical path: of the selected execution, or of all", true, (isOn) => {
        this.isPathShown = isOn;
        card.root.dataset.path = 0;
      });
    }
    const processes = new Set(head.rows.map((each) => each.process)).size;
    for (const [part, words] of Object.entries(PARTS)) {
      const isThere = part === "queue" ? head.depth > 0 : head.rows.some((each) => each.part === part);
      if (isThere) filter.togglePart(part, ...words, part !== "queue" || processes <= QUEUE_LANES);
      else filter.parts.set(part, false);
    }
    card.controls.append(
      lanes.fitControl(),
      element(
        "span",
        { class: "rcg-zoom" },
        button("−", "zoom out", () => lanes.zoom(1 / 0.6)),
        button("+", "zoom in", () => lanes.zoom(0.6)),
        button("all", "show all", () => {
          lanes.choose(-1);
          lanes.reset();
        }),
      ),
    );
    if (head.sums) {
      const { until_us: until, bin_us: bin, bars } = head.sums;
      const words = `Before ${timeText(until)}, where the line is, each bar is a sum of ${timeText(bin)}: ${countText(bars)} single bars are left out, so that this page stays small and quick. Transfers and critical paths are shown after it.`;
      card.body.prepend(element("p", { class: "rcg-note" }, words));
      card.controls.append(button("single bars", "show the time that has single bars", () => lanes.show(until, head.range[1])));
    }
    this.explain();
  }

  /** Shows what the initials and the numbers are that labels have. */
  tellSigns(used) {
    for (const letter of this.letters) letter.parentElement.hidden = !used.has(letter.textContent);
  }

  explain() {
    const { card, head, columns } = this;
    const seen = new Set(columns.look);
    const entries = new Map(); // one for each title
    head.looks.forEach(({ title, colour, style, share }, look) => {
      if (!seen.has(look) || entries.has(title)) return;
      entries.set(title, style === "outlined" || style === "faint" ? "rcg-outline" : colour ? [colour, share] : "rcg-waiting");
    });
    const links = new Set(columns.link_kind);
    card.explain([
      ...[...entries].map(([title, sign]) => [sign, title]),
      ...head.signs.map(([letter, words]) => [{ letter }, words]),
      ["rcg-idle", head.ground],
      ...(columns.path_row.length ? [["rcg-path-key", head.path_title]] : []),
      ...(links.has(EXCHANGE) || (links.has(VALUE) && head.view === "timeline") ? [["rcg-transfer", "transfer"]] : []),
      ...(links.has(COLLECTIVE) ? [["rcg-meeting", "collective"]] : []),
      ...(head.queue_key ? [["rcg-queue-key", head.queue_key]] : []),
    ]);
    this.letters = [...card.legend.querySelectorAll("b")];
    const found = head.view === "pipeline" ? "a cell: its micro-batch through all stages" : "a bar: its execution and its transfers";
    const hint = isTouched() ? `drag aside: pan · two fingers: zoom · tap ${found}` : `click ${found} · drag: zoom and sum · shift+drag: pan · wheel: zoom (after a click, or with Ctrl) · double click: all`;
    card.legend.append(element("span", { class: "rcg-hint" }, hint));
    new Keys(this);
  }
}

/** Paints a payload into a card. */
export function fillScene(card, payload) {
  new Scene(card, payload);
}

/**
 * The steps of a queue's picture as [from, to, depth], each at least a pixel wide. Narrower steps are
 * joined to a column of pixels with their largest depth, because the fullest state matters. They are
 * not joined to steps that are wide enough on their own.
 */
export function queueSteps(edges, depths) {
  const steps = [];
  let from = edges[0];
  let largest = 0;
  const close = (to) => {
    if (to > from) steps.push([from, to, largest]);
    from = Math.max(from, to);
    largest = 0;
  };
  for (let at = 0; at < depths.length; at += 1) {
    const end = edges[at + 1];
    if (largest && end - edges[at] >= 1) close(Math.min(Math.max(edges[at], from + 1), end));
    largest = Math.max(largest, depths[at]);
    if (end - from >= 1) close(end);
  }
  close(edges[edges.length - 1]);
  return steps;
}

/** Draws a line from a row to another one; returns its end, and 1 if it goes down or -1 if up. */
function joinRows(context, one, other, x, toX, isStraight = false) {
  const way = other.y > one.y ? 1 : -1;
  const [y, toY] = way > 0 ? [one.y + one.height, other.y] : [one.y, other.y + other.height];
  const middle = (y + toY) / 2;
  context.beginPath();
  context.moveTo(x, y);
  if (isStraight) context.lineTo(toX, toY);
  else context.bezierCurveTo(x, middle, toX, middle, toX, toY);
  context.stroke();
  return [toX, toY, way];
}

function drawQueue(lanes, context, row, times, depths, most) {
  const [from, to] = lanes.span;
  const base = row.y + row.height;
  const right = lanes.gutter + lanes.room;
  const first = Math.max(0, lowerBound(times, from) - 1);
  const last = lowerBound(times, to);
  const edges = Array.from(times.subarray(first, last), (time) => Math.min(Math.max(lanes.x(time), lanes.gutter), right));
  edges.push(last < times.length ? Math.min(lanes.x(times[last]), right) : right);
  context.fillStyle = lanes.paints.queue;
  context.globalAlpha = 0.6;
  for (const [x, end, depth] of edges.length > 1 ? queueSteps(edges, depths.subarray(first, last)) : []) {
    const height = depth ? Math.max(1.5, (row.height * depth) / most) : 0;
    context.fillRect(x, base - height, end - x, height);
  }
  context.globalAlpha = 1;
  context.fillStyle = lanes.paints.grid;
  context.fillRect(lanes.gutter, base, lanes.room, 1);
}

export default { render: renderer("scene", fillScene) };
