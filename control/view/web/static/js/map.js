// The map: callers, services and endpoints, and how many flows between them are answered.

import { topology } from './api.js';
import { h, replace, setText } from './dom.js';
import { still } from './dots.js';
import { often, span, sumOf } from './figures.js';
import { chipsOf, withTime } from './filter.js';
import { plural } from './format.js';
import { nextStep } from './idle.js';
import { MapGraph } from './mapgraph.js';
import { MapList } from './maplist.js';
import { alike, pick } from './mapplan.js';
import { missedNotes } from './notes.js';
import { ServicesSwitch } from './only.js';
import { stream } from './stream.js';

const EVERY = 1000; // milliseconds between two updates of the figures
const CALM = 10000; // and between two layouts, where more connections exist than are shown
const NARROW = 760; // units of a picture, below which the map is a list
const AT_ONCE = 14; // dots that begin at one drawing

let listed = false; // by the user, until the page is left

export class MapView {
  title = 'Map';

  constructor() {
    this.status = h('p', { class: 'hint', role: 'status' });
    this.rest = h('p', { class: 'hint', id: 'rest' });
    this.notice = h('p', { class: 'notice', id: 'notice', hidden: true });
    this.only = new ServicesSwitch((filters) => this.open(filters));
    this.form = h('button', { type: 'button', class: 'button', id: 'as-list', onclick: () => { listed = !listed; this.layOut(); } }, 'As a list');
    const key = (tone, what) => h('span', { class: `key ${tone}` }, what);
    this.body = h('div', { class: 'map-body' });
    this.element = h('section', { class: 'map', 'aria-labelledby': 'title' },
      h('div', { class: 'headline' }, h('h1', { id: 'title' }, 'Map'), this.status, this.only.leftOut, this.notice, h('div', { class: 'map-buttons' }, this.form, this.only.element)),
      this.body, this.rest, h('div', { class: 'legend-line' }, key('good', '99% or more answered'), key('warn', '90% or more'), key('bad', 'fewer'), key('wait', 'no reply yet')));
    this.observer = new ResizeObserver(() => { if (this.drawn !== this.room()) this.layOut(); });
    this.observer.observe(this.body);
    topology().then((t) => { this.unobserved = t.nodes.filter((n) => !n.observed).map((n) => n.name); }).catch(() => { /* the map needs flows only */ });
    this.open(withTime(new URLSearchParams(stream.filters ?? '')));
    this.unlisten = stream.listen((now) => this.take(now));
  }

  open(filters) {
    stream.open(filters);
    this.only.show(filters);
    this.picked = null;
    this.updated = 0;
  }

  leave() {
    this.unlisten();
    stream.connections.hold(new Set());
    this.observer.disconnect();
    this.map?.leave();
  }

  /** room is the width in pixels, and the size of letters. */
  room() { return `${this.body.clientWidth} ${getComputedStyle(document.documentElement).fontSize}`; }

  /** layOut draws all anew: in another form, for another width, or for other connections. */
  layOut() {
    const room = this.body.clientWidth, scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 14;
    if (room === 0 || !this.picked) return;
    this.drawn = this.room();
    const narrow = room / scale < NARROW, Form = narrow || listed ? MapList : MapGraph;
    this.form.hidden = narrow;
    this.form.setAttribute('aria-pressed', String(listed));
    if (!(this.map instanceof Form)) {
      this.map?.leave();
      this.map = new Form();
    }
    if (this.map.element.parentNode !== this.body) replace(this.body, this.map.element);
    this.map.show(this.picked, room / scale, scale);
    this.map.update(this.seconds);
  }

  take({ fresh, connections, rates }) {
    const now = performance.now(), second = rates.now();
    if (now - (this.updated ?? 0) >= EVERY) {
      this.updated = now;
      connections.expire(second);
      this.seconds = connections.seconds(second, rates.first);
      this.draw(connections, now);
    }
    if (!this.picked || !this.map) return;
    // Records of the past, at the start of a stream, get no dots.
    const young = fresh.filter((r) => r.at / 1000 > second - 2), some = young.slice(-AT_ONCE);
    if (this.map.dots) this.map.dots.left += young.length - some.length;
    for (const r of some) {
      const flow = connections.flows.get(r.id);
      if (flow) this.map.dot(flow.of, r.verdict);
    }
  }

  draw(connections, now) {
    this.only.draw();
    const next = pick(connections, this.picked?.keys);
    if (next.keys.size === 0) { this.drawEmpty(); return; }
    if (!this.picked || !alike(next, this.picked) && now - this.laid >= (next.left > 0 ? CALM : 0)) {
      this.picked = next;
      connections.hold(next.keys);
      this.laid = now;
      this.layOut();
    } else this.map?.update(this.seconds);
    this.drawTexts(connections);
  }

  drawEmpty() {
    const text = stream.error || (stream.connected ? 'No flows in the last minute.' : 'Connecting …');
    this.picked = null;
    stream.connections.hold(new Set());
    setText(this.status, '');
    setText(this.rest, '');
    if (this.empty?.isConnected && this.empty.firstChild.textContent === text) return;
    replace(this.body, this.empty = h('div', { class: 'empty' }, h('p', null, text), stream.connected && nextStep()));
  }

  drawTexts(connections) {
    const all = [...connections.calls.values()], { calls, selections } = this.picked, sum = sumOf(all);
    const filtered = chipsOf(new URLSearchParams(stream.filters)).length > 0 ? ' that match the filters' : '';
    const { made = 0, left = 0 } = this.map?.dots ?? {};
    if (this.map?.dots) Object.assign(this.map.dots, { made: 0, left: 0 });
    const of = stream.sample * (made > 0 ? (made + left) / made : 1);
    const dots = this.map?.dots && (still.matches ? 'no dots (reduced motion)' : of >= 1.5 && `each dot stands for ${Math.round(of)} flows; the figures count all`);
    setText(this.status, [stream.error || `${often(sum.flows, this.seconds, ' flows')} ${span(this.seconds)}${filtered}`, dots].filter(Boolean).join('; '));
    const counted = [connections.calls, connections.selections].flatMap((x) => [...x.values()]).filter((c) => c.flows > 0).length;
    const more = counted - [...calls, ...selections].filter((c) => c.flows > 0).length;
    const hidden = sum.flows - sumOf(calls).flows;
    setText(this.rest, [
      more > 0 && `And ${plural(more, 'more connection')} between other places${hidden > 0 ? `, with ${often(hidden, this.seconds, ' flows')}` : ''}. Failing connections are shown first, then the busiest.`,
      this.unobserved?.length > 0 && `Not observed, so their flows are missing: ${this.unobserved.slice(0, 5).join(', ')}${this.unobserved.length > 5 ? ` and ${this.unobserved.length - 5} more nodes` : ''}.`,
    ].filter(Boolean).join(' '));
    const notes = missedNotes().join(' ');
    this.notice.hidden = !notes;
    setText(this.notice, notes);
  }
}
