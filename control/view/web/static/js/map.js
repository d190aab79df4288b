// The map: nodes, pods and services, and flows between them.

import { poll, topology } from './api.js';
import { h, replace, s, setText } from './dom.js';
import { Dots, still } from './dots.js';
import { chipsOf, link } from './filter.js';
import { glyph } from './glyphs.js';
import { rate } from './format.js';
import { cut, text, width } from './letters.js';
import { Places, plan } from './mapplan.js';
import { ServicesSwitch } from './only.js';
import { EVERY, Speeds } from './services.js';
import { stream } from './stream.js';

const AT_ONCE = 14; // dots that begin at one drawing

export class MapView {
  title = 'Map';

  constructor() {
    this.abort = new AbortController();
    this.speeds = new Speeds();
    this.dots = new Dots();
    this.status = h('p', { class: 'hint', role: 'status' }, 'Loading …');
    this.only = new ServicesSwitch((filters) => this.open(filters));
    this.picture = h('div', { class: 'map-picture' });
    const key = (tone, what) => h('span', { class: `key ${tone}` }, what);
    this.element = h('section', { class: 'map', 'aria-labelledby': 'title' },
      h('div', { class: 'headline' }, h('h1', { id: 'title' }, 'Map'), this.status, this.only.leftOut,
        h('div', { class: 'legend-line' }, key('good', 'sent to an endpoint'), key('bad', 'rejected or dropped'), key('pass', 'passed unchanged')), this.only.element),
      this.picture);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.picture);
    this.load();
    this.open(new URLSearchParams(stream.filters ?? ''));
    this.unlisten = stream.listen((now) => this.take(now));
  }

  open(filters) {
    stream.open(filters);
    this.only.show(filters);
  }

  async load() {
    try {
      this.topology = await topology();
    } catch (e) {
      setText(this.status, e.message);
      return;
    }
    poll('/v1/services', EVERY, this.abort.signal, (answer) => {
      this.speeds.take(answer.services);
      const before = this.services;
      this.services = answer.services;
      if (!before || before.length !== answer.services.length) { this.drawn = ''; this.draw(); }
      this.drawRates();
    }, (e) => setText(this.status, e.message));
  }

  leave() {
    this.abort.abort();
    this.unlisten();
    this.observer.disconnect();
    this.dots.clear();
  }

  draw() {
    const room = this.picture.clientWidth;
    const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 14;
    if (!this.services || room === 0 || this.drawn === `${room} ${scale}`) return;
    this.drawn = `${room} ${scale}`;
    const { spots, labels, height, nodes } = plan(this.topology, this.services, { room: room / scale, least: (innerHeight - this.picture.getBoundingClientRect().top - scrollY - 24) / scale }, (label) => width(label, 'body'));
    this.places = new Places(spots);
    this.rates = new Map();
    this.dots.clear();
    replace(this.picture, s('svg', { viewBox: `0 0 ${room / scale} ${height}`, width: room, height: height * scale, role: 'group', 'aria-label': 'External machines, services, and nodes with their pods' },
      labels.map((l) => text(8, l.y, l.text, 'label', 'dim')),
      nodes.map((n) => this.node(n)), this.dots.trails, spots.filter((p) => p.kind !== 'node').map((p) => this.chip(p)), this.dots.element));
    this.drawRates();
  }

  linkTo(p, ...children) {
    if (!p.filter) return s('g', { class: `spot ${p.kind}` }, ...children);
    const [field, value] = p.filter;
    return s('a', { class: `spot ${p.kind}`, href: link(new URLSearchParams({ [field]: value })), 'data-name': p.name, 'aria-label': `${p.kind} ${p.name}: its flows` }, ...children);
  }

  node(n) {
    return this.linkTo(n, s('rect', { x: n.x, y: n.y, width: n.width, height: n.height, rx: 10 }),
      s('rect', { class: 'door', x: n.x + n.width / 2 - 13, y: n.y - 4, width: 26, height: 8, rx: 4 }),
      text(n.x + 14, n.y + 24, cut(n.label, n.width / 2, 'title'), 'title'), text(n.x + n.width - 14, n.y + 24, n.address, 'small', 'dim', { 'text-anchor': 'end' }),
      n.observed ? null : text(n.x + 14, n.y + 40, 'not observed: its flows are not shown', 'small', 'dim'),
      n.more > 0 ? text(n.x + 14, n.y + n.height - 14, `and ${n.more} more pods`, 'small', 'dim') : null);
  }

  chip(p) {
    const speed = p.kind === 'service' ? text(p.x + p.width - 12, p.y + p.height / 2, '', 'small', 'dim', { 'text-anchor': 'end' }) : null;
    if (speed) this.rates.set(p.name, speed);
    return this.linkTo(p, s('rect', { x: p.x, y: p.y, width: p.width, height: p.height, rx: p.kind === 'pod' ? 6 : 15 }),
      glyph(p.kind, p.x + 18, p.y + p.height / 2),
      text(p.x + 32, p.y + p.height / 2, cut(p.label, p.width - 40 - (speed ? 40 : 0), 'body'), 'body'), speed);
  }

  drawRates() {
    const by = new Map();
    for (const sv of this.services ?? []) by.set(`${sv.namespace}/${sv.name}`, (by.get(`${sv.namespace}/${sv.name}`) ?? 0) + (this.speeds.of(sv) ?? 0));
    for (const [name, element] of this.rates ?? []) setText(element, by.get(name) > 0 ? `${rate(by.get(name))}/s` : '');
  }

  take({ fresh, rates, sample }) {
    if (!this.places) return;
    // Records of the past, at the start of a stream, get no dots.
    const young = fresh.filter((r) => Date.parse(r.time) / 1000 > rates.now() - 2);
    const some = young.slice(-AT_ONCE);
    this.dots.left += young.length - some.length;
    for (const r of some) {
      const way = this.places.way(r);
      if (way) this.dots.add(way, r.verdict);
    }
    const now = performance.now();
    if (now - (this.updated ?? 0) < 1000) return;
    this.updated = now;
    this.only.draw();
    const { made, left } = this.dots;
    Object.assign(this.dots, { made: 0, left: 0 });
    const of = sample * (made > 0 ? (made + left) / made : 1);
    const filtered = chipsOf(new URLSearchParams(stream.filters)).length > 0 ? ' that match the filters' : '';
    setText(this.status, `${rate(rates.perSecond())} flows/s${filtered}${of >= 1.5 ? `; each dot stands for ${Math.round(of)} flows` : ''}${still.matches ? '; lines instead of dots (reduced motion)' : ''}`);
  }
}
