// What the daemons of the nodes report about themselves: one request for all views.

import { poll } from './api.js';
import { plural } from './format.js';
import { setText } from './dom.js';

const RARELY = 10000; // milliseconds between two requests
const NAMED = 3; // silent nodes that are named

class Nodes {
  constructor() {
    this.listeners = new Set();
    this.list = null; // before the first answer, and after an error
  }

  /** follow requests the status of all nodes from now on. */
  follow() {
    poll('/v1/status', RARELY, new AbortController().signal, (a) => this.take(a.nodes), () => this.take(null));
  }

  /** listen calls back with each answer, null for none, and at once with the last one. */
  listen(listener) {
    this.listeners.add(listener);
    listener(this.list);
    return () => this.listeners.delete(listener);
  }

  take(list) {
    this.list = list;
    this.drawSilent();
    for (const listener of this.listeners) listener(list);
  }

  /** drawSilent shows above each view the nodes whose flows and counters it lacks. */
  drawSilent() {
    const silent = (this.list ?? []).flatMap(({ node, problems }) => (problems ?? []).filter((p) => p.code === 'unreachable').map((p) => [node, p.text]));
    const element = document.getElementById('silent'), some = silent.slice(0, NAMED);
    element.hidden = silent.length === 0 || this.list.length === 1;
    if (element.hidden) return;
    const more = silent.length > NAMED ? [`${plural(silent.length - NAMED, 'more node')} without an answer.`] : [];
    setText(element, [...some.map(([node, text]) => `${node}: ${text}.`), ...more, `${silent.length === 1 ? 'Its' : 'Their'} flows and counters are missing here.`].join(' '));
  }
}

/** nodes are the only ones. */
export const nodes = new Nodes();
