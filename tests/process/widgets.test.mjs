// SPDX-License-Identifier: Apache-2.0
// What the widgets' scripts compute, without a browser: node --test.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

// As .mjs, which every Node takes for modules.
const from = fileURLToPath(new URL("../../widgets/rcg_widgets/", import.meta.url));
const to = mkdtempSync(join(tmpdir(), "rcg-widgets-"));
for (const name of ["common", "lanes", "panel", "scene", "topology", "monitor", "page"]) {
  const text = readFileSync(join(from, `${name}.js`), "utf8").replace(/(from "\.\/\w+)\.js"/g, '$1.mjs"');
  writeFileSync(join(to, `${name}.mjs`), text);
}
const load = (name) => import(pathToFileURL(join(to, `${name}.mjs`)));
const { bytesText, columnsOf, countText, inkOn, lowerBound, luminance, parseColour, rateText, shareText, shorten, speedText, ticksOf, timeText } = await load("common");
const { barAt, closeUp, fitsOn, labelOf, litOf, rowOf, stackWithin, visibleIn, writingsOf } = await load("lanes");
const { alikeSums, countOfHits, exampleOf, extentsOf, foundBy, gapsOf, hitsOf, runsOf, sumsOf, withoutChannel } = await load("panel");
const { Words, filled, linksOf, queueSteps } = await load("scene");
const { nearestTo, openingOf, scaleToFit } = await load("topology");
const { Model } = await load("page");
const { historyOf, sparkOf, wordsOf } = await load("monitor");

test("figures are those of Python", () => {
  const texts = { time: (ns) => timeText(ns / 1e3), bytes: bytesText, count: countText, rate: rateText, speed: speedText, share: shareText };
  const cases = JSON.parse(readFileSync(new URL("../harness/figures.json", import.meta.url), "utf8"));
  for (const [kind, of] of Object.entries(cases)) {
    for (const [text, ...given] of of) assert.equal(texts[kind](...given), text, `${kind} of ${given}`);
  }
});

test("ticks are round, in one unit, and inside", () => {
  assert.deepEqual(ticksOf(0, 5600, 7).map(([, text]) => text), ["0 ms", "1 ms", "2 ms", "3 ms", "4 ms", "5 ms"]);
  assert.deepEqual(ticksOf(0.25, 0.75, 3).map(([at]) => Number(at.toFixed(3))), [0.4, 0.6]);
  for (const [low, high, most] of [[0, 1, 5], [1e6, 1e6 + 3, 4], [17.3, 99.1, 9], [0, 4.5e6, 8]]) {
    const ticks = ticksOf(low, high, most);
    assert.ok(ticks.length <= most + 1, `${ticks}`);
    assert.ok(ticks.every(([at]) => at >= low - 1e-6 && at <= high + 1e-6));
    assert.equal(new Set(ticks.map(([, text]) => text)).size, ticks.length);
  }
});

test("a payload is read as it was written", () => {
  const head = JSON.stringify({ columns: [{ name: "a", type: "u1", length: 3 }, { name: "b", type: "f8", length: 1 }] });
  const text = head.padEnd(Math.ceil((head.length + 4) / 8) * 8 - 4);
  const buffer = new ArrayBuffer(4 + text.length + 8 + 8);
  new DataView(buffer).setUint32(0, text.length, true);
  new Uint8Array(buffer).set(new TextEncoder().encode(text), 4);
  new Uint8Array(buffer).set([1, 2, 3], 4 + text.length);
  new DataView(buffer).setFloat64(4 + text.length + 8, 2.5, true);
  const { columns } = columnsOf(buffer);
  assert.deepEqual([...columns.a], [1, 2, 3]);
  assert.deepEqual([...columns.b], [2.5]);
});

test("columns of differences are read as packing.py writes them", () => {
  const text = JSON.stringify({ columns: [
    { name: "start", type: "f8", length: 3, planes: 2, scale: 1000 },
    { name: "duration", type: "f8", length: 3, planes: 1, scale: 1000, until: "start" },
  ] }).padEnd(252);
  const buffer = new ArrayBuffer(4 + text.length + 16);
  new Uint8Array(buffer).set(new TextEncoder().encode(text), 4);
  new DataView(buffer).setUint32(0, text.length, true);
  // 1.5, 1.25 and 2.25 thousandths are 1500, -250 and +1000, twice and less one if negative.
  new Uint8Array(buffer).set([3000 & 255, 499 & 255, 2000 & 255, 3000 >> 8, 499 >> 8, 2000 >> 8], 4 + text.length);
  new Uint8Array(buffer).set([0, 20, 9], 4 + text.length + 8); // until the next start: all, 0.01 less, 0.005
  const { columns } = columnsOf(buffer);
  assert.deepEqual([...columns.start], [1.5, 1.25, 2.25]);
  assert.deepEqual([...columns.duration], [-0.25, 0.99, 0.005]);
});

test("views of a page hear of what others select, when all of it is there", () => {
  const linked = [];
  const [one, other] = [0, 1].map(() => new Model({ selected_process: null, selected_op: null, payload: 1 }, linked));
  const heard = [];
  const hear = () => heard.push([other.get("selected_process"), other.get("selected_op")]);
  other.on("change:selected_process", hear);
  one.set("selected_process", "a0");
  one.set("selected_op", 3);
  one.set("payload", 2);
  assert.deepEqual(heard, []);
  one.save_changes();
  assert.deepEqual(heard, [["a0", 3]]);
  assert.equal(other.get("payload"), 1);
  other.off("change:selected_process", hear);
  one.set("selected_process", "a1");
  one.save_changes();
  assert.equal(heard.length, 1);
});

test("a sum counts as what it is of", () => {
  const [start, duration] = [[0, 10], [8, 1]];
  const rows = [{ bars: rowOf(Int32Array.from([0, 1]), start, duration) }];
  const [sum] = sumsOf(rows, start, duration, () => 0, 0, 20, (bar) => [5, 1][bar], (bar) => [3, 1][bar], (bar) => [2, 1][bar]);
  assert.deepEqual([sum.count, sum.total, sum.longest], [6, 17, 3]);
  const [part] = sumsOf(rows, start, duration, () => 0, 6, 9);
  assert.deepEqual([part.count, part.total, part.longest], [1, 2, 2], "what is outside counts in neither");
});

test("alike sums are one, and one that is longer stands alone", () => {
  const sum = (lane, total, key) => ({ row: { lane }, total, longest: total / 2, key });
  const sums = [sum(7, 90, "call"), sum(3, 41, "call"), sum(1, 40, "call"), sum(2, 39, "call"), sum(1, 9, "read"), sum(2, 9, "read")];
  const found = alikeSums(sums, ({ key }) => key, 100).map(({ rows, total, longest }) => [rows.map(({ lane }) => lane), total, longest]);
  assert.deepEqual(found, [[[7], 90, 45], [[1, 2, 3], 40, 20.5], [[1], 9, 4.5], [[2], 9, 4.5]]);
  // Three that are little of the range, one of which is twice as long.
  const little = [sum(1, 3, "call"), sum(2, 2, "call"), sum(3, 1.5, "call")];
  assert.deepEqual([100, 1000].map((range) => alikeSums(little, ({ key }) => key, range).length), [3, 1]);
  assert.equal(runsOf(["a0", "a1", "a2", "a7", "a9.x", "a10.x"]), "a0 to a2, a7, a9.x, a10.x");
  const names = [{ text: "read c1", channel: "c1" }, { text: "forward pass", channel: "" }];
  assert.deepEqual(names.map(withoutChannel), ["read", "forward pass"]);
});

test("ink can be read on its ground", () => {
  assert.equal(inkOn("#0072b2"), "#ffffff");
  assert.equal(inkOn("#e69f00"), "#16191d");
  assert.deepEqual(parseColour("rgb(1, 2, 3)"), [1, 2, 3]);
  assert.equal(parseColour("rgba(0, 0, 0, 0)"), null);
  assert.ok(luminance([255, 255, 255]) > 0.99);
});

test("text keeps both its ends, or whole words", () => {
  assert.equal(shorten("forward", 100, (text) => text.length), "forward");
  assert.equal(shorten("PrefillWorkerWithDecoding", 9, (text) => text.length), "Prefill…");
  assert.equal(shorten("PrefillWorkerWithDecoding", 16, (text) => text.length), "Prefill…Decoding");
  assert.equal(shorten("forward", 0, (text) => text.length), "");
  // A number is never cut: it is shown alone, or not at all.
  assert.equal(shorten("execution 561", 3, (text) => text.length), "561");
  assert.equal(shorten("execution 561", 2, (text) => text.length), "");
  assert.equal(shorten("execution 561", 8, (text) => text.length), "exec…561");
  assert.equal(shorten("a10 (Stage10)", 8, (text) => text.length), "a10");
  assert.equal(shorten("layer 12 of 345 attention", 14, (text) => text.length), "layer 12 of…");
  for (const name of ["fwd 561", "Stage#1234567", "a 12,345 b 678 c", "1.94 / 2.31 ms", "read c104"]) {
    for (let room = 0; room < 20; room += 1) {
      const numbers = (text) => text.match(/\d+(?:[.,]\d+)*/g) ?? [];
      const shown = shorten(name, room, (text) => text.length);
      for (const number of numbers(shown)) assert.ok(numbers(name).includes(number), `${shown} of ${name}`);
    }
  }
  const measure = (text) => 7 * text.length;
  assert.equal(labelOf(["fwd 561", "561"], 60, measure), "fwd 561");
  assert.equal(labelOf(["fwd 561", "561"], 40, measure), "561");
  assert.equal(labelOf(["fwd 561", "561"], 20, measure), "");
  assert.equal(labelOf([], 20, measure), "");
  assert.equal(labelOf(["waits for a10 (Stage)"], 60, measure), "");
  assert.equal(labelOf(["allreduce g0", "allreduce"], 40, measure), ""); // rather nothing than half of it
});

test("visible bars are found as a plain search finds them", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (let round = 0; round < 200; round += 1) {
    const count = Math.floor(random() * 30);
    const start = Float64Array.from({ length: count }, () => random() * 100);
    const duration = Float32Array.from({ length: count }, () => random() * (random() < 0.1 ? 80 : 5));
    const row = rowOf(Int32Array.from({ length: count }, (_, at) => at), start, duration);
    const [from, until] = [random() * 100, random() * 100].sort((one, other) => one - other);
    const [first, last] = visibleIn(row, from, until);
    const seen = new Set(row.indices.slice(first, last));
    for (let at = 0; at < count; at += 1) {
      const isVisible = start[at] + duration[at] >= from && start[at] < until;
      assert.ok(!isVisible || seen.has(at));
    }
    const time = random() * 100;
    const found = barAt(row, duration, time, 0);
    const inside = [...start.keys()].filter((at) => start[at] <= time && start[at] + duration[at] >= time);
    assert.equal(found >= 0, inside.length > 0);
    if (found >= 0) assert.equal(duration[found], Math.min(...inside.map((at) => duration[at])));
  }
  assert.equal(lowerBound([1, 3, 3, 5], 3), 1);
  assert.equal(lowerBound([], 3), 0);
});

test("a bar that is gone to is wide enough to be seen", () => {
  assert.deepEqual(closeUp(1000, 2), [961, 1041]);
  const [from, to] = closeUp(5, 0);
  assert.ok(from < 5 && to > 5);
});

test("of a column only what is lit is lit", () => {
  assert.deepEqual(litOf(Float64Array.from([1, 2, 5, 0])), [3, 8]);
  assert.deepEqual(litOf(new Float64Array(4)), [0, 0]);
});

test("a whole picture is made smaller, never larger", () => {
  assert.equal(scaleToFit([0, 0, 500, 100], 1000, 560), 1);
  assert.equal(scaleToFit([0, 0, 500, 5600], 1000, 560), 0.1);
  assert.equal(scaleToFit([0, 0, 500, 5600], 250, Infinity), 0.5);
});

test("a bar knows its links", () => {
  const links = linksOf(Int32Array.from([0, 2, 5]), Int32Array.from([0, 2, 0, 3, 2]), 4);
  assert.deepEqual([0, 1, 2, 3].map((bar) => [...links(bar)]), [[0, 1], [], [0, 1], [1]]);
});

test("a template without one of its values is left out", () => {
  assert.equal(filled("{a} of {b}", { a: "1", b: "" }), "1 of ");
  assert.equal(filled("{a} of {b}", { a: "1" }), "");
});

test("a search finds names, rows and executions", () => {
  const names = [{ text: "fwd", call: 0, initial: "F" }, { text: "bwd", call: 1, batch: 3, initial: "B" }];
  const rows = [{ process: "a1", label: "a1 (Stage)", under: "" }, { process: "a10", label: "a10 (Stage)", under: "" }, { process: "a1.comm", label: "a1.comm", under: "a1" }];
  const kinds = ["compute", "waiting"];
  // Each bar: fwd of a1, execution 7; bwd of a10, 12; bwd of a1, 12, waiting; fwd of a1.comm, 1.
  const columns = { name: Uint16Array.of(0, 1, 1, 0), row: Uint16Array.of(0, 1, 0, 2), kind: Uint8Array.of(0, 0, 1, 0), execution: Float64Array.of(7, 12, 12, 1) };
  const found = (text) => [...hitsOf(foundBy(text, { names, rows, kinds }), columns)].flatMap((is, bar) => (is ? [bar] : []));
  assert.deepEqual(found("FW"), [0, 3]);
  assert.deepEqual(found("a1"), [0, 2, 3]);
  assert.deepEqual(found("stage"), [0, 1, 2]);
  assert.deepEqual(found("execution 12"), [1, 2]);
  assert.deepEqual(found("#1"), [3]);
  assert.deepEqual(found("1"), [1, 2, 3]); // an execution, or a call of one
  assert.deepEqual(found("call 1"), [1, 2]);
  assert.deepEqual(found("micro-batch 3"), [1, 2]);
  assert.deepEqual(found("a1 bwd"), [2]);
  assert.deepEqual(found("bwd waiting 12"), [2]);
  assert.deepEqual(found("a1 fwd waiting"), []);
  assert.deepEqual(found("a10 (Stage).bwd"), [1]); // as a headline has it
  assert.deepEqual(found("a1.bwd"), [2]);
  assert.deepEqual(found("a1.comm"), [3]); // which is a process
  assert.deepEqual(found("B3"), [1, 2]); // the labels of bars
  assert.deepEqual(found("a1 f0"), [0, 3]);
  rows[0].label = "Stage#1";
  rows[1].label = "Stage#10";
  assert.deepEqual(found("Stage#1.fwd"), [0]);
  assert.deepEqual(found("stage#10"), [1]);
  assert.deepEqual(found("B1"), []); // its call, but it is labelled with its micro-batch
  assert.equal(foundBy(" ", { names, rows, kinds }), null);
});

test("a label with the number of an execution is found", () => {
  const words = foundBy("f12", { names: [{ text: "fwd", call: null, batch: null, initial: "F" }], rows: [], kinds: [] });
  assert.deepEqual([...hitsOf(words, { name: [0, 0], row: [0, 0], kind: [0, 0], execution: [12, 1] })], [1, 0]);
});

test("a search finds time without bars", () => {
  // Bars of a1 from 2 to 5 (one inside of the other) and from 6 to 8; none of a2.
  const row = (process, lane, start, duration) => ({ process, label: process, under: "", lane, isHatched: true, bars: rowOf(Int32Array.from(start.keys()), start, duration) });
  const rows = [row("a1", 0, [2, 3, 6], [3, 1, 2]), row("a2", 1, [], []), { ...row("a1", 2, [], []), isHatched: false }];
  const found = (text, ground = "waiting or idle") => gapsOf(foundBy(text, { names: [], rows, kinds: ["waiting"], ground }), rows, [0, 10])?.map(({ row: { process }, from, to }) => [process, from, to]);
  const ofFirst = [["a1", 0, 2], ["a1", 5, 6], ["a1", 8, 10]];
  assert.deepEqual(found("a1 idle"), ofFirst);
  assert.deepEqual(found("a1 waiting"), ofFirst);
  assert.deepEqual(found("a1 bubble", "bubble: no call"), ofFirst);
  assert.deepEqual(found("idle a2"), [["a2", 0, 10]]);
  assert.equal(found("idle").length, 4);
  assert.deepEqual(found("idle 3"), []); // which is of no execution
  assert.equal(found("a1"), undefined);
  assert.equal(found("idle", ""), undefined);
});

test("an example of a search is of this scene", () => {
  const rows = [["driver", "driver"], ["a0", "a0 (Stage)"], ["a1", "a1 to a2", 2]].map(([process, label, ...members]) => ({ process, label, members }));
  const scene = { head: { rows, names: [{ text: "write" }, { text: "forward" }, { text: "backward" }] }, columns: { row: [0, 1, 1, 1, 2], name: [0, 1, 2, 2, 1], duration: [9, 3, 2, 2, 9] } };
  assert.equal(exampleOf(scene, (bar) => bar > 0), "a0 backward"); // of all its calls, and not of a row of several
  assert.equal(exampleOf(scene, () => false), "");
  rows[1].label = "Stage#1"; // which all views call it
  assert.equal(exampleOf(scene, (bar) => bar > 0), "Stage#1 backward");
});

// What Python says of each bar of some scenes (see test_widgets.py), and their payloads.
const told = process.env.RCG_SCENES ? JSON.parse(readFileSync(process.env.RCG_SCENES, "utf8")) : [];
for (const { name, payload, bars } of told) {
  test(`${name}: a bar has the labels and the words that it has in Python`, () => {
    const bytes = Buffer.from(payload, "base64");
    const words = new Words(columnsOf(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)));
    assert.deepEqual(bars.map((_, bar) => [words.labels(bar), words.hover(bar)]), bars);
  });
}

test("a search counts what was measured, and says how much was not", () => {
  const scene = { head: { kinds: ["compute", "predicted", "ideal"] }, columns: { kind: Uint8Array.of(0, 0, 1, 0, 2, 2) }, isMedian: (bar) => bar === 3, countOf: (bar) => (bar ? 1 : 1000) };
  assert.equal(countOfHits(Uint8Array.of(1, 1, 0, 1, 0, 0), scene), "1,001 found"); // the fourth stands for others
  assert.equal(countOfHits(Uint8Array.of(0, 1, 1, 0, 1, 1), scene), "1 found, and 1 predicted, and 2 ideal");
  assert.equal(countOfHits(Uint8Array.of(0, 0, 1, 0, 0, 0), scene), "0 found, and 1 predicted");
});

// As in tests/unit/test_views_numbering.py.
const alike = (method, width, height = 24) => ({ method, width, height, lengths: [0.7, 1.4, 4.2] });
const writing = (form, size, isTurned) => ({ form, size, isTurned });

test("the longest label that fits on all is chosen for all", () => {
  assert.deepEqual(writingsOf([alike("f", 60), alike("f", 90)]), [writing(2, 11.5, false), writing(2, 11.5, false)]);
  assert.deepEqual(writingsOf([alike("f", 60), alike("f", 22)]), [writing(1, 11.5, false), writing(1, 11.5, false)]);
  assert.deepEqual(writingsOf([]), []);
});

test("a number that is too wide is smaller and then turned", () => {
  const found = [9.6, 8.6, 7.9, 7.3, 7.1].map((width) => writingsOf([alike("f", width)])[0]);
  assert.deepEqual(found, [writing(0, 11.5, false), writing(0, 10, false), writing(0, 9, false), writing(0, 8.5, true), null]);
  assert.deepEqual(writingsOf([alike("f", 7.3, 7)]), [null]);
  assert.ok(fitsOn(writing(0, 10, true), 1.4, 8.4, 17) && !fitsOn(writing(0, 10, true), 1.4, 8.4, 16.9));
});

test("one size for a method, and what cannot have a label hinders none", () => {
  const found = writingsOf([alike("f", 7.3), alike("f", 7.9), alike("g", 9.6), alike("h", 3)]);
  assert.deepEqual(found, [writing(0, 8.5, true), writing(0, 8.5, true), writing(0, 11.5, false), null]);
});

test("much wider bars of a method stay upright", () => {
  const found = writingsOf([alike("f", 7.3), alike("f", 9.6), alike("f", 8.6), alike("f", 7.9)]);
  assert.deepEqual(found, [writing(0, 8.5, true), writing(0, 10, false), writing(0, 10, false), writing(0, 8.5, true)]);
});

const lane = (height, gap, label = "a") => ({ natural: [height, gap], label, isLane: false, isPinned: false, heading: "" });

test("all rows are inside of a height, also where names hold them apart", () => {
  // A driver and 63 actors, as in a timeline; 63 actors with a row each for what was predicted.
  const timeline = [lane(20, 3), ...Array.from({ length: 63 }, () => lane(20, 10))];
  const schedule = Array.from({ length: 63 }, () => [lane(28, 10), lane(9, 3, "")]).flat();
  for (const rows of [timeline, schedule]) {
    const { end } = stackWithin(rows, 874, 13);
    assert.ok(end <= 874 && end > 860, `${end}`);
    assert.equal(end, rows.at(-1).y + rows.at(-1).height);
    const middles = rows.filter(({ label }) => label).map(({ y, height }) => y + height / 2);
    assert.ok(middles.every((middle, at) => !at || middle - middles[at - 1] >= 13 - 1e-9));
    assert.ok(rows.every((row, at) => !at || row.y >= rows[at - 1].y + rows[at - 1].height));
  }
});

test("rows have a least height, and few rows their own", () => {
  assert.equal(stackWithin(Array.from({ length: 500 }, () => lane(20, 10)), 874, 0).end, 4 + 500 * 3);
  assert.equal(stackWithin([lane(20, 3), lane(20, 10)], 874, 13).end, 4 + 3 + 20 + 10 + 20);
});

test("an axis has two ticks at least", () => {
  assert.deepEqual(ticksOf(385e3, 777e3, 1).map(([, text]) => text), ["400 ms", "600 ms"]);
  assert.deepEqual(ticksOf(390e3, 590e3, 1).map(([, text]) => text), ["400 ms", "500 ms"]);
});

test("executions have an extent", () => {
  const bars = { start: [0, 5, 20], duration: [2, 4, 1], execution: [7, 7, 8] };
  assert.deepEqual([...extentsOf(bars, () => true)], [[7, [0, 9]], [8, [20, 21]]]);
  assert.deepEqual([...extentsOf(bars, (at) => at > 0)][0], [7, [5, 9]]);
});

test("arrows go to the nearest call", () => {
  const boxes = [[0, 0, 10, 10], [50, 0, 10, 10], [50, 40, 10, 10], [0, 40, 10, 10]];
  assert.equal(nearestTo(boxes, 0, [1, 0]), 1);
  assert.equal(nearestTo(boxes, 1, [0, 1]), 2);
  assert.equal(nearestTo(boxes, 0, [-1, 0]), null);
});

test("a spark line has gaps where nothing is known", () => {
  const rows = Float64Array.from([0, NaN, 1, 2, 0.5, 7, 1, 10, 3, 4, 0.25, 8]);
  const history = historyOf(new DataView(rows.buffer));
  assert.deepEqual([...history.queued], [2, 4]);
  assert.deepEqual([...history.memory], [7, 8]);
  const { line, area } = sparkOf([0, 1, 2, 3], [1, NaN, 1, 2], 30, 10, 2);
  assert.equal(line, "M0 5M20 5L30 0");
  assert.ok(area.endsWith("Z"));
});

test("a row says what is known of an actor", () => {
  const row = { label: "a0 (Stage)", state: "stuck", busy: 0.254, queued: 3, slots: 10, doing: "work for 7.2 s", memory: 2048, count: 1 };
  const { busy, queue, doing, hint } = wordsOf(row);
  assert.deepEqual([busy, queue, doing], ["25 %", "3 of 10", "work for 7.2 s"]);
  assert.ok(hint.includes("stuck: work for 7.2 s") && hint.includes("2.05 kB"));
  const idle = wordsOf({ ...row, state: "ready", busy: null, queued: 0, slots: 0, doing: "" });
  assert.deepEqual([idle.busy, idle.queue, idle.doing], ["", "", "ready"]);
});

test("a frame that waits for less than a pixel fills one pixel, not the stretch after it", () => {
  assert.deepEqual(queueSteps([10, 10.2, 110], [3, 0]), [[10, 11, 3], [11, 110, 0]]);
  assert.deepEqual(queueSteps([0, 50, 50.3, 90], [0, 1, 0]), [[0, 50, 0], [50, 51, 1], [51, 90, 0]]);
});

test("of the depths in one pixel the largest is shown, and what is wider is shown as it is", () => {
  assert.deepEqual(queueSteps([0, 0.3, 0.6, 1.1], [1, 4, 2]), [[0, 1.1, 4]]);
  assert.deepEqual(queueSteps([0, 20, 40], [2, 1]), [[0, 20, 2], [20, 40, 1]]);
  assert.deepEqual(queueSteps([0, 0.5], [1]), [[0, 0.5, 1]]);
});

test("a box opens into the boxes of its calls, in the next picture that has several", () => {
  const [a, b, c] = [["a0", 1], ["a0", 2], ["a1", 1]];
  const pictures = [
    { nodes: [[a, b, c]] },
    { nodes: [[c], [a, b]] },
    { nodes: [[c], [b], [a]] },
  ];
  assert.deepEqual(openingOf(pictures, 0, 0), { level: 1, boxes: [0, 1] });
  assert.deepEqual(openingOf(pictures, 1, 1), { level: 2, boxes: [1, 2] });
  assert.equal(openingOf(pictures, 1, 0), null);
  assert.equal(openingOf(pictures, 2, 1), null);
});
