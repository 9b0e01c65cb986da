// SPDX-License-Identifier: Apache-2.0
// What stands around the bars of a scene: search, sums of a range, steps from execution to execution,
// which rows are shown. It knows bars by their names, kinds and rows, and not how they are painted.

import { button, countText, element, isTouched, shareText, timeText } from "./common.js";
import { visibleIn } from "./lanes.js";

const MAX_SUMS = 200; // rows of the table
const MANY = 8; // processes: with more, alike rows of the table are one
const ALIKE = 3; // rows that are
const SAME_SHARE = 0.03; // of the range: how far their times may differ,
const SAME_PART = 0.2; // and of the longest of them,
const TINY = 0.002; // unless it is so little of the range
const MADE = new Set(["predicted", "ideal"]); // kinds of bars, and parts of processes, that were not measured
const LEAST_GAP = 5e-4; // microseconds: half of what is recorded
const WHAT = ["process", "what", "kind"];

/**
 * What happened in a range: the bars of each row that are the same in `keyOf`, with their number,
 * and the time that they and the longest of them take of the range. The largest sums come first.
 * A bar may be a sum itself, of `countOf` bars; `weightOf` is the time that a unit of its length stands for.
 */
export function sumsOf(rows, start, duration, keyOf, from, to, countOf = () => 1, longestOf = (slice) => duration[slice], weightOf = () => 1) {
  const found = [];
  for (const row of rows) {
    if (!row.bars || row.hidden) continue;
    const sums = new Map();
    const [first, last] = visibleIn(row.bars, from, to);
    for (let at = first; at < last; at += 1) {
      const slice = row.bars.indices[at];
      const took = Math.min(start[slice] + duration[slice], to) - Math.max(start[slice], from);
      if (took <= 0) continue;
      const key = keyOf(slice);
      const sum = sums.get(key) ?? { row, slice, count: 0, total: 0, longest: 0 };
      const time = took * weightOf(slice);
      sum.count += countOf(slice);
      sum.total += time;
      sum.longest = Math.max(sum.longest, Math.min(longestOf(slice), time));
      sums.set(key, sum);
    }
    found.push(...sums.values());
  }
  return found.sort((one, other) => other.total - one.total);
}

/** The sums, with one, that in the middle, for several of the same key whose times are alike. Each has the `rows` that it stands for. */
export function alikeSums(sums, keyOf, range) {
  const found = [];
  const byKey = new Map();
  for (const sum of sums) byKey.set(keyOf(sum), [...(byKey.get(keyOf(sum)) ?? []), sum]);
  for (const each of byKey.values()) {
    for (let at = 0, end; at < each.length; at = end) {
      end = at + 1;
      const least = each[at].total - Math.max(Math.min(range * SAME_SHARE, each[at].total * SAME_PART), range * TINY);
      while (end < each.length && each[end].total >= least) end += 1;
      const same = each.slice(at, end);
      const longest = Math.max(...same.map((one) => one.longest));
      if (same.length < ALIKE) found.push(...same.map((one) => ({ ...one, rows: [one.row] })));
      else found.push({ ...same[same.length >> 1], longest, rows: same.map(({ row }) => row).sort((one, other) => one.lane - other.lane) });
    }
  }
  return found;
}

/** A name without that of its channel. */
export function withoutChannel({ text, channel }) {
  return channel ? text.replace(` ${channel}`, "") : text;
}

/** Names with those in a row as one: `a0 to a5, a7`. */
export function runsOf(names) {
  const runs = [];
  const isNext = (one, other) => one && other.replace(/\d+/, (number) => number - 1) === one;
  for (const each of names) {
    if (isNext(runs.at(-1)?.at(-1), each)) runs.at(-1).push(each);
    else runs.push([each]);
  }
  return runs.map((run) => (run.length > 2 ? `${run[0]} to ${run.at(-1)}` : run.join(", "))).join(", ");
}

/** What processes are called. */
const calledOf = ({ process, label }) => [process.toLowerCase(), label.toLowerCase()];

/** The words of a search. A call is also found as it is written elsewhere: `a5 (Pipe).backward`, `a5.backward`. */
function wordsOf(text, rows) {
  const words = text.toLowerCase().replace(/\)\./g, ") ").match(/(?:execution|call|micro-batch)\s+\d+|\S+/g);
  const called = rows.flatMap(calledOf);
  const parts = (word) => {
    const owner = called.includes(word) ? undefined : called.find((each) => word.startsWith(`${each}.`));
    return owner === undefined ? [word] : [owner, word.slice(owner.length + 1)];
  };
  return words && words.flatMap(parts).filter(Boolean);
}

/** What time without bars is called, as in `waiting or idle`. */
function groundWords(ground) {
  return ground ? [...ground.split(":")[0].toLowerCase().split(" or "), "idle"] : [];
}

/**
 * What each word of a search finds: names, rows and kinds that have it, the bars of a number, or those
 * that have it for their label, as in `B3`. A bare number is that of an execution or of a call in it.
 * `isGround` says whether a word is one for time without bars. Null without words.
 */
export function foundBy(text, { names, rows, kinds, ground = "" }) {
  const words = wordsOf(text, rows);
  return words && words.map((word) => {
    const [, of = "", digits] = /^(execution|call|micro-batch|#)?\s*(\d+)$/.exec(word) ?? [];
    const number = digits === undefined ? null : Number(digits);
    const isExact = rows.some((each) => calledOf(each).includes(word));
    const [, letters, ofLabel] = (!isExact && /^([a-z]+)(\d+)$/.exec(word)) || [];
    const isLabelled = (each) => letters !== undefined && each.initial?.toLowerCase() === letters;
    const isRow = (row) => (isExact ? [...calledOf(row), row.under.toLowerCase()].includes(word) : calledOf(row).join(" ").includes(word));
    const isNumbered = { "": ({ call }) => call === number, call: ({ call }) => call === number, "micro-batch": ({ batch }) => batch === number }[of] ?? (() => false);
    const flags = (all, isFound) => Uint8Array.from(all, (each) => (isFound(each) ? 1 : 0));
    return {
      turn: of === "call" || of === "micro-batch" ? null : number,
      isGround: groundWords(ground).includes(word),
      // A label has the number of its micro-batch or call, or that of its execution.
      names: flags(names, (each) => (number === null ? each.text.toLowerCase().includes(word) || (isLabelled(each) && (each.batch ?? each.call) === Number(ofLabel)) : isNumbered(each))),
      turns: flags(names, (each) => isLabelled(each) && (each.batch ?? each.call ?? null) === null),
      turnOfLabel: letters === undefined ? null : Number(ofLabel),
      rows: flags(rows, (each) => number === null && isRow(each)),
      kinds: flags(kinds, (each) => number === null && each.includes(word)),
    };
  });
}

/** For each bar, whether all words find it. */
export function hitsOf(words, { name, row, kind, execution }) {
  const isFound = (word, bar) => word.names[name[bar]] || word.rows[row[bar]] || word.kinds[kind[bar]] || execution[bar] === word.turn || (word.turns[name[bar]] && execution[bar] === word.turnOfLabel);
  return Uint8Array.from(name, (_, bar) => (words.every((word) => isFound(word, bar)) ? 1 : 0));
}

/**
 * The time without bars of the rows with a ground: `{ row, from, to }`, by time. The words are those of a
 * search: one is of the ground, and all others find rows. Null if there is no such word.
 */
export function gapsOf(words, rows, [begin, end]) {
  const others = words.filter((each) => !each.isGround);
  if (others.length === words.length) return null;
  const found = [];
  for (const row of rows) {
    if (!row.isHatched || !row.bars || row.hidden || !others.every((each) => each.rows[row.lane])) continue;
    const { starts, latestEnds } = row.bars;
    let from = begin;
    for (let at = 0; at <= starts.length; at += 1) {
      const to = Math.min(starts[at] ?? end, end);
      if (to - from > LEAST_GAP) found.push({ row, from, to });
      from = Math.max(from, latestEnds[at] ?? end);
    }
  }
  return found.sort((one, other) => one.from - other.from);
}

/** An example of a search: the actor and the method whose calls take longest together. "" without calls. */
export function exampleOf({ head: { rows, names }, columns: { row, name, duration } }, isCall) {
  const totals = new Map();
  for (let bar = 0; bar < duration.length; bar += 1) {
    const { process, label, members } = rows[row[bar]];
    if (!isCall(bar) || members.length) continue; // of one actor
    const example = `${label.startsWith(process) ? process : label} ${names[name[bar]].text}`;
    totals.set(example, (totals.get(example) ?? 0) + duration[bar]);
  }
  const longest = Math.max(...totals.values());
  return [...totals.keys()].find((example) => totals.get(example) === longest) ?? "";
}

/** How many of the hits were measured, and how many others there are, in words. */
export function countOfHits(hits, { head, columns, isMedian, countOf }) {
  const counts = new Map([["", 0]]);
  for (let bar = 0; bar < hits.length; bar += 1) {
    if (!hits[bar] || isMedian(bar)) continue; // a row for several stands for bars that are counted
    const kind = head.kinds[columns.kind[bar]];
    const of = MADE.has(kind) ? kind : "";
    counts.set(of, (counts.get(of) ?? 0) + countOf(bar));
  }
  const others = [...counts].filter(([of]) => of).map(([of, count]) => `, and ${countText(count)} ${of}`);
  return `${countText(counts.get(""))} found${others.join("")}`;
}

/** When the first counted bar of each execution begins and its last one ends: [from, to] by execution. */
export function extentsOf({ start, duration, execution }, isCounted) {
  const found = new Map();
  for (let at = 0; at < start.length; at += 1) {
    if (!isCounted(at)) continue;
    const extent = found.get(execution[at]);
    const end = start[at] + duration[at];
    if (!extent) found.set(execution[at], [start[at], end]);
    else {
      extent[0] = Math.min(extent[0], start[at]);
      extent[1] = Math.max(extent[1], end);
    }
  }
  return found;
}

/** The search of a scene: `hits`, what it found, and an input that goes from hit to hit. */
export class Search {
  constructor(scene) {
    this.scene = scene;
    this.hits = null;
    this.gaps = []; // time without bars that it found
    this.shown = element("span", { class: "rcg-value rcg-found", role: "status" });
    this.input = element("input", {
      class: "rcg-input", type: "search", placeholder: exampleOf(scene, scene.isCall) || "find", "aria-label": "find bars by all of these words: actor, method, kind of time, call, execution",
      oninput: () => this.find(this.input.value),
      onkeydown: (event) => {
        event.stopPropagation();
        if (event.key === "Enter") this.next();
        if (event.key !== "Escape") return;
        event.preventDefault(); // the words stay
        scene.lanes.canvas.focus();
      },
    });
    scene.card.controls.append(this.input, this.shown);
  }

  isHit(slice) {
    return this.hits[slice] === 1;
  }

  find(text) {
    const { head, columns, lanes } = this.scene;
    const words = foundBy(text, head);
    this.hits = words && hitsOf(words, columns);
    const [from, to] = lanes.range;
    const gaps = words && gapsOf(words, this.scene.rows, [Math.max(from, head.sums?.until_us ?? from), to]);
    this.gaps = gaps ?? [];
    this.at = -1; // of the gaps
    const where = words?.some(({ turn }) => turn !== null) && head.sums ? " among the single bars" : "";
    const isGapAlone = gaps && !this.hits.includes(1);
    const found = [isGapAlone ? "" : this.hits && `${countOfHits(this.hits, this.scene)}${where}`, gaps && `${countText(gaps.length)} time${gaps.length === 1 ? "" : "s"} ${head.ground.split(":")[0]}`];
    this.shown.textContent = found.filter(Boolean).join(", ");
    lanes.choose(-1);
  }

  next() {
    if (!this.hits) return;
    const { columns, lanes } = this.scene;
    const { start } = columns;
    const after = lanes.picked >= 0 && this.isHit(lanes.picked) ? start[lanes.picked] : lanes.span[0];
    let best = -1;
    let first = -1;
    for (let slice = 0; slice < start.length; slice += 1) {
      if (!this.isHit(slice) || !this.scene.rowWith(slice)) continue;
      if (start[slice] > after && (best < 0 || start[slice] < start[best])) best = slice;
      if (first < 0 || start[slice] < start[first]) first = slice;
    }
    const slice = best >= 0 ? best : first;
    if (slice < 0) return this.nextGap();
    lanes.reveal(slice, true);
    lanes.choose(slice);
  }

  /** Shows the next time without bars, and what the other rows did meanwhile. */
  nextGap() {
    const { lanes } = this.scene;
    if (!this.gaps.length) return;
    const after = this.at < 0 ? this.gaps.findIndex(({ to }) => to > lanes.span[0]) : this.at + 1;
    this.at = Math.max(after, 0) % this.gaps.length;
    const { row, from, to } = this.gaps[this.at];
    lanes.mark([from, to]);
    lanes.show(from - (to - from) / 2, to + (to - from) / 2);
    lanes.scrollTo(row);
  }
}

/** The table of what happened in a brushed range. */
export class SumsTable {
  constructor(scene) {
    this.scene = scene;
    this.root = element("div", { class: "rcg-sums", hidden: true });
    scene.card.body.append(this.root);
    this.isAscending = false;
    this.sortedBy = "time";
    // Of many processes, the transfers of one are together, and so are processes that are alike.
    this.isMany = new Set(scene.head.rows.map((each) => each.process)).size > MANY;
    const texts = scene.head.names.map((each) => (this.isMany ? withoutChannel(each) : each.text));
    this.whats = [...new Set(texts)];
    this.whatOf = texts.map((each) => this.whats.indexOf(each));
  }

  show(from, to) {
    const { scene, root, whats, whatOf, isMany } = this;
    const { head, columns, card } = scene;
    const { name, kind } = columns;
    root.hidden = from === undefined;
    card.root.dataset.sums = "";
    if (root.hidden) return;
    const measured = scene.rows.filter(({ part }) => !MADE.has(part)); // what was not has other times
    const each = sumsOf(measured, columns.start, columns.duration, (slice) => whatOf[name[slice]] * 256 + kind[slice], from, to, scene.countOf, scene.longestOf, scene.weightOf);
    const isSame = ({ row, slice }) => (isMany ? `${whatOf[name[slice]]} ${kind[slice]} ${row.part} ${row.isLane} ${row.process === "driver"}` : slice);
    const table = alikeSums(each, isSame, to - from).map(({ rows: same, slice, count, total, longest }) => ({
      process: [same.length === 1 ? same[0].name : `each of ${same.length}: ${runsOf(same.map((row) => row.process))}`],
      what: [whats[whatOf[name[slice]]]],
      kind: [head.kinds[kind[slice]]],
      count: [countText(count), count],
      time: [scene.time(total), total],
      share: [shareText(total / (to - from)), total],
      longest: [scene.time(longest), longest],
    }));
    const key = ([text, value]) => value ?? text;
    const order = (one, other) => (key(one[this.sortedBy]) < key(other[this.sortedBy]) ? -1 : key(one[this.sortedBy]) > key(other[this.sortedBy]) ? 1 : 0);
    table.sort((one, other) => (this.isAscending ? order(one, other) : order(other, one)));
    const names = [...WHAT, "count", "time", "share", "longest"];
    const sort = (column) => () => {
      this.isAscending = this.sortedBy === column ? !this.isAscending : WHAT.includes(column);
      this.sortedBy = column;
      this.show(from, to);
    };
    const sign = (column) => (column === this.sortedBy ? (this.isAscending ? "ascending" : "descending") : null);
    const heads = names.map((column) => element("th", { scope: "col", "aria-sort": sign(column) }, element("button", { type: "button", onclick: sort(column) }, column)));
    const cells = (line) => names.map((column) => element("td", { class: line[column].length > 1 ? "rcg-number" : null }, line[column][0]));
    const more = table.length - MAX_SUMS;
    const { sums } = head;
    const words = [
      `${scene.time(from)} to ${scene.time(to)}: ${scene.time(to - from)}`,
      measured.length < scene.rows.length ? "measured time alone" : "",
      more > 0 ? `the first ${MAX_SUMS} of ${countText(table.length)} rows` : "",
      sums && from < sums.until_us ? `to within ${timeText(sums.bin_us)}` : "",
    ];
    root.replaceChildren(
      element("div", { class: "rcg-controls" }, element("span", {}, words.filter(Boolean).join(", ")), button("×", "close the sums", () => scene.lanes.mark(null))),
      element("div", { class: "rcg-sums-table" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...table.slice(0, MAX_SUMS).map((line) => element("tr", {}, ...cells(line)))))),
    );
    card.root.dataset.sums = table.length;
  }
}

/** Steps from execution to execution. `current` is the selected one, or null. */
export class Stepper {
  constructor(scene) {
    this.scene = scene;
    const { columns, card } = scene;
    const isCall = (slice) => scene.isCall(slice) && !scene.isSum(slice);
    // From its calls: the driver submits long before and fetches long after them.
    this.extents = extentsOf(columns, isCall);
    this.first = Infinity;
    this.last = -Infinity;
    for (const each of this.extents.keys()) {
      this.first = Math.min(this.first, each);
      this.last = Math.max(this.last, each);
    }
    if (!this.extents.size) this.first = this.last = 0;
    this.slider = element("input", {
      class: "rcg-range", type: "range", min: this.first, max: this.last, "aria-label": "execution",
      oninput: () => this.step(Number(this.slider.value)),
      onkeydown: (event) => event.stopPropagation(),
    });
    this.shown = element("span", { class: "rcg-value", role: "status" });
    this.back = button("‹", "the execution before", () => this.step(this.current === null ? this.last : this.current - 1));
    this.forth = button("›", "the next execution", () => this.step(this.current === null ? this.first : this.current + 1));
    if (scene.head.view === "pipeline") return; // of one execution
    card.controls.append(element("span", { class: "rcg-step" }, element("span", {}, "execution"), this.back, this.slider, this.forth, this.shown));
  }

  get current() {
    const { execution } = this.scene.selected;
    return execution === null || !this.extents.has(execution) ? null : execution;
  }

  step(to) {
    this.scene.select({ selected_process: null, selected_op: null, selected_execution: Math.min(Math.max(to, this.first), this.last) });
    this.scene.letGo();
    this.goTo();
  }

  /** Shows the selected execution, if no part of it is in sight or on request. */
  goTo(isAlways = true) {
    const extent = this.extents.get(this.current);
    if (!extent) return;
    const [from, to] = extent;
    const { lanes } = this.scene;
    const pad = (to - from) * 0.35;
    if (isAlways || to < lanes.span[0] || from > lanes.span[1]) lanes.show(from - pad, to + pad);
  }

  tell() {
    const { current } = this;
    this.slider.value = current ?? this.first;
    this.shown.textContent = current === null ? "" : countText(current);
    this.back.disabled = current !== null && current <= this.first;
    this.forth.disabled = current !== null && current >= this.last;
    this.scene.card.root.dataset.execution = current ?? "";
  }
}

/**
 * The keys of a card, as in Perfetto. They act while the focus is in the card, and then the shortcuts of
 * the page do not. A line beneath, which `?` shows, says what they do.
 */
export class Keys {
  constructor(scene) {
    const { card, lanes } = scene;
    const zoom = (factor) => () => lanes.zoom(factor, lanes.pointed);
    const pan = (share) => () => lanes.pan(lanes.room * share);
    const groups = [
      ["zoom (in, out)", { w: zoom(0.7), s: zoom(1 / 0.7) }],
      ["pan", { a: pan(-0.15), d: pan(0.15) }],
      ["fit what is selected, or all", { f: () => scene.fit() }],
      ["all", { 0: () => lanes.reset() }],
      ["find", { "/": () => scene.search.input.focus() }],
      ["the bar before, after", { ArrowUp: () => lanes.step(-1), ArrowDown: () => lanes.step(1) }],
      ["what it waited for", { c: () => scene.goToCause() }],
      ["its row stays at the top", { p: () => scene.pin(lanes.picked >= 0 && scene.rowWith(lanes.picked)) }],
      ["let go, then leave", { Escape: () => (lanes.isHeld ? lanes.letGo() : card.root.getRootNode().activeElement?.blur()) }],
      ["these keys", { "?": () => this.show(this.line.hidden) }],
    ];
    const acts = Object.assign({}, ...groups.map(([, of]) => of));
    const others = { "+": "w", "=": "w", "-": "s", ArrowLeft: "a", ArrowRight: "d", Home: "0" };
    const signs = { ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };
    const said = groups.map(([words, of]) => [Object.keys(of).map((key) => signs[key] ?? key), words]);
    lanes.canvas.setAttribute("aria-label", `${card.model.get("title")}. Keys: ${said.map(([keys, words]) => `${keys.join(" ")} ${words}`).join(", ")}`);
    this.line = element("div", { class: "rcg-keys", hidden: true }, ...said.map(([keys, words]) => element("span", {}, ...keys.map((key) => element("kbd", {}, key)), words)));
    this.button = button("keys", "what keys do while the focus is here", acts["?"]);
    this.show(false);
    card.legend.append(...(isTouched() ? [] : [this.button]), this.line);
    card.listen(card.root, "keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
      const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
      const act = acts[others[key] ?? key];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
  }

  show(isShown) {
    this.line.hidden = !isShown;
    this.button.setAttribute("aria-expanded", isShown);
  }
}

/** Chooses rows: which processes, which parts of them, and one row or all for actors that are alike. */
export class Filter {
  constructor(scene) {
    this.scene = scene;
    this.isFolded = true;
    this.parts = new Map(); // whether each kind of row is shown
    const { card, head } = scene;
    this.inOne = new Set(head.rows.flatMap((each) => each.members));
    this.firsts = scene.rows.filter((row) => row.isFirst);
    this.count = element("summary", {});
    const list = element("div", { class: "rcg-menu-list" });
    this.menu = element("details", { class: "rcg-menu" }, this.count, list);
    // What can be ticked is what is a row: several actors together while they are folded.
    this.boxes = new Map(this.firsts.map((row) => [row.lane, element("input", {
      type: "checkbox", checked: true,
      onchange: ({ target }) => {
        for (const each of row.members) this.boxes.get(each).checked = target.checked;
        this.apply();
      },
    })]));
    for (const { lane, name } of this.firsts) list.append(element("label", {}, this.boxes.get(lane), name));
    const every = (value) => () => {
      for (const box of this.boxes.values()) box.checked = value;
      this.apply();
    };
    list.prepend(element("div", { class: "rcg-controls" }, button("all", "show every process", every(true)), button("none", "hide every process", every(false))));
    card.controls.append(this.menu);
    if (this.inOne.size) this.toggle("fold", "one row, of medians, for actors that do the same at the same time", true, (isOn) => (this.isFolded = isOn));
    card.listen(document, "pointerdown", (event) => {
      if (this.menu.open && !event.composedPath().includes(this.menu)) this.menu.open = false;
    });
    card.listen(this.menu, "keydown", (event) => {
      if (event.key === "Escape") this.menu.open = false;
    });
  }

  /** A button that is on or off. */
  toggle(text, words, isOn, change) {
    const made = button(text, words, () => {
      isOn = !isOn;
      made.setAttribute("aria-pressed", isOn);
      change(isOn);
      this.apply();
    });
    made.setAttribute("aria-pressed", isOn);
    this.scene.card.controls.append(made);
  }

  /** A button that shows or hides one part of all processes. */
  togglePart(part, text, words, isOn) {
    this.parts.set(part, isOn);
    this.toggle(text, words, isOn, (value) => this.parts.set(part, value));
  }

  /** Whether a row is one now: several that are alike, or each of them. */
  isRow(row) {
    return row.members.length ? this.isFolded : !(this.isFolded && this.inOne.has(row.lane));
  }

  apply() {
    const { scene } = this;
    const shown = new Map();
    let count = 0;
    for (const row of this.firsts) {
      const box = this.boxes.get(row.lane);
      if (row.members.length) {
        const ticked = row.members.filter((each) => this.boxes.get(each).checked).length;
        box.checked = ticked > 0;
        box.indeterminate = ticked > 0 && ticked < row.members.length;
      }
      box.parentElement.hidden = !this.isRow(row);
      const isShown = row.isPinned || (this.isRow(row) && box.checked);
      shown.set(row.lane, isShown);
      if (isShown) count += Math.max(row.members.length, 1);
    }
    for (const row of scene.rows) row.hidden = !(shown.get(row.head) && (row.isPinned || this.isRow(row)) && (this.parts.get(row.part) ?? true));
    scene.card.root.dataset.pinned = this.firsts.filter((row) => row.isPinned).map((row) => row.process);
    this.count.textContent = `${count} of ${this.firsts.filter((row) => !row.members.length).length} processes`;
    scene.card.root.dataset.rows = scene.rows.filter((row) => !row.hidden && row.isFirst).length;
    scene.lanes.place();
    scene.lanes.ask();
  }
}
