// SPDX-License-Identifier: Apache-2.0
// The schedule: when each actor works on which execution. Bars are measured, outlines predicted. If an
// execution calls a method several times, a colour is one of these calls: a micro-batch.

import { button, bytesText, countText, element, renderer, speedText, timeText } from "./common.js";
import { Lanes, headingsOf, labelOf, rowOf, visibleIn } from "./lanes.js";

const ROW = 32;
const LANE = 13; // the row of a lane of an actor, and of a process without calls
const MEASURED = 0.72; // of a row with predictions below
const BUSY = "#7d8793"; // what is not in a method

/** When the first bar of each execution begins and its last one ends: [from, to] by execution. */
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

/** The bars of each lane. */
export function byLane(lane, count) {
  const found = Array.from({ length: count }, () => []);
  for (let at = 0; at < lane.length; at += 1) found[lane[at]].push(at);
  return found.map((each) => Int32Array.from(each));
}

function columnsNamed(columns, prefix) {
  return Object.fromEntries(["start", "duration", "execution", "lane", "op", "bytes"].map((name) => [name, columns[prefix + name]]));
}

/**
 * The exchanges of tensors: for each one its bars, when it began, because the last of its ends had
 * arrived, and the rendezvous that it is of. A transfer has two bars, a collective one per rank.
 */
export function exchangesOf({ start, duration, execution, lane, op }, rendezvous) {
  const found = [];
  if (!rendezvous.length) return found;
  const at = new Map();
  for (let bar = 0; bar < start.length; bar += 1) at.set(`${lane[bar]} ${op[bar]} ${execution[bar]}`, bar);
  for (const each of rendezvous) {
    const [first, ...others] = each.ends;
    const sets = each.is_collective ? [each.ends] : others.map((other) => [first, other]);
    for (let bar = 0; bar < start.length; bar += 1) {
      if (lane[bar] !== first[0] || op[bar] !== first[1]) continue;
      for (const ends of sets) {
        const bars = ends.map(([where, which]) => at.get(`${where} ${which} ${execution[bar]}`));
        if (bars.includes(undefined)) continue;
        const last = bars.at(-1);
        const end = each.is_collective ? Math.max(...bars.map((one) => start[one] + duration[one])) : start[last] + duration[last];
        found.push({ rendezvous: each, bars, begin: Math.max(...bars.map((one) => start[one])), end });
      }
    }
  }
  return found.sort((one, other) => one.begin - other.begin);
}

export function fillSchedule(card, { head, columns }) {
  const { model } = card;
  const measured = columnsNamed(columns, "measured_");
  const predicted = columnsNamed(columns, "predicted_");
  const hasMeasured = measured.start.length > 0;
  // The bars that can be picked: measured ones, or predicted ones without a measurement.
  const bars = hasMeasured ? measured : predicted;
  // From its calls: the driver submits long before and fetches long after them.
  const isCallOf = (from) => (at) => head.calls[from.lane[at]][from.op[at]];
  const extents = extentsOf(bars, isCallOf(bars));
  const predictedExtents = extentsOf(predicted, isCallOf(predicted));
  const barLanes = byLane(bars.lane, head.lanes.length);
  const predictedRows = byLane(predicted.lane, head.lanes.length).map((each) => rowOf(each, predicted.start, predicted.duration));
  const exchanges = exchangesOf(bars, head.rendezvous);
  const exchangesAt = new Map();
  for (const each of exchanges) for (const bar of each.bars) exchangesAt.set(bar, [...(exchangesAt.get(bar) ?? []), each]);
  const shows = { measured: hasMeasured, predicted: true };
  const clean = (value) => (value === null || value < head.first || value > head.last ? null : value);
  let current = clean(model.get("selected_execution"));
  const isCall = isCallOf(bars);
  const numColours = head.colours.length;
  const turnOf = (from, at) => Math.max(head.turns[from.lane[at]][from.op[at]], 0);
  const colourOf = (from, at) => (from.execution[at] * head.repeats + turnOf(from, at)) % numColours;
  const buckets = Uint8Array.from(bars.op, (op, at) => (isCall(at) ? colourOf(bars, at) + numColours * head.tints[bars.lane[at]][op] : 2 * numColours));
  const isCalling = head.calls.map((each) => each.includes(true));
  const heights = Float32Array.from(bars.op, (_, at) => (isCall(at) ? 1 : isCalling[bars.lane[at]] ? 0.3 : 0.8));
  const labelsOf = (from, at) => {
    const name = head.ops[from.lane[at]][from.op[at]];
    const number = head.repeats > 1 ? turnOf(from, at) : from.execution[at];
    const short = `${head.initials[name] ?? ""}${number}`;
    return [`${name} ${number}`, short, head.repeats > 1 ? short : `${number}`];
  };
  const inCalls = (us) => {
    const number = countText(us / 1e3);
    return `${number} call${number === "1" ? "" : "s"}`;
  };
  const time = head.is_unit ? inCalls : timeText;

  // One that does not fit the measurement is shown for one execution, from where that begins.
  const isPredictionShown = () => shows.predicted && (head.fits || current !== null);
  const headings = headingsOf(head.order.map((number) => head.lanes[number].node));
  const rows = head.order.map((number, place) => {
    const { process, label, detail, under, short, members } = head.lanes[number];
    const row = {
      lane: number, process, name: label, detail: detail ?? (process === label ? "" : process), label: short || label, sub: "", isLane: Boolean(under), isCalling: isCalling[number], members,
      height: isCalling[number] ? ROW : LANE, gap: under ? 3 : place ? 8 : 0, heading: headings[place], isHatched: true,
      bars: rowOf(barLanes[number], bars.start, bars.duration),
      has: (slice) => bars.lane[slice] === number || Boolean(members?.includes(bars.lane[slice])),
    };
    row.barHeight = () => (hasMeasured && row.isCalling && isPredictionShown() ? row.height * MEASURED : row.height);
    return row;
  });
  let begun = bars.start.length ? Infinity : 0;
  let length = 0; // up to the end of the last
  for (let at = 0; at < bars.start.length; at += 1) {
    begun = Math.min(begun, bars.start[at]);
    length = Math.max(length, bars.start[at] + bars.duration[at]);
  }

  let selectedProcess;
  let selectedOp;
  const takeSelection = () => {
    selectedProcess = model.get("selected_process");
    selectedOp = model.get("selected_op");
  };
  takeSelection();
  const isOf = ({ process, members }) => process === selectedProcess || Boolean(members?.some((each) => head.lanes[each].process === selectedProcess));
  const isSelected = (slice) => isOf(head.lanes[bars.lane[slice]]) && (selectedOp === null || bars.op[slice] === selectedOp);

  const lanes = new Lanes(card, {
    rows, start: bars.start, duration: bars.duration, timeText: time, tickText: head.is_unit ? inCalls : undefined,
    outside: head.first ? `this schedule has executions ${countText(head.first)} to ${countText(head.last)}` : "",
    range: [begun, Math.max(length + (length - begun) * 0.005, begun + 1)],
    colours: [...head.colours, ...head.colours.map((each) => [each, 0.5]), BUSY],
    look: {
      bucket: (slice) => buckets[slice],
      alpha: (slice) => {
        if (!shows.measured && hasMeasured) return 0;
        // An execution is lit in all lanes; without one, a process or an op in all executions.
        if (current !== null) return bars.execution[slice] === current ? 1 : 0.25;
        return selectedProcess === null || isSelected(slice) ? 1 : 0.2;
      },
      isMarked: (slice) => current !== null && bars.execution[slice] === current && selectedOp !== null && isSelected(slice),
      height: (slice) => heights[slice],
      text: (slice) => (isCall(slice) && (shows.measured || !hasMeasured) ? labelsOf(bars, slice) : ""),
      tell: (slice) => {
        const lines = [
          `${head.lanes[bars.lane[slice]].label}: ${head.ops[bars.lane[slice]][bars.op[slice]]}`,
          `execution ${countText(bars.execution[slice])} · ${hasMeasured ? "measured" : "predicted"} ${time(bars.duration[slice])}`,
        ];
        const other = hasMeasured ? predictedDuration(slice) : null;
        if (other !== null) lines.push(`predicted ${time(other)}`);
        const { members } = head.lanes[bars.lane[slice]];
        if (members) {
          const all = members.flatMap((each) => [...barLanes[each]]).filter((each) => bars.op[each] === bars.op[slice] && bars.execution[each] === bars.execution[slice]);
          const lengths = all.map((each) => bars.duration[each]);
          lines.push(`median of ${lengths.length}, of ${time(Math.min(...lengths))} to ${time(Math.max(...lengths))}`);
        }
        for (const each of (exchangesAt.get(slice) ?? []).slice(0, 4)) lines.push(exchangeText(each));
        return lines;
      },
    },
    above: (each, context) => hasJoins() && joins(each, context, true),
    behind: (each, context) => {
      each.tellPart(head.subtitle);
      if (hasJoins()) joins(each, context, false);
      card.root.dataset.outlines = 0;
      if (hasMeasured && isPredictionShown()) outlines(each, context);
    },
    pick: (slice) => {
      if (slice < 0) card.set({ selected_process: null, selected_op: null });
      else {
        card.set({ selected_process: head.lanes[bars.lane[slice]].process, selected_op: bars.op[slice] });
        step(bars.execution[slice], false);
      }
      takeSelection();
    },
  });

  function exchangeText({ rendezvous, bars: ends, begin, end }) {
    const names = ends.map((bar) => head.lanes[bars.lane[bar]].label);
    const who = rendezvous.is_collective ? `all ${ends.length} ranks` : names.join(" → ");
    const size = Math.max(...ends.map((bar) => bars.bytes[bar]));
    const amount = size ? `${bytesText(size)} in ${time(end - begin)} · ${speedText(size / (end - begin) / 1e3)}` : `in ${time(end - begin)}`;
    return `${rendezvous.name}, ${who}: ${amount}`;
  }

  const hasJoins = () => exchanges.length > 0 && (shows.measured || !hasMeasured);

  /** Joins the ends of each transfer, or the ranks of each collective with a dot on each. */
  function joins(each, context, ofCollectives) {
    const [from, to] = each.span;
    const wanted = exchanges.filter(({ begin, end }) => end >= from && begin <= to);
    card.root.dataset.joins = wanted.length;
    if (wanted.length * 9 > each.room) return; // a thicket tells nothing
    const isDark = card.root.dataset.theme === "dark";
    for (const { rendezvous, bars: ends, begin, end } of wanted.filter((one) => one.rendezvous.is_collective === ofCollectives)) {
      const rows = ends.map((bar) => each.rowWith(bar));
      if (rows.includes(undefined)) continue;
      const look = head.looks[rendezvous.is_collective ? "collective" : "gloo"];
      const isCurrent = current === null || bars.execution[ends[0]] === current;
      context.strokeStyle = isDark ? look.dark : look.light;
      context.fillStyle = context.strokeStyle;
      context.lineWidth = 1.4;
      context.globalAlpha = isCurrent ? 0.9 : 0.15;
      const middles = rows.map((row) => row.y + row.barHeight() / 2);
      context.beginPath();
      if (rendezvous.is_collective) {
        context.moveTo(each.x(begin), Math.min(...middles));
        context.lineTo(each.x(begin), Math.max(...middles));
      } else {
        context.moveTo(each.x(begin), middles[0]);
        context.lineTo(each.x(end), middles[1]);
      }
      context.stroke();
      for (const y of rendezvous.is_collective ? middles : []) {
        context.beginPath();
        context.arc(each.x(begin), y, 2.6, 0, 7);
        context.fill();
      }
    }
    context.globalAlpha = 1;
  }

  function predictedDuration(slice) {
    const row = predictedRows[bars.lane[slice]];
    for (const at of row.indices) if (predicted.op[at] === bars.op[slice] && predicted.execution[at] === bars.execution[slice]) return predicted.duration[at];
    return null;
  }

  /** Predictions: a band below the bars, or the whole row if there are no bars. */
  function outlines(each, context) {
    const away = head.fits ? 0 : (extents.get(current)?.[0] ?? 0) - (predictedExtents.get(current)?.[0] ?? 0);
    const isAlone = hasMeasured && !shows.measured;
    context.lineWidth = 1;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = each.font;
    let count = 0;
    for (const row of each.shown) {
      if (!row.isCalling) continue;
      const all = predictedRows[row.lane];
      const [first, last] = visibleIn(all, each.span[0] - away, each.span[1] - away);
      const height = isAlone ? row.height - 2 : Math.max(row.height * (1 - MEASURED) - 3, 1.5);
      const y = row.y + row.height - height - 1;
      for (let at = first; at < last; at += 1) {
        const slice = all.indices[at];
        const width = predicted.duration[slice] * each.perUs;
        const isCurrent = current === null || predicted.execution[slice] === current;
        if (width < 3 || !head.calls[row.lane][predicted.op[slice]] || !(head.fits || isCurrent)) continue;
        const colour = head.colours[colourOf(predicted, slice)];
        const x = each.x(all.starts[at] + away);
        context.globalAlpha = isCurrent ? 0.22 : 0.06;
        context.fillStyle = colour;
        context.fillRect(x, y, width, height);
        context.globalAlpha = isCurrent ? 1 : 0.3;
        context.strokeStyle = colour;
        context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
        count += 1;
        const text = labelOf(labelsOf(predicted, slice), width - 8, (label) => each.measure(label, each.font));
        if (isAlone && text) {
          context.fillStyle = each.paints.text;
          context.fillText(text, x + width / 2, y + height / 2 + 0.5);
        }
      }
    }
    context.globalAlpha = 1;
    card.root.dataset.outlines = count;
  }

  // Stepping

  const slider = element("input", {
    class: "rcg-range", type: "range", min: head.first, max: head.last, value: current ?? head.first, "aria-label": "execution",
    oninput: () => step(Number(slider.value)),
    onkeydown: (event) => event.stopPropagation(),
  });
  const shown = element("span", { class: "rcg-value", role: "status" });
  function step(to, isMoving = true) {
    current = to === null ? null : Math.min(Math.max(to, head.first), head.last);
    if (model.get("selected_execution") !== current) card.set({ selected_execution: current });
    tell(isMoving);
  }
  function tell(isMoving) {
    slider.value = current ?? head.first;
    shown.textContent = current === null ? "" : countText(current);
    all.setAttribute("aria-pressed", current === null);
    back.disabled = current !== null && current <= head.first;
    forth.disabled = current !== null && current >= head.last;
    card.root.dataset.execution = current ?? "";
    if (isMoving && current !== null && extents.has(current)) {
      const [from, to] = extents.get(current);
      const pad = (to - from) * 0.35;
      lanes.show(from - pad, to + pad);
    } else if (isMoving && current === null) lanes.reset();
    lanes.ask();
  }
  const back = button("‹", "the execution before", () => step(current === null ? head.last : current - 1));
  const forth = button("›", "the next execution", () => step(current === null ? head.first : current + 1));
  const all = button("all", "all executions", () => {
    lanes.picked = -1;
    lanes.pickedPoint = false;
    card.hush();
    card.set({ selected_process: null, selected_op: null });
    step(null);
  });
  card.controls.append(element("span", {}, "execution"), back, slider, forth, shown, all);

  // What is shown

  for (const which of hasMeasured ? ["measured", "predicted"] : []) {
    const toggle = button(which, `show what was ${which}`, () => {
      shows[which] = !shows[which];
      toggle.setAttribute("aria-pressed", shows[which]);
      card.root.dataset[which] = shows[which];
      lanes.ask();
    });
    toggle.setAttribute("aria-pressed", shows[which]);
    card.root.dataset[which] = shows[which];
    card.controls.append(toggle);
  }
  let isFolded = true;
  const inOne = new Set(head.lanes.flatMap((each) => each.members ?? []));
  const count = element("summary", {});
  const list = element("div", { class: "rcg-menu-list" });
  const menu = element("details", { class: "rcg-menu" }, count, list);
  // What can be ticked is what is a row: several actors together while they are folded.
  const boxes = head.lanes.map(({ members = [] }) => element("input", {
    type: "checkbox", checked: true,
    onchange: (event) => {
      for (const each of members) boxes[each].checked = event.target.checked;
      filter();
    },
  }));
  for (const { lane, name } of rows) list.append(element("label", {}, boxes[lane], name));
  const numProcesses = head.lanes.filter((each) => !each.members).length;
  const filter = () => {
    let num = 0;
    for (const row of rows) {
      const isRow = row.members ? isFolded : !(isFolded && inOne.has(row.lane));
      const box = boxes[row.lane];
      if (row.members) {
        const ticked = row.members.filter((each) => boxes[each].checked).length;
        box.checked = ticked > 0;
        box.indeterminate = ticked > 0 && ticked < row.members.length;
      }
      box.parentElement.hidden = !isRow;
      row.hidden = !(isRow && box.checked);
      if (!row.hidden) num += row.members?.length ?? 1;
    }
    count.textContent = `${num} of ${numProcesses} processes`;
    card.root.dataset.rows = rows.filter((row) => !row.hidden).length;
    lanes.place();
  };
  const every = (value) => () => {
    boxes.forEach((box) => (box.checked = value));
    filter();
  };
  list.prepend(element("div", { class: "rcg-controls" }, button("all", "show every process", every(true)), button("none", "hide every process", every(false))));
  const fold = button("fold", "one row, of medians, for actors that do the same at the same time", () => {
    isFolded = !isFolded;
    fold.setAttribute("aria-pressed", isFolded);
    filter();
  });
  fold.setAttribute("aria-pressed", isFolded);
  card.controls.append(menu, ...(inOne.size ? [fold] : []), lanes.fitControl());
  card.listen(document, "pointerdown", (event) => {
    if (menu.open && !event.composedPath().includes(menu)) menu.open = false;
  });
  card.listen(menu, "keydown", (event) => {
    if (event.key === "Escape") menu.open = false;
  });

  const initials = Object.entries(head.initials).map(([name, letter]) => `${letter} = ${name}`);
  card.explain([
    ...(hasMeasured ? [["rcg-outline", head.fits ? "predicted, below" : "predicted, below the selected execution"]] : []),
    ...(head.tints.flat().includes(1) ? [[[head.colours[0], 0.5], "another method of the actor"]] : []),
    [BUSY, "not in a method"],
    ["rcg-idle", "waiting or idle"],
    ...(head.rendezvous.some((each) => !each.is_collective) ? [["rcg-transfer", "transfer"]] : []),
    ...(head.rendezvous.some((each) => each.is_collective) ? [["rcg-meeting", "collective"]] : []),
  ]);
  card.legend.append(element("span", { class: "rcg-hint" }, [`colour = ${head.colour_words}`, ...initials].join(" · ")));
  card.listen(model, "change:selected_execution", () => {
    const wanted = clean(model.get("selected_execution"));
    if (wanted === current) return;
    current = wanted;
    // The other view may show it already, in the window that it shares.
    const [from, to] = extents.get(current) ?? lanes.span;
    tell(to < lanes.span[0] || from > lanes.span[1]);
  });
  for (const trait of ["selected_process", "selected_op"]) {
    card.listen(model, `change:${trait}`, () => {
      takeSelection();
      lanes.ask();
    });
  }
  filter();
  tell(current !== null);
}

export default { render: renderer("schedule", fillSchedule) };
