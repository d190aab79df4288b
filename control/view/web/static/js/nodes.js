// What the daemons of the nodes report about themselves: one request for all views.

import { poll } from './api.js';
import { plural } from './format.js';
import { h } from './dom.js';

const RARELY = 10000; // milliseconds between two requests
const NAMED = 3; // nodes that a notice names

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
    this.drawNotices();
    for (const listener of this.listeners) listener(list);
  }

  /** drawNotices shows above each view the nodes whose flows and counters it lacks: those that are silent, and those that have no daemon. */
  drawNotices() {
    const list = this.list ?? [], silent = list.flatMap(({ node, problems }) => (problems ?? []).filter((p) => p.code === 'unreachable').map((p) => `${node}: ${p.text}.`));
    show('silent', list.length > 1 && silent.length > 0, [...some(silent, 'without an answer.'), `${silent.length === 1 ? 'Its' : 'Their'} flows and counters are missing here.`].join(' '));
    const plain = list.filter((n) => n.proxy).map((n) => `${n.node} has ${n.proxy}.`), [it, its] = plain.length === 1 ? ['it', 'its'] : ['them', 'their'];
    const text = [...some(plain, 'without a daemon.'), `nfqproxy’s daemon does not run on ${it}, so ${its} flows are not recorded.`].join(' ');
    if (show('plain', plain.length > 0, text)) document.getElementById('plain').append(' ', h('a', { href: '#/explain' }, 'Explain'), ` follows packets through ${its} rules.`);
  }
}

/** show shows a notice, or hides it, and reports whether it is another one than before. */
function show(id, wanted, text) {
  const element = document.getElementById(id), other = wanted && element.dataset.text !== text;
  element.hidden = !wanted;
  if (!other) return false;
  element.dataset.text = text;
  element.textContent = text;
  return true;
}

/** some are the first sentences, and how many nodes more there are. */
const some = (sentences, which) => [...sentences.slice(0, NAMED), ...(sentences.length > NAMED ? [`${plural(sentences.length - NAMED, 'more node')} ${which}`] : [])];

/** nodes are the only ones. */
export const nodes = new Nodes();
