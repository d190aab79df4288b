// The view of one flow: its picture and its life cycle, followed until it is over.

import { get, topology } from './api.js';
import { h, icon, replace } from './dom.js';
import { seconds } from './format.js';
import { aside } from './life.js';
import { Picture } from './picture.js';
import { link } from './filter.js';
import { stream } from './stream.js';
import { decider, path } from './way.js';
import { label, sentence, state, tone } from './words.js';

const AGAIN = 1500; // milliseconds between two requests for a flow that is not over
const AFTER = 30; // requests for a flow that does not end, after which they are less frequent

export class FlowView {
  constructor(route) {
    this.id = route.path[1];
    this.title = `Flow ${this.id}`;
    this.abort = new AbortController();
    this.picture = new Picture();
    this.side = h('section', { class: 'side', 'aria-label': 'Life cycle and record' });
    this.head = h('div', { class: 'headline' }, h('h1', { id: 'title' }, 'Flow'));
    this.element = h('section', { class: 'detail', 'aria-labelledby': 'title' },
      h('a', { class: 'back-link', href: this.list() }, icon('back'), 'Flows', h('kbd', { 'aria-hidden': 'true' }, 'Esc')),
      this.head, this.derived = h('p', { class: 'hint', hidden: true }, 'The flow must have met these rules, by the service table at that time; nobody observed the packet there.'),
      h('div', { class: 'columns' }, this.picture.element, this.side));
    this.looks = 0;
    this.load();
  }

  list() { return link(new URLSearchParams(stream.filters ?? '')); }

  keys = { Escape: () => { location.hash = this.list(); } };

  leave() {
    this.abort.abort();
    clearTimeout(this.timer);
    this.picture.leave();
  }

  async load() {
    try {
      // Names of endpoints come from the topology; without it, they are addresses.
      const [r] = await Promise.all([get(`/v1/flows/${encodeURIComponent(this.id)}`, this.abort.signal), topology().catch(() => null)]);
      await this.look(r);
      const text = JSON.stringify(r);
      if (text !== this.text) this.show(r);
      this.text = text;
      if (r.life && !r.life.over) this.timer = setTimeout(() => this.load(), ++this.looks < AFTER ? AGAIN : 10 * AGAIN);
    } catch (e) {
      if (this.abort.signal.aborted) return;
      if (this.text && e.status === 0) { this.timer = setTimeout(() => this.load(), 10 * AGAIN); return; }
      if (!this.text) replace(this.head, h('h1', { id: 'title' }, 'Flow not found'), h('p', { class: 'problem', role: 'alert' }, e.message), h('p', { class: 'hint' }, 'Each node keeps a limited number of flows, the newest.'));
    }
  }

  /** look finds which nodes are observed, once, if one on the path has no record. */
  async look(r) {
    if (this.observed || path(r).every((hop) => hop.record)) return;
    const t = await get('/v1/topology', this.abort.signal).catch(() => null);
    if (t) this.observed = new Set(t.nodes.filter((n) => n.observed).map((n) => n.name));
  }

  show(r) {
    const middle = decider(r), hops = path(r).filter((hop) => hop.record || this.observed);
    const stop = ({ node, record }, i) => [i > 0 && ' → ', record && record !== r ? h('a', { href: `#/flows/${encodeURIComponent(record.id)}`, 'aria-label': `The record of ${node}` }, node) : node];
    replace(this.head, h('h1', { id: 'title' }, sentence(middle)), h('span', { class: 'pill', 'data-tone': tone(state(middle)) }, label(middle)),
      r.outdated > 0 && h('span', { class: 'pill', 'data-tone': 'bad', title: `The endpoint had been outdated for ${seconds(r.outdated)}` }, 'outdated endpoint'),
      h('span', { class: 'address' }, this.id),
      hops.length > 1 && h('span', { class: 'through' }, 'through ', hops.map(stop)));
    const top = this.side.querySelector('details')?.open;
    this.derived.hidden = !(r.proxy && r.steps);
    this.picture.show(r, undefined, this.observed);
    replace(this.side, aside(r));
    if (top) this.side.querySelector('details').open = true;
  }
}
