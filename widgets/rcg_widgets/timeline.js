// SPDX-License-Identifier: Apache-2.0
// The timeline: what each process did when. One bar per part of an op; the transfers of a bar have
// lines while it is pointed at or picked, and the critical path goes from lane to lane.

import { button, bytesText, countText, element, isTouched, lowerBound, renderer, shareText, speedText, timeText } from "./common.js";
import { Lanes, headingsOf, rowOf, visibleIn } from "./lanes.js";

const COMMUNICATION = 1;
const WAITING = 3;
const SPAN = 5;
const HIDDEN = 6;
const NOBODY = 65535;
const LINK_ROOM = 9; // pixels of width for each transfer that is drawn
const WIRE_DASHES = [7, 4];
const QUEUE_LANES = 16; // with more, the queues are shown on request
const NARROW = 4; // pixels: narrower bars are shares of time
const PATH_ROOM = 4; // pixels for each step of the path from lane to lane
const MAX_SUMS = 200; // rows of the table
const MANY = 8; // lanes: with more, alike rows of the table are one
const ALIKE = 3; // rows that are
const SAME_SHARE = 0.03; // of the range: how far their times may differ,
const SAME_PART = 0.2; // and of the longest of them,
const TINY = 0.002; // unless it is so little of the range
const MAX_GB_PER_S = 100; // a write that seems faster forwarded its block

/** The rows of each lane: one per track. */
export function tracksOf(lane, track, numLanes) {
  const counts = new Map();
  for (let slice = 0; slice < lane.length; slice += 1) {
    const key = lane[slice] * 256 + track[slice];
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  for (let number = 0; number < numLanes; number += 1) if (!counts.has(number * 256)) counts.set(number * 256, 0);
  const found = [...counts.keys()].sort((one, other) => one - other);
  const tracks = new Map(found.map((key) => [key, new Int32Array(counts.get(key))]));
  const filled = new Map(found.map((key) => [key, 0]));
  for (let slice = 0; slice < lane.length; slice += 1) {
    const key = lane[slice] * 256 + track[slice];
    const at = filled.get(key);
    tracks.get(key)[at] = slice;
    filled.set(key, at + 1);
  }
  return found.map((key) => ({ lane: key >> 8, track: key & 255, indices: tracks.get(key) }));
}

/** For each bar, the bars at the other ends of its transfers: offsets and others. */
export function joinsOf(transfers, count) {
  const offsets = new Int32Array(count + 1);
  for (const slice of transfers) offsets[slice + 1] += 1;
  for (let slice = 0; slice < count; slice += 1) offsets[slice + 1] += offsets[slice];
  const others = new Int32Array(transfers.length);
  const filled = offsets.slice();
  for (let at = 0; at < transfers.length; at += 2) {
    others[filled[transfers[at]]++] = transfers[at + 1];
    others[filled[transfers[at + 1]]++] = transfers[at];
  }
  return (slice) => others.subarray(offsets[slice], offsets[slice + 1]);
}

/**
 * What happened in a range: the bars of each row that are the same in `keyOf`, with their number, the
 * time that they take of the range, and the longest of them. The largest sums come first. `countOf`,
 * `longestOf` and `weightOf`, the time that a unit of its length stands for, are of a bar, which may be
 * a sum itself.
 */
export function sumsOf(rows, start, duration, keyOf, from, to, countOf = () => 1, longestOf = (slice) => duration[slice], weightOf = () => 1) {
  const found = [];
  for (const row of rows) {
    if (!row.bars) continue;
    const sums = new Map();
    const [first, last] = visibleIn(row.bars, from, to);
    for (let at = first; at < last; at += 1) {
      const slice = row.bars.indices[at];
      const took = Math.min(start[slice] + duration[slice], to) - Math.max(start[slice], from);
      if (took <= 0) continue;
      const key = keyOf(slice);
      const sum = sums.get(key) ?? { row, slice, count: 0, total: 0, longest: 0 };
      sum.count += countOf(slice);
      sum.total += took * weightOf(slice);
      sum.longest = Math.max(sum.longest, longestOf(slice));
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

/** Whether a search finds each name, lane and execution: text, or the number of an execution. */
export function foundBy(text, names, lanes) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const turn = /^(?:execution\s*|#)?(\d+)$/.exec(wanted)?.[1];
  const exact = lanes.some((each) => each.process.toLowerCase() === wanted);
  const isLane = ({ process, label, under }) => (exact ? [process, under].some((each) => each.toLowerCase() === wanted) : `${process} ${label}`.toLowerCase().includes(wanted));
  return {
    turn: turn === undefined ? null : Number(turn),
    names: Uint8Array.from(names, (each) => (turn === undefined && each.text.toLowerCase().includes(wanted) ? 1 : 0)),
    lanes: Uint8Array.from(lanes, (each) => (turn === undefined && isLane(each) ? 1 : 0)),
  };
}

export function fillTimeline(card, { head, columns }) {
  const { model } = card;
  const { start, duration, lane, track, kind, name, peer, execution, bytes, transfers, transfer_times: transferTimes, is_wire: isWire, op } = columns;
  const { collectives, collective_first: collectiveFirst, collective_times: collectiveTimes } = columns;
  // In a page, the bars before a time may be sums of many, in bins of one length.
  const { sums: merged } = head;
  const linkColour = head.looks[1].colour;
  const ranksOf = (number) => collectives.subarray(collectiveFirst[number], collectiveFirst[number + 1]);
  const collectiveOf = new Map();
  for (let number = 0; number + 1 < collectiveFirst.length; number += 1) for (const slice of ranksOf(number)) collectiveOf.set(slice, number);
  const joined = joinsOf(transfers, start.length);
  const transferBetween = new Map();
  for (let at = 0; at < transfers.length; at += 2) transferBetween.set(transfers[at] * start.length + transfers[at + 1], at);
  const isSource = new Uint8Array(start.length);
  for (let at = 0; at < transfers.length; at += 2) isSource[transfers[at]] = 1;
  let isQueueShown = head.lanes.length <= QUEUE_LANES && head.queues.some((each) => each.most > 0);
  let hits = null; // what the search found
  let isPathShown = true;
  let chosen = new Set(); // the picked transfer's bars

  const rows = [];
  const trackNames = ["", "spans"];
  const headings = headingsOf(head.lanes.map((each) => each.node));
  for (const each of tracksOf(lane, track, head.lanes.length)) {
    const { process, label, detail, under, short, streams } = head.lanes[each.lane];
    const isFirst = each.track === 0;
    rows.push({
      lane: each.lane, track: each.track, process, name: label, detail,
      label: isFirst ? short || label : "",
      isLane: Boolean(under),
      sub: trackNames[each.track] ?? streams[each.track - trackNames.length],
      height: each.track === 1 || under ? 14 : 20,
      gap: isFirst && each.lane && !under ? 10 : 3,
      heading: isFirst ? headings[each.lane] : "",
      isHatched: isFirst,
      bars: rowOf(each.indices, start, duration),
      has: (slice) => lane[slice] === each.lane && track[slice] === each.track,
    });
  }
  // Below each lane, the number of unread frames.
  head.queues.forEach((queue) => {
    if (!queue.count || head.lanes[queue.lane].under) return;
    const { process, label } = head.lanes[queue.lane];
    const after = rows.findLastIndex((row) => row.lane === queue.lane);
    const times = columns.queue_time.subarray(queue.first, queue.first + queue.count);
    const depths = columns.queue_depth.subarray(queue.first, queue.first + queue.count);
    const depthAt = (time) => {
      const at = lowerBound(times, time + 1e-9) - 1;
      return at < 0 ? 0 : depths[at];
    };
    rows.splice(after + 1, 0, {
      lane: queue.lane, process, isQueue: true, name: label, detail: `values written for it that it has not read yet; ${queue.slots} would fill it`,
      label: "", sub: "queue", height: 14, gap: 3, isBare: true, hidden: !isQueueShown,
      has: () => false,
      tellAt: (time) => [`${label}: ${merged && time < merged.until_us ? "at most " : ""}${countText(depthAt(time))} in the queue`, `at most ${queue.most}, room for ${queue.slots}`],
      draw: (lanes, context, row) => drawQueue(lanes, context, row, times, depths, Math.max(queue.most, queue.slots, 1)),
    });
  });

  const lookUp = (slice) => head.names[name[slice]];
  const isSum = (slice) => execution[slice] < 0;
  const countOf = (slice) => (isSum(slice) ? columns.sum_count[slice] : 1);
  const weightOf = (slice) => (isSum(slice) && duration[slice] ? columns.sum_total[slice] / duration[slice] : 1);
  const longestOf = (slice) => (isSum(slice) ? columns.sum_longest[slice] : duration[slice]);
  const isLit = (slice) => {
    if (hits) return isHit(slice);
    const { process, op: wanted, execution: turn } = selected;
    // An execution is lit in all lanes; without one, a process or an op in all executions.
    if (turn !== null) return execution[slice] === turn;
    return process === null || (head.lanes[lane[slice]].process === process && (wanted === null || op[slice] === wanted));
  };
  const isHit = (slice) => hits.names[name[slice]] === 1 || hits.lanes[lane[slice]] === 1 || execution[slice] === hits.turn;
  let selected = { process: null, op: null, execution: null };
  const takeSelection = () => {
    selected = { process: model.get("selected_process"), op: model.get("selected_op"), execution: model.get("selected_execution") };
  };
  takeSelection();

  const lanes = new Lanes(card, {
    rows, start, duration, finest: NARROW,
    range: [0, Math.max(head.duration_us, 1)],
    colours: head.looks.map((each) => each.colour),
    look: {
      bucket: (slice) => kind[slice],
      isPlain: () => !hits && selected.execution === null && selected.process === null,
      alpha: (slice) => (isLit(slice) ? 1 : 0.22),
      text: (slice) => {
        const { text, role } = lookUp(slice);
        if (isSum(slice)) return [`${countText(countOf(slice))} × ${text}`, `${countText(countOf(slice))} ×`];
        return role === "call" ? [`${text} ${execution[slice]}`, `${execution[slice]}`] : text;
      },
      tell: (slice) => tell(slice),
      isMarked: (slice) => chosen.has(slice),
      until: merged?.until_us,
      bin: merged && ((slice) => (isSum(slice) ? merged.bin_us : 0)),
      whole: merged && (([from, to]) => (from < merged.until_us ? [Math.floor(from / merged.bin_us), Math.ceil(to / merged.bin_us)].map((each) => each * merged.bin_us) : [from, to])),
    },
    above: (each, context) => {
      each.tellPart(head.subtitle);
      if (merged) drawBorder(each, context);
      if (isPathShown) drawPath(each, context);
      drawLinks(each, context);
      if (collectives.length) drawCollectives(each, context);
    },
    brushed: (from, to) => showSums(from, to),
    pick: (slice) => {
      chosen = transferOf(slice);
      card.root.dataset.ends = chosen.size;
      isOwn = true;
      card.set({
        selected_process: slice < 0 ? null : head.lanes[lane[slice]].process,
        selected_op: slice < 0 || kind[slice] === SPAN ? null : op[slice],
        selected_execution: slice < 0 || isSum(slice) ? null : execution[slice],
      });
      isOwn = false;
      takeSelection();
    },
  });
  let isOwn = false;
  for (const trait of ["selected_process", "selected_op", "selected_execution"]) {
    card.listen(model, `change:${trait}`, () => {
      if (isOwn) return;
      const before = JSON.stringify(selected);
      takeSelection();
      if (JSON.stringify(selected) === before) return;
      // Another view changed the selection: clear the one here.
      chosen = new Set();
      lanes.picked = -1;
      lanes.pickedPoint = false;
      card.hush();
      lanes.ask();
    });
  }

  function transferOf(slice) {
    if (slice < 0) return new Set();
    const number = collectiveOf.get(eventBar(slice));
    if (number !== undefined) return new Set([slice, ...ranksOf(number)]);
    const others = joined(eventBar(slice));
    if (!others.length) return new Set();
    const source = isSource[eventBar(slice)] ? eventBar(slice) : others[0];
    return new Set([slice, source, ...joined(source)]);
  }

  /** The bar of the same event that has the transfer: a wait or the part that moves the frame. */
  function eventBar(slice) {
    const isEnd = (one) => joined(one).length > 0 || collectiveOf.has(one);
    if (isEnd(slice) || kind[slice] === SPAN) return slice;
    for (const by of [1, -1]) {
      for (let near = slice + by; isSameEvent(near, slice); near += by) if (isEnd(near)) return near;
    }
    return slice;
  }

  function isSameEvent(one, other) {
    return one >= 0 && one < start.length && lane[one] === lane[other] && name[one] === name[other] && execution[one] === execution[other] && track[one] === track[other];
  }

  /** The sums of a bin, those that take longest first. */
  function tellSums(slice) {
    const from = Math.floor(start[slice] / merged.bin_us + 1e-6) * merged.bin_us;
    const row = rowOfSlice(slice);
    const sums = sumsOf([row], start, duration, (each) => (isSum(each) ? each : -1), from, from + merged.bin_us, countOf, longestOf, weightOf).filter((each) => isSum(each.slice));
    return [
      `${row.name}: sums of ${timeText(merged.bin_us)} at ${timeText(from)}`,
      ...sums.slice(0, 6).map((each) => `${lookUp(each.slice).text}, ${head.looks[kind[each.slice]].title}: ${countText(each.count)} in ${timeText(each.total)}, longest ${timeText(each.longest)}`),
      sums.length > 6 ? `and ${sums.length - 6} more` : "",
    ];
  }

  function tell(slice) {
    if (isSum(slice)) return tellSums(slice);
    const { text, role, channel, group } = lookUp(slice);
    const moved = (size, took) => [`${bytesText(size)} in ${timeText(took)}`, size && took > 0 ? speedText(size / took / 1e3) : ""].filter(Boolean).join(" · ");
    const where = head.lanes[lane[slice]].label;
    const isMoving = kind[slice] === COMMUNICATION || kind[slice] === HIDDEN;
    const heading = kind[slice] === WAITING ? `${where} waits: ${text}` : role === "call" ? `${where}.${text}` : `${where}: ${text}`;
    const lines = [heading, `execution ${countText(execution[slice])} · ${head.looks[kind[slice]].title} ${timeText(duration[slice])} · at ${timeText(start[slice])}`];
    if (peer[slice] !== NOBODY) lines.push(`for ${head.lanes[peer[slice]].label}`);
    if (bytes[slice] && !(group && isMoving)) { // an exchange says its bytes below
      // Reading moves nothing: values are used where they lie. The bar of a lane may be a part.
      const isMoved = role === "write" && isMoving && !group && !head.lanes[lane[slice]].under;
      const speed = bytes[slice] / duration[slice] / 1e3;
      lines.push([bytesText(bytes[slice]), isMoved && speed <= MAX_GB_PER_S ? speedText(speed) : ""].filter(Boolean).join(" · "));
    }
    const bar = eventBar(slice);
    const others = joined(bar);
    if (others.length && channel) {
      const source = isSource[bar] ? bar : others[0];
      const ends = isSource[bar] ? others : [bar];
      for (const end of [...ends].slice(0, 4)) {
        const at = transferBetween.get(source * start.length + end);
        const took = transferTimes[at + 1] - transferTimes[at];
        const ends = `${head.lanes[lane[source]].label} → ${head.lanes[lane[end]].label}`;
        if (isWire[at / 2]) {
          const error = head.lanes[lane[end]].clock_us + head.lanes[lane[source]].clock_us;
          lines.push(`${ends}: ${timeText(took)} on the wire${error ? `, ±${timeText(error)}` : ""}`);
          continue;
        }
        lines.push(group ? `${ends}: ${moved(bytes[source], took)}` : `${ends}: taken ${timeText(took)} after it was written`);
      }
      if (ends.length > 4) lines.push(`and ${ends.length - 4} more readers`);
      const slots = head.channels[channel]?.slots;
      if (slots && !group) lines.push(`${channel} holds ${slots} frame${slots === 1 ? "" : "s"}`);
    }
    const number = collectiveOf.get(bar);
    if (number !== undefined) {
      const took = collectiveTimes[2 * number + 1] - collectiveTimes[2 * number];
      const size = Math.max(...Array.from(ranksOf(number), (each) => bytes[each]));
      lines.push(`all ${ranksOf(number).length} ranks: ${moved(size, took)}`);
    }
    if (group) {
      const { title, lanes: members } = head.groups[group];
      lines.push(`@${group} (${title}), rank ${members.indexOf(lane[slice])} of ${members.length}`);
    }
    return lines;
  }

  /** Where the sums end and the single bars begin. */
  function drawBorder(each, context) {
    const x = each.x(merged.until_us);
    if (x < each.gutter || x > each.gutter + each.room) return;
    context.globalAlpha = 1;
    context.fillStyle = each.paints.accent;
    context.fillRect(Math.round(x) - 1, each.scroller.scrollTop, 2, each.viewHeight);
  }

  /** Draws collectives as lines through the lanes of their ranks, where the last of them arrived. */
  function drawCollectives(each, context) {
    const [from, to] = each.span;
    const wanted = [];
    for (let number = 0; number + 1 < collectiveFirst.length; number += 1) {
      const at = collectiveTimes[2 * number];
      if (at < from || at > to || (chosen.size && !chosen.has(ranksOf(number)[0]))) continue;
      wanted.push(number);
      if (wanted.length * LINK_ROOM > each.room) return;
    }
    const { light, dark } = head.meeting;
    const colour = card.root.dataset.theme === "dark" ? dark : light;
    context.strokeStyle = colour;
    context.fillStyle = colour;
    context.lineWidth = 1.5;
    for (const number of wanted) {
      const slices = [...ranksOf(number)];
      const rows = slices.map(rowOfSlice).filter(Boolean);
      if (rows.length < 2) continue;
      const x = each.x(collectiveTimes[2 * number]);
      const middles = rows.map((row) => row.y + row.height / 2);
      context.globalAlpha = chosen.size || slices.some(isLit) ? 1 : 0.1;
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
    card.root.dataset.collectives = wanted.length;
  }

  const wireColour = () => (card.root.dataset.theme === "dark" ? head.wire.dark : head.wire.light);

  /** The transfers of the bar that is pointed at, and of the one that is picked. */
  function drawLinks(each, context) {
    const pointed = each.hovered >= 0 ? transferOf(each.hovered) : [];
    const ends = new Set([...chosen, ...pointed]);
    context.lineWidth = 1.75;
    let count = 0;
    const top = each.scroller.scrollTop;
    const line = (at) => {
      const one = rowOfSlice(transfers[at]);
      const other = rowOfSlice(transfers[at + 1]);
      if (!one || !other || Math.max(one.y, other.y) < top || Math.min(one.y, other.y) > top + each.viewHeight) return;
      const isDown = other.y > one.y;
      const x = each.x(transferTimes[at]);
      const toX = each.x(transferTimes[at + 1]);
      const y = isDown ? one.y + one.height : one.y;
      const toY = isDown ? other.y : other.y + other.height;
      const middle = (y + toY) / 2;
      count += 1;
      const stroke = isWire[at / 2] ? wireColour() : linkColour;
      context.strokeStyle = stroke;
      context.setLineDash(isWire[at / 2] ? WIRE_DASHES : []);
      context.beginPath();
      context.moveTo(x, y);
      context.bezierCurveTo(x, middle, toX, middle, toX, toY);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = stroke;
      context.beginPath();
      context.arc(toX, toY, 2, 0, 7);
      context.fill();
    };
    for (const slice of ends) if (isSource[slice]) for (const target of joined(slice)) line(transferBetween.get(slice * start.length + target));
    card.root.dataset.transfers = count;
  }

  /** The critical path of the selected execution, or of all: a line below the bars that are on it. */
  function drawPath(each, context) {
    const { path_lane: lanes, path_start: starts, path_end: ends, path_until: until } = columns;
    const at = Math.max(head.paths.indexOf(selected.execution), 0);
    const first = lowerBound(ends, each.span[0], at ? until[at - 1] : 0, until[at]);
    const last = lowerBound(starts, each.span[1], first, until[at]);
    const hasSteps = (last - first) * PATH_ROOM < each.room;
    context.globalAlpha = 1;
    context.fillStyle = each.paints.text;
    const drawn = new Float64Array(head.lanes.length).fill(-Infinity); // up to where, by lane
    const left = each.gutter - each.span[0] * each.perUs;
    const { perUs } = each;
    let before = null;
    for (let number = first; number < last; number += 1) {
      const x = left + starts[number] * perUs;
      const end = Math.max(left + ends[number] * perUs, x + 1);
      if (!hasSteps && end <= drawn[lanes[number]] + 0.5) continue;
      const row = rowByTrack.get(lanes[number] * 256);
      if (!row || row.hidden) continue;
      const y = row.y + row.height;
      if (end > drawn[lanes[number]] + 0.5) {
        context.fillRect(x, y, end - x, 2);
        drawn[lanes[number]] = end;
      }
      if (hasSteps && before !== null) context.fillRect(x - 0.5, Math.min(before, y), 1, Math.abs(y - before) + 2);
      before = y;
    }
    card.root.dataset.path = last - first;
  }

  // Sums

  // Of many lanes, the transfers of a process are together, and so are processes that are alike.
  const isMany = head.lanes.length > MANY;
  const texts = head.names.map((each) => (isMany ? withoutChannel(each) : each.text));
  const whats = [...new Set(texts)];
  const whatOf = texts.map((each) => whats.indexOf(each));
  let isAscending = false;
  let sortedBy = "time";
  const sums = element("div", { class: "rcg-sums", hidden: true });
  card.body.append(sums);
  function showSums(from, to) {
    sums.hidden = from === undefined;
    card.root.dataset.sums = "";
    if (sums.hidden) return;
    const each = sumsOf(rows, start, duration, (slice) => whatOf[name[slice]] * 256 + kind[slice], from, to, countOf, longestOf, weightOf);
    const isSame = ({ row, slice }) => (isMany ? `${whatOf[name[slice]]} ${kind[slice]} ${row.track} ${row.isLane} ${row.lane > 0}` : slice);
    const found = alikeSums(each, isSame, to - from);
    const table = found.map(({ rows: same, slice, count, total, longest }) => ({
      process: [same.length === 1 ? same[0].name : `each of ${same.length}: ${runsOf(same.map((row) => row.process))}`],
      what: [whats[whatOf[name[slice]]]],
      kind: [head.looks[kind[slice]].title],
      count: [countText(count), count],
      time: [timeText(total), total],
      share: [shareText(total / (to - from)), total],
      longest: [timeText(longest), longest],
    }));
    const key = ([text, value]) => value ?? text;
    const order = (one, other) => (key(one[sortedBy]) < key(other[sortedBy]) ? -1 : key(one[sortedBy]) > key(other[sortedBy]) ? 1 : 0);
    table.sort((one, other) => (isAscending ? order(one, other) : order(other, one)));
    const names = ["process", "what", "kind", "count", "time", "share", "longest"];
    const sort = (each) => () => {
      isAscending = sortedBy === each ? !isAscending : names.indexOf(each) < 3;
      sortedBy = each;
      showSums(from, to);
    };
    const heads = names.map((each) => element("th", { scope: "col", "aria-sort": each === sortedBy ? (isAscending ? "ascending" : "descending") : null }, element("button", { type: "button", onclick: sort(each) }, each)));
    const cells = (each) => names.map((column) => element("td", { class: each[column].length > 1 ? "rcg-number" : null }, each[column][0]));
    const more = table.length - MAX_SUMS;
    sums.replaceChildren(
      element("div", { class: "rcg-controls" },
        element("span", {}, `${timeText(from)} to ${timeText(to)}: ${timeText(to - from)}${more > 0 ? `, the first ${MAX_SUMS} of ${countText(table.length)} rows` : ""}${merged && from < merged.until_us ? `, to within ${timeText(merged.bin_us)}` : ""}`),
        button("×", "close the sums", () => lanes.mark(null))),
      element("div", { class: "rcg-sums-table" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...table.slice(0, MAX_SUMS).map((each) => element("tr", {}, ...cells(each)))))),
    );
    card.root.dataset.sums = table.length;
  }

  const rowByTrack = new Map(rows.filter((row) => row.bars).map((row) => [row.lane * 256 + row.track, row]));
  function rowOfSlice(slice) {
    return rowByTrack.get(lane[slice] * 256 + track[slice]);
  }

  // Controls

  const found = element("span", { class: "rcg-value rcg-found", role: "status" });
  const search = element("input", {
    class: "rcg-input", type: "search", placeholder: "actor, method, execution", "aria-label": "find bars by name, actor or execution",
    oninput: () => find(search.value),
    onkeydown: (event) => {
      event.stopPropagation();
      if (event.key === "Enter") next();
    },
  });
  function find(text) {
    hits = foundBy(text, head.names, head.lanes);
    let count = 0;
    if (hits) for (let slice = 0; slice < name.length; slice += 1) if (isHit(slice)) count += countOf(slice);
    const where = hits && merged && hits.turn !== null ? " among the single bars" : "";
    found.textContent = hits ? `${countText(count)} found${where}` : "";
    lanes.choose(-1);
  }
  function next() {
    if (!hits) return;
    const after = lanes.picked >= 0 && isHit(lanes.picked) ? start[lanes.picked] : lanes.span[0];
    let best = -1;
    let first = -1;
    for (let slice = 0; slice < name.length; slice += 1) {
      if (!isHit(slice)) continue;
      if (start[slice] > after && (best < 0 || start[slice] < start[best])) best = slice;
      if (first < 0 || start[slice] < start[first]) first = slice;
    }
    const slice = best >= 0 ? best : first;
    if (slice < 0) return;
    lanes.reveal(slice, true);
    lanes.choose(slice);
  }
  const queueButton = button("queues", "show how many values wait for each process", () => {
    isQueueShown = !isQueueShown;
    queueButton.setAttribute("aria-pressed", isQueueShown);
    for (const row of rows) if (row.isQueue) row.hidden = !isQueueShown;
    lanes.place();
  });
  queueButton.setAttribute("aria-pressed", isQueueShown);
  const pathButton = button("critical path", "show the critical path: of the selected execution, or of all", () => {
    isPathShown = !isPathShown;
    pathButton.setAttribute("aria-pressed", isPathShown);
    card.root.dataset.path = 0;
    lanes.ask();
  });
  pathButton.setAttribute("aria-pressed", isPathShown);
  card.controls.append(search, found);
  if (columns.path_lane.length) card.controls.append(pathButton);
  if (head.queues.some((each) => each.count)) card.controls.append(queueButton);
  card.controls.append(
    lanes.fitControl(),
    button("−", "zoom out", () => lanes.zoom(1 / 0.6)),
    button("+", "zoom in", () => lanes.zoom(0.6)),
    button("all", "show all", () => {
      lanes.choose(-1);
      lanes.reset();
    }),
  );
  if (merged) {
    const { until_us: until, bin_us: bin, bars } = merged;
    const words = `Before ${timeText(until)}, where the line is, each bar is a sum of ${timeText(bin)}: ${countText(bars)} single bars are left out, so that this page stays small and quick. Transfers and critical paths are shown after it.`;
    card.body.prepend(element("p", { class: "rcg-note" }, words));
    card.controls.append(button("single bars", "show the time that has single bars", () => lanes.show(until, head.duration_us)));
  }
  const seen = new Set(kind);
  card.explain([
    ...head.looks.flatMap(({ title, colour }, each) => (seen.has(each) ? [[colour ?? "rcg-waiting", title]] : [])),
    ["rcg-idle", "idle"],
    ...(collectives.length ? [["rcg-meeting", "collective"]] : []),
  ]);
  const hint = isTouched() ? "drag aside: pan · two fingers: zoom · tap a bar: its execution and its transfers" : "click a bar: its execution and its transfers · drag: zoom and sum · shift+drag: pan · wheel: zoom (after a click, or with Ctrl) · double click: all";
  card.legend.append(element("span", { class: "rcg-hint" }, hint));
  lanes.place();
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

export default { render: renderer("timeline", fillTimeline) };
