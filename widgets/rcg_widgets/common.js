// SPDX-License-Identifier: Apache-2.0
// What all views share: reading payloads, numbers with units, colours, and the frame around a view.

// --- payloads -------------------------------------------------------------------------------------

const ARRAYS = {
  f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array,
};

/** The head and the typed arrays of an inflated payload (see rcg/views/data/packing.py). */
export function columnsOf(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = {};
  let at = 4 + length;
  for (const { name, type, length: count, planes, scale, until } of head.columns) {
    if (planes === undefined) columns[name] = new ARRAYS[type](buffer, at, count);
    else columns[name] = numbersOf(new Uint8Array(buffer, at, planes * count), count, scale, columns[until]);
    at += Math.ceil((planes === undefined ? columns[name].byteLength : planes * count) / 8) * 8;
  }
  return { head, columns };
}

/** Numbers from the bytes of what they differ by; of durations, from the starts. */
function numbersOf(planes, count, scale, start) {
  const found = new Float64Array(count);
  for (let plane = planes.length / Math.max(count, 1) - 1; plane >= 0; plane -= 1) {
    for (let at = 0; at < count; at += 1) found[at] = found[at] * 256 + planes[plane * count + at];
  }
  const whole = (at) => Math.round(start[Math.min(at, count - 1)] * scale);
  let last = 0;
  for (let at = 0; at < count; at += 1) {
    const value = found[at] % 2 ? -(found[at] + 1) / 2 : found[at] / 2;
    last = start ? whole(at + 1) - whole(at) - value : last + value;
    found[at] = last / scale;
  }
  return found;
}

/** The head and the arrays of a payload trait: a DataView on deflated bytes. */
export async function unpack(view) {
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream("deflate"));
  return columnsOf(await new Response(stream).arrayBuffer());
}

// --- numbers --------------------------------------------------------------------------------------

// Three digits in a suitable unit, as in rcg/text.py: tests/harness/figures.json has cases for both.

const TIMES = [[1e6, "s"], [1e3, "ms"], [1, "µs"], [1e-3, "ns"]];
const AMOUNTS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

function shown(value) {
  if (!Number.isFinite(value)) return "-";
  return (value || 0).toLocaleString("en-US", { maximumFractionDigits: 20 }); // -0 has no sign
}

function digits(value) {
  return shown(Number(value.toPrecision(3)));
}

function figure(value, units) {
  // What is rounded to 1,000 of a unit is one of the next.
  const [scale, unit] = units.find(([least]) => Math.abs(value) >= least * 0.9995) ?? units.at(-1);
  return `${digits(value / scale)} ${unit}`;
}

/** A duration in microseconds. */
export function timeText(us) {
  return us ? figure(us, TIMES) : "0 s";
}

/** An amount of memory; also a mean has no parts of a byte. */
export function bytesText(count) {
  return figure(Math.abs(count) < 1e3 ? Math.round(count) : count, AMOUNTS);
}

/** A rate per second. */
export function rateText(perS) {
  return `${digits(perS)} /s`;
}

/** How fast bytes were moved. */
export function speedText(gbPerS) {
  return `${bytesText(gbPerS * 1e9)}/s`;
}

/** A share of 1, with so many digits behind the point at most; without any, a small one has one. */
export function shareText(share, places = 1) {
  const most = places || Math.abs(share) < 0.0005 || Math.abs(share) >= 0.0095 ? places : 1;
  const perCent = share * 100;
  // From 1e15 on a number has no exact digits behind its point.
  const rounded = Math.abs(perCent) < 1e15 ? perCent.toFixed(most) : perCent.toPrecision(3);
  return `${shown(Number(rounded))} %`;
}

/** A count with its thousands apart, or three digits of what is not whole. */
export function countText(value) {
  return Number.isInteger(value) ? value.toLocaleString("en-US") : digits(value);
}

/** Ticks of a time axis between two times in microseconds: position and label. All in one unit, and at least two. */
export function ticksOf(from, to, most) {
  const extent = Math.max(Math.abs(from), Math.abs(to));
  const [scale, unit] = TIMES.find(([least]) => extent >= least) ?? TIMES.at(-1);
  const ticks = [];
  for (let wanted = Math.max(to - from, 1e-6) / Math.max(most, 1); ticks.length < 2; wanted /= 2) {
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wanted * 0.999);
    const places = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    ticks.length = 0;
    for (let number = Math.ceil(from / step - 1e-9); number * step <= to + step * 1e-9; number += 1) {
      const value = (number * step) / scale;
      ticks.push([number * step, `${Number(value.toFixed(Math.min(places, 12)))} ${unit}`]);
    }
    if (!(wanted >= 1e-6)) break;
  }
  return ticks;
}

/** The first index whose value is at least as large; values ascend. */
export function lowerBound(values, wanted, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Where to cut a text without cutting a number. */
function wholeNumbers(text, first, last) {
  for (const found of text.matchAll(/\d+(?:[.,]\d+)*/g)) {
    const end = found.index + found[0].length;
    if (found.index < first && first < end) first = found.index;
    if (found.index < last && last < end) last = end;
  }
  return [first, Math.max(first, last)];
}

const WORD = /\ba\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+(?:[.,]\d+)*/g;
const MOST = 0.6; // of what a cut between any two characters keeps

/**
 * As much of the beginning and the end of a text as fits, by a function that measures: cut between
 * words if that keeps most of it. A number is never cut: it is left out, or, at the end of the text,
 * shown alone.
 */
export function shorten(text, room, measure) {
  if (measure(text) <= room) return text;
  const number = /(?:\d+(?:[.,]\d+)*)$/.exec(text)?.[0] ?? "";
  const body = text.length - number.length;
  let low = 0;
  let high = body;
  const cut = (keep) => {
    // The whole number at the end, and equally much on both sides of the gap.
    const back = number ? 0 : Math.floor(keep / 2);
    const [first, last] = wholeNumbers(text, keep - back, body - back);
    return `${text.slice(0, first)}…${text.slice(last)}`;
  };
  while (low < high) {
    const middle = (low + high + 1) >>> 1;
    if (measure(cut(middle)) <= room) low = middle;
    else high = middle - 1;
  }
  const shown = low < 1 ? "" : cut(low);
  if (!shown || measure(shown) > room) return number && measure(number) <= room ? number : "";
  const words = [...text.matchAll(WORD)];
  const starts = [...words.map((word) => word.index), text.length].filter((at) => at <= body);
  const between = words.flatMap((word) => {
    const front = `${text.slice(0, word.index + word[0].length)}…`;
    return starts.map((at) => front + text.slice(at)).find((each) => each.length < text.length && measure(each) <= room) ?? [];
  });
  const clean = between.filter((each) => each.length - 1 >= MOST * (shown.length - 1));
  // Rather both ends than one, and rather more of the beginning.
  const weight = (each) => each.length + each.indexOf("…") + (each.endsWith("…") ? 0 : 2 * text.length);
  const best = clean.reduce((one, other) => (one && weight(one) >= weight(other) ? one : other), "") || shown;
  // Of an actor and its class rather the actor alone than the end of the class.
  const name = /^(.+) \(.*\)$/.exec(text)?.[1];
  return name && !best.includes("(") && measure(name) <= room ? name : best;
}

// --- colours --------------------------------------------------------------------------------------
/** Red, green and blue of a colour as browsers compute it or as #rrggbb; null if it is neither. */
export function parseColour(text) {
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(text);
  if (hex) return hex.slice(1).map((each) => parseInt(each, 16));
  const numbers = /^rgba?\(([^)]+)\)$/.exec(text);
  if (!numbers) return null;
  const parts = numbers[1].split(/[\s,/]+/).filter(Boolean).map(Number);
  return parts.length > 3 && parts[3] === 0 ? null : parts.slice(0, 3);
}

/** The perceived brightness of a colour, from 0 to 1. */
export function luminance([red, green, blue]) {
  const linear = [red, green, blue].map((each) => {
    const share = each / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

/** White, or nearly black if white is not legible on a background. */
export function inkOn(colour) {
  const ground = luminance(parseColour(colour) ?? [255, 255, 255]);
  return 1.05 / (ground + 0.05) >= 3.6 ? "#ffffff" : "#16191d";
}

/** A colour over another one: how much of it there is, from 0 to 1. */
export function mixed(colour, ground, share) {
  const [one, other] = [colour, ground].map((each) => parseColour(each) ?? [255, 255, 255]);
  const byte = (each, at) => Math.round(each * share + other[at] * (1 - share));
  return `#${one.map((each, at) => byte(each, at).toString(16).padStart(2, "0")).join("")}`;
}

// --- elements -------------------------------------------------------------------------------------

/** An element with attributes and children. Text is never markup. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** The same for SVG. */
export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/**
 * A card with a title, a subtitle, and room for controls and a picture. It reports changes of the
 * theme and of its width. `dispose` removes all its listeners.
 */
export class Card {
  constructor(model, el, name) {
    this.model = model;
    this.root = element("section", { class: `rcg-card rcg-${name}`, "aria-label": model.get("title") });
    this.heading = element("div", { class: "rcg-title" }, model.get("title"));
    this.subtitle = element("div", { class: "rcg-subtitle" });
    this.controls = element("div", { class: "rcg-controls" });
    this.body = element("div", { class: "rcg-body" });
    this.legend = element("div", { class: "rcg-legend" });
    this.tooltip = element("div", { class: "rcg-tooltip", role: "status", hidden: true });
    this.root.append(
      element("header", { class: "rcg-header" }, element("div", { class: "rcg-titles" }, this.heading, this.subtitle), this.controls),
      this.body, this.legend, this.tooltip,
    );
    el.append(this.root);
    this.endings = [];
    this.themeListeners = [];
    this.listen(model, "change:title", () => {
      this.heading.textContent = model.get("title");
      this.root.setAttribute("aria-label", model.get("title"));
    });
    this.watchTheme();
  }

  /** Listens to a model (`change:x`) or to an event target until the view ends. */
  listen(target, event, callback, options) {
    if (target.addEventListener) {
      target.addEventListener(event, callback, options);
      this.endings.push(() => target.removeEventListener(event, callback, options));
    } else {
      target.on(event, callback);
      this.endings.push(() => target.off(event, callback));
    }
  }

  watchTheme() {
    const look = () => {
      const ground = parseColour(getComputedStyle(this.root).backgroundColor);
      const theme = ground && luminance(ground) < 0.2 ? "dark" : "light";
      if (this.root.dataset.theme === theme) return;
      this.root.dataset.theme = theme;
      this.themeListeners.forEach((each) => each());
    };
    // The style sheets of a new theme are loaded after its attribute is set.
    const lookTwice = () => {
      look();
      setTimeout(look, 300);
    };
    const observer = new MutationObserver(lookTwice);
    for (const each of [document.body, document.documentElement]) {
      observer.observe(each, { attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind", "theme"] });
    }
    this.endings.push(() => observer.disconnect());
    this.listen(matchMedia("(prefers-color-scheme: dark)"), "change", lookTwice);
    const isShown = new ResizeObserver(look); // the first time that it is in the page
    isShown.observe(this.root);
    this.endings.push(() => isShown.disconnect());
    look();
  }

  onTheme(callback) {
    this.themeListeners.push(callback);
  }

  onWidth(node, callback) {
    let last = -1;
    const observer = new ResizeObserver(() => {
      const width = node.clientWidth;
      if (width > 0 && width !== last) callback((last = width));
    });
    observer.observe(node);
    this.endings.push(() => observer.disconnect());
  }

  /** The value of a colour in the style sheet, for a canvas. */
  colour(name) {
    return getComputedStyle(this.root).getPropertyValue(`--rcg-${name}`).trim();
  }

  /** Shows lines next to a point of the page. The first one is the heading. */
  tell(lines, clientX, clientY) {
    this.tooltip.replaceChildren(
      ...lines.filter(Boolean).map((line, at) => element("div", { class: at ? "rcg-tip-line" : "rcg-tip-title" }, line)),
    );
    this.tooltip.hidden = false;
    const frame = this.root.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tooltip;
    let x = clientX - frame.left + 14;
    let y = clientY - frame.top + 14;
    if (x + width > frame.width - 8) x = Math.max(8, clientX - frame.left - width - 14);
    if (y + height > frame.height - 4) y = Math.max(4, clientY - frame.top - height - 14);
    this.tooltip.style.left = `${x}px`;
    this.tooltip.style.top = `${y}px`;
  }

  hush() {
    this.tooltip.hidden = true;
  }

  /** Shows a legend: pairs of a CSS class, a colour and its opacity, or a letter, and words. */
  explain(entries) {
    this.legend.replaceChildren(
      ...entries.map(([sign, words]) => {
        const swatch = element("span", { class: "rcg-swatch" });
        if (sign.letter) return element("span", { class: "rcg-key" }, element("b", {}, sign.letter), words);
        if (Array.isArray(sign)) [swatch.style.background, swatch.style.opacity] = sign;
        else swatch.classList.add(sign);
        return element("span", { class: "rcg-key" }, swatch, words);
      }),
    );
  }

  /** Sets traits and sends them. */
  set(values) {
    for (const [name, value] of Object.entries(values)) this.model.set(name, value);
    this.model.save_changes();
  }

  dispose() {
    this.endings.splice(0).forEach((each) => each());
    this.root.remove();
  }
}

/** Whether fingers are the pointer: then the words about it are others. */
export const isTouched = () => matchMedia("(pointer: coarse)").matches;

export function button(text, label, onclick) {
  return element("button", { type: "button", class: "rcg-button", title: label, "aria-label": label, onclick }, text);
}

/** A view's `render`: a card, filled when its payload is unpacked, and again when that changes. */
export function renderer(name, fill) {
  return ({ model, el }) => {
    const card = new Card(model, el, name);
    let inner = null;
    let turn = 0;
    const show = async () => {
      const mine = ++turn;
      try {
        const payload = await unpack(model.get("payload"));
        if (mine !== turn) return;
        inner?.();
        card.controls.replaceChildren();
        card.body.replaceChildren();
        inner = fill(card, payload) ?? null;
        card.root.dataset.ready = "true";
      } catch (error) {
        card.body.replaceChildren(element("p", { class: "rcg-problem" }, `This view cannot be drawn: ${error.message}`));
        console.error(error);
      }
    };
    card.listen(model, "change:payload", show);
    show();
    return () => {
      turn += 1;
      inner?.();
      card.dispose();
    };
  };
}
