// The map as a list, for narrow screens and screen readers: each service with its callers above
// and its endpoints below.

import { filterOf, toneOf } from './connections.js';
import { h, replace, s, setText } from './dom.js';
import { often, refusals, share, shortName, sumOf, summary } from './figures.js';
import { link } from './filter.js';
import { number } from './format.js';
import { glyph } from './glyphs.js';
import { named } from './row.js';

const symbol = (kind) => s('svg', { class: 'symbol', viewBox: '-9 -9 18 18', 'aria-hidden': 'true' }, glyph(kind, 0, 0));

export class MapList {
  constructor() {
    this.list = h('div', { class: 'map-list' });
    this.element = h('div', null, h('p', { class: 'hint' }, 'Each service, with its callers above and its endpoints below.'), this.list);
    this.rows = new Map(); // by key
  }

  leave() { /* nothing moves */ }

  dot() { /* none in a list */ }

  show(picked) {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.picked = picked;
    this.rows.clear();
    this.cards = [...picked.services].sort((a, b) => (a.key < b.key ? -1 : 1)).map((sv) => this.service(sv));
    replace(this.list, this.cards.map((c) => c.element));
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  service(sv) {
    const calls = this.picked.calls.filter((c) => c.to.key === sv.key), selections = this.picked.selections.filter((c) => c.from.key === sv.key);
    const rate = h('span', { class: 'amount' }), part = h('span', { class: 'pill' }), why = h('ul', { class: 'refusals' });
    const list = (label, connections, end) => h('ul', { 'aria-label': label }, [...connections].sort((a, b) => (a[end].key < b[end].key ? -1 : 1)).map((c) => this.row(c, c[end])));
    const title = sv.kind === 'service' ? h('a', { class: 'name', href: link(new URLSearchParams({ service: sv.name })), 'data-key': sv.key }, named(sv.name)) : h('span', { class: 'name' }, sv.name);
    const element = h('article', { class: 'card-box', 'data-service': sv.name },
      list(`Callers of ${sv.name}`, calls, 'from'), h('h2', null, symbol(sv.kind), title, rate, part), why,
      selections.length > 0 && list(`Endpoints of ${sv.name}`, selections, 'to'));
    return { element, key: sv.key, rate, part, why };
  }

  row(c, place) {
    const amount = h('span', { class: 'amount' }), part = h('span', { class: 'part' });
    const element = h('a', { class: 'connection', 'data-key': c.key }, symbol(place.kind), h('span', { class: 'name', title: place.name }, shortName(place), place.on && h('span', { class: 'on' }, place.on)), amount, part);
    this.rows.set(c.key, { c, element, amount, part });
    return h('li', null, element);
  }

  update(seconds) {
    const most = Math.max(1, ...[...this.rows.values()].map(({ c }) => c.flows));
    for (const { c, element, amount, part } of this.rows.values()) {
      setText(amount, often(c.flows, seconds));
      setText(part, c.flows > 0 ? share(c) : '');
      element.dataset.tone = toneOf(c);
      element.style.setProperty('--share', (c.flows / most).toFixed(3));
      element.setAttribute('href', link(filterOf(c)));
      element.setAttribute('aria-label', summary(c, seconds));
    }
    const all = this.picked.all.callsByService(); // also those that are not listed
    for (const { key, rate, part, why } of this.cards) {
      const calls = all.get(key) ?? [], sum = sumOf(calls);
      setText(rate, often(sum.flows, seconds));
      setText(part, share(sum));
      part.dataset.tone = toneOf(sum);
      replace(why, refusals(calls).map(([text, n]) => h('li', null, h('b', null, number(n)), ` ${text}`)));
    }
  }
}
