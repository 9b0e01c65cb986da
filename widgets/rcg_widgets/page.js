// SPDX-License-Identifier: Apache-2.0
// A saved page (see rcg/views/html/interactive.py): draws the views whose data is in it, each in the
// place of its picture. The views of a graph are linked as rcg_widgets.link links them in a notebook.

import { element, renderer } from "./common.js";
import { fillScene } from "./scene.js";
import { fillTopology } from "./topology.js";

const FILLS = { pipeline: fillScene, schedule: fillScene, timeline: fillScene, topology: fillTopology };
const LINKED = ["selected_process", "selected_op", "selected_execution", "window"];

const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** What a view takes for its model. Without a kernel, the models of a graph send each other changes. */
export class Model {
  constructor(values, linked) {
    this.values = values;
    this.linked = linked;
    this.listeners = new Map();
    this.changed = new Set();
    linked.push(this);
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    if (!this.take(name, value)) return;
    this.changed.add(name);
    this.tell(name);
  }

  /** Others hear of all changes when all of them are there. */
  save_changes() {
    const names = LINKED.filter((name) => this.changed.has(name));
    this.changed.clear();
    for (const other of this.linked) {
      if (other !== this) names.filter((name) => other.take(name, this.values[name])).forEach((name) => other.tell(name));
    }
  }

  on(event, callback) {
    this.listeners.set(event, [...(this.listeners.get(event) ?? []), callback]);
  }

  off(event, callback) {
    this.listeners.set(event, (this.listeners.get(event) ?? []).filter((each) => each !== callback));
  }

  take(name, value) {
    if (isSame(this.values[name], value)) return false;
    this.values[name] = value;
    return true;
  }

  tell(name) {
    for (const each of this.listeners.get(`change:${name}`) ?? []) each();
  }
}

function bytesOf(text) {
  const found = atob(text);
  const bytes = new Uint8Array(found.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = found.charCodeAt(at);
  return bytes;
}

/** Draws a view; its picture goes when that has worked. */
function show(data, linked, window) {
  const { view, graph, title } = data.dataset;
  const picture = document.querySelector(`[data-view="${view}"][data-graph="${graph}"]:not(script)`);
  const values = { payload: bytesOf(data.textContent), title, window };
  for (const name of LINKED) values[name] ??= null;
  const place = element("div", { hidden: true });
  picture.after(place);
  new MutationObserver((_, observer) => {
    observer.disconnect();
    picture.remove();
    place.hidden = false;
  }).observe(place, { subtree: true, attributeFilter: ["data-ready"] });
  renderer(view, FILLS[view])({ model: new Model(values, linked), el: place });
}

if (globalThis.document) {
  const graphs = new Map();
  for (const data of document.querySelectorAll("script[data-view]")) {
    const { graph, window } = data.dataset;
    if (!graphs.has(graph)) graphs.set(graph, []);
    try {
      show(data, graphs.get(graph), JSON.parse(window));
    } catch (error) {
      console.error(error); // its picture stays, and the next view is drawn
    }
  }
}
