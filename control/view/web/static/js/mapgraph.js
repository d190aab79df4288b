// The map as a picture: chips, connections with their figures, and dots.

import { filterOf, toneOf } from './connections.js';
import { h, replace, s, setText } from './dom.js';
import { Dots, still } from './dots.js';
import { counts, often, refusals, share, shortName, span, sumOf, summary } from './figures.js';
import { link } from './filter.js';
import { number } from './format.js';
import { glyph } from './glyphs.js';
import { cut, text, width, wrap } from './letters.js';
import { ROW, plan, wayOf } from './mapplan.js';

const THIN = 1.4, THICK = 5.5; // lines, in units of the picture
const ABOVE = 9; // a line: the middle of its figures
const heads = ['CALLERS', 'SERVICES', 'ENDPOINTS'];

const filterOfPlace = ({ kind, name }) => (['service', 'pod', 'node'].includes(kind) ? [kind, name] : null);

export class MapGraph {
  constructor() {
    this.dots = new Dots();
    this.card = h('div', { class: 'map-card', role: 'tooltip', hidden: true });
    this.picture = h('div', { class: 'map-picture' });
    this.element = h('div', { class: 'map-graph' }, this.picture, this.dots.element, this.card, still.matches ? null : h('p', { class: 'hint' }, 'A dot is a new flow; a red one is rejected or dropped.'));
    for (const begin of ['pointerover', 'focusin']) this.picture.addEventListener(begin, (e) => this.point(e.target.closest?.('[data-key]')?.dataset.key));
    for (const end of ['pointerleave', 'focusout']) this.picture.addEventListener(end, () => this.point());
    this.lines = new Map(); // by key
  }

  leave() { this.dots.clear(); }

  /** show lays the map out anew. */
  show(picked, room, scale) {
    const focused = this.picture.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const p = plan(picked, room);
    Object.assign(this, { picked, scale, figures: new Map(), lines: new Map() });
    this.dots.clear();
    this.dots.scale = scale;
    const lines = p.lines.map((l) => this.line(l));
    const middle = new Set(p.columns.services);
    replace(this.picture, s('svg', { viewBox: `0 0 ${room} ${p.height}`, width: room * scale, height: p.height * scale, role: 'group', 'aria-label': 'Callers, services and endpoints, and the connections between them' },
      p.heads.map((x, i) => text(x + 4, 12, heads[i], 'label', 'dim')), lines,
      Object.values(p.columns).flat().map((c) => this.chip(c, middle.has(c)))));
    if (focused) this.picture.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  line(l) {
    const { key, from, to } = l.connection, d = l.legs.map((leg) => leg.path).join('');
    const figures = text(l.b.x - 7, l.b.y - ABOVE, '', 'small', '', { 'text-anchor': 'end' }), part = s('tspan', { class: 'part', dx: 5 }), amount = s('tspan');
    figures.append(amount, part);
    const path = s('path', { class: 'line', d });
    const element = s('a', { class: 'connection', 'data-key': key, 'data-from': from.key, 'data-to': to.key }, s('path', { class: 'reach', d }), path, figures);
    this.lines.set(key, { ...l, element, path, amount, part });
    return element;
  }

  chip(p, service) {
    const filter = filterOfPlace(p), middle = p.y + p.height / 2, room = p.width - 44, x = p.x + 34;
    const below = service || p.below, on = p.on && cut(p.on, below ? room : room * 0.4, 'small');
    const name = cut(shortName(p), room - (on && !below ? width(on, 'small') + 8 : 0), 'body');
    const first = middle - (below ? 9 : 0) - (p.refuses ? 16 : 0);
    const lines = service && Array.from({ length: p.refuses ? 3 : 1 }, (_, i) => text(x, first + 19 + 16 * i, '', 'small', i > 0 ? 'why' : 'dim'));
    if (service) this.figures.set(p.key, { lines, room });
    return s(filter ? 'a' : 'g', { class: `spot ${p.kind}`, href: filter && link(new URLSearchParams({ [filter[0]]: filter[1] })), 'data-key': p.key, 'data-name': p.name, 'aria-label': filter && `${p.kind} ${p.name}: its flows` },
      s('rect', { x: p.x, y: p.y, width: p.width, height: p.height, rx: 8 }), s('title', null, p.on ? `${p.name} on ${p.on}` : p.name),
      glyph(p.kind, p.x + 18, middle), text(x, first, name, 'body'), lines,
      on && (below ? text(x, middle + 9, on, 'small', 'dim') : text(p.x + p.width - 10, middle, on, 'small', 'dim', { 'text-anchor': 'end' })));
  }

  /** update brings the figures up to date. */
  update(seconds) {
    this.seconds = seconds;
    const most = Math.max(1, ...[...this.lines.values()].map((l) => l.connection.flows));
    for (const l of this.lines.values()) {
      const { connection: c, element } = l;
      const [amount, part] = [often(c.flows, seconds), c.flows > 0 ? share(c) : ''];
      setText(l.amount, amount);
      setText(l.part, part);
      const thick = (THIN + (THICK - THIN) * Math.sqrt(c.flows / most)).toFixed(1);
      if (l.thick !== thick) { l.thick = thick; l.path.setAttribute('stroke-width', thick); }
      if (element.dataset.tone !== toneOf(c)) element.dataset.tone = toneOf(c);
      const label = summary(c, seconds), href = link(filterOf(c));
      if (l.label !== label) { l.label = label; element.setAttribute('aria-label', label); }
      if (l.href !== href) { l.href = href; element.setAttribute('href', href); }
    }
    const all = this.picked.all.callsByService(); // also those that are not drawn
    for (const sv of this.picked.services) {
      const calls = all.get(sv.key) ?? [], sum = sumOf(calls);
      const { lines: [first, ...more], room } = this.figures.get(sv.key);
      setText(first, `${often(sum.flows, seconds)}, ${share(sum)} answered`);
      const [[why, n] = []] = refusals(calls), reason = why ? wrap(`${number(n)}: ${why}`, room, 'small') : [];
      more.forEach((line, i) => setText(line, reason[i] ?? ''));
    }
    this.describe();
  }

  /** dot starts the dot of a flow; of is its connections. */
  dot(of, verdict) {
    const way = wayOf(this.lines, ...of.map((c) => c.key));
    if (way) this.dots.add(way, verdict);
  }

  /** point emphasizes a connection, or those of a chip, and shows the connection's numbers. */
  point(key) {
    if (this.pointed === key) return;
    this.pointed = key;
    this.picture.classList.toggle('pointing', key !== undefined);
    for (const l of this.lines.values()) {
      const { key: own, from, to } = l.connection;
      l.element.classList.toggle('pointed', key !== undefined && [own, from.key, to.key].includes(key));
    }
    this.update(this.seconds); // so that the numbers agree with the figures
  }

  describe() {
    const l = this.lines.get(this.pointed);
    this.card.hidden = !l;
    if (!l) return;
    const { connection: c, b } = l;
    replace(this.card, h('p', { class: 'ends-of' }, h('b', null, c.from.name), ' → ', h('b', null, c.to.name)),
      h('p', { class: 'hint' }, `${often(c.flows, this.seconds)}, ${share(c)} answered; ${span(this.seconds)}:`),
      h('dl', null, [...counts(c), ...refusals([c])].map(([kind, n]) => [h('dt', null, number(n)), h('dd', null, kind)])));
    const x = Math.max(0, b.x * this.scale - this.card.offsetWidth - 8), top = this.picture.getBoundingClientRect().top;
    const below = (b.y + ROW / 2) * this.scale, above = (b.y - ROW) * this.scale - this.card.offsetHeight;
    this.card.style.transform = `translate(${x}px, ${top + below + this.card.offsetHeight > innerHeight && top + above > 0 ? above : below}px)`;
  }
}
