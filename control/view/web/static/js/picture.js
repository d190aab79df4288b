// The path of a flow as a picture: the packet, the chains it traverses, the
// translation, the conntrack entry, the endpoint, and the reply path.

import { h, replace, s } from './dom.js';
import { bytes, plural } from './format.js';
import { glyph } from './glyphs.js';
import { ChainBox } from './chainbox.js';
import { GAP, PAD, drawGap, drawNode, drawOwn, drawSegment } from './hops.js';
import { block, cut, fonts, text, width } from './letters.js';
import { chains, end, entry, packet, replyPath, translation } from './walk.js';
import { decider, ends, leaves, path } from './way.js';

const INDENT = 22, LANE = 236, WIDE = 720;

/** Picture draws a record into its element, again whenever the room changes. */
export class Picture {
  constructor(label = 'Path of the packet') {
    this.label = label;
    this.open = new Set(); // rules whose text is shown
    this.element = h('div', { class: 'picture', role: 'group', 'aria-label': label });
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  /** show shows a record; taken is how many of its steps it has taken, if it is held. observed has the nodes whose flows are observed; without it, nodes that have no record are left out. */
  show(record, taken, observed) {
    Object.assign(this, { record, taken, observed });
    this.drawn = '';
    this.draw();
  }

  leave() { this.observer.disconnect(); }

  toggle(key) {
    if (!this.open.delete(key)) this.open.add(key);
    this.drawn = '';
    this.draw();
  }

  draw() {
    const room = this.element.clientWidth;
    if (!this.record || room === 0) return;
    const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / 14;
    const key = `${room} ${scale}`;
    if (key === this.drawn) return; // what observes the size would go on for ever
    this.drawn = key;
    this.layOut(room / scale);
    const { total } = this;
    const focus = this.element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    replace(this.element, s('svg', { viewBox: `0 0 ${room / scale} ${total}`, width: room, height: total * scale, class: this.taken === undefined ? 'way' : 'way held' }, this.lines, this.boxes));
    if (focus !== undefined) this.element.querySelector(`[data-key="${focus}"]`)?.focus({ preventScroll: true });
  }

  layOut(room) {
    const r = this.record, middle = decider(r);
    const hops = path(r).filter((hop) => hop.record || this.observed), { record: first } = hops.find((hop) => hop.record);
    this.several = hops.length > 1;
    this.element.setAttribute('aria-label', this.several ? `${this.label} through ${hops.map((hop) => hop.node).join(', then ')}` : this.label);
    const back = replyPath(middle, this.taken !== undefined, this.several);
    this.toneOfBack = back.tone;
    this.lines = s('g', { class: 'lines', 'aria-hidden': 'true' });
    this.boxes = s('g', null);
    this.wide = room >= WIDE;
    this.main = this.wide && back.steps.length > 0 ? room - LANE - 44 : room - 1;
    this.at = 1;
    this.from = null; // the current end of the path
    const card = this.packet({ ...packet(middle), from: packet(first).from });
    hops.forEach(({ node, record }, i) => {
      const before = hops[i - 1];
      if (before?.record) drawSegment(this, leaves(before.record), before.record);
      else if (before && record) drawSegment(this, record);
      if (record === r) this.own(r, first);
      else if (record) drawNode(this, record, first);
      else drawGap(this, node);
    });
    const last = hops.at(-1).record;
    if (this.several && last && !ends(last)) drawSegment(this, leaves(last), last);
    if (middle.endpoint && !ends(middle) && !(last && ends(last))) this.marked(this.endpoint(middle));
    const bottom = this.at;
    if (back.steps.length > 0) this.back(back.steps, card, this.endBox, bottom, room, this.ahead());
    this.total = Math.max(this.at, bottom) + 2;
  }

  /** ahead is true for a held flow with steps to take: what follows them has not happened. */
  ahead() { return this.taken !== undefined && this.taken < (this.record.steps ?? []).length; }

  marked(element) {
    if (this.ahead()) element.classList.add('ahead');
    return element;
  }

  /** own draws the node of the record: its chains and what they led to. */
  own(r, first) {
    if (this.several) drawOwn(this, r, first);
    this.chains(chains(r, this.taken));
    const t = translation(r);
    if (t) {
      this.marked(this.tuples(t));
      this.marked(this.entry(entry(r)));
    } else this.marked(this.stop(end(r)));
  }

  box(x, y, room, height, name, props) {
    const g = s('g', { class: `card ${name}`, ...props }, s('rect', { class: 'box', x, y, width: room, height, rx: 8 }));
    this.boxes.append(g);
    return g;
  }

  /** link draws the path from its current end to (x, y). */
  link(x, y) {
    if (this.from) {
      const { from } = this;
      const d = Math.abs(from.x - x) < 1 ? `M${from.x} ${from.y}V${y - 5}` : `M${from.x} ${from.y}V${y - 18}Q${from.x} ${y - 12} ${from.x + 6 * Math.sign(x - from.x)} ${y - 12}H${x - 6 * Math.sign(x - from.x)}Q${x} ${y - 12} ${x} ${y - 5}`;
      this.lines.append(s('path', { class: 'way-line', d }), s('path', { class: 'way-head', d: `M${x - 4} ${y - 7}L${x} ${y - 1}L${x + 4} ${y - 7}Z` }));
    }
  }

  party(g, x, y, room, p, lines) {
    g.append(glyph(p.kind, x + 8, y + 10));
    g.append(text(x + 24, y + 10, cut(p.name, room - 24, 'title'), 'title', '', { 'data-name': p.name }));
    lines.forEach(([what, font], i) => g.append(text(x + 24, y + 28 + i * 17, cut(what, room - 24, font), font, 'dim')));
  }

  packet({ from, to }) {
    const { main } = this, r = this.record;
    const beside = main > 520;
    const half = beside ? (main - 2 * PAD - 70) / 2 : main - 2 * PAD;
    const height = beside ? 68 : 138;
    const g = this.box(0.5, this.at, main, height, 'packet', { role: 'group', 'aria-label': `${r.protocol} packet from ${from.name} ${from.address} to ${to.name} ${to.address}` });
    this.party(g, PAD, this.at + 10, half, from, [[from.address, 'code'], [from.node ? `pod on ${from.node}` : r.local ? 'sent by the node itself' : from.kind === 'host' ? 'outside the cluster' : '', 'small']].filter(([w]) => w));
    const x = beside ? PAD + half + 70 : PAD, y = beside ? this.at : this.at + 70;
    this.party(g, x, y + 10, half, to, [[to.address, 'code'], [to.by, 'small']]);
    if (beside) {
      const mid = PAD + half + 30;
      g.append(text(mid, this.at + 20, r.protocol, 'label', 'accent', { 'text-anchor': 'middle' }), s('path', { class: 'arrow', d: `M${mid - 24} ${this.at + 32}H${mid + 22}M${mid + 16} ${this.at + 26}l6 6-6 6` }));
    } else g.append(text(main - PAD, this.at + 68, `${r.protocol} ↓`, 'label', 'accent', { 'text-anchor': 'end' }));
    this.from = { x: PAD + 8.5, y: this.at + height };
    const box = { y: this.at, height };
    this.at += height + GAP;
    return box;
  }

  chains(list) {
    const r = this.record;
    let callers = [], hook = '', before = null; // callers: the chain itself, after those that it returns to
    for (const chain of list) {
      if (chain.hook !== hook) {
        this.hook(chain.hook, hook === '' && !r.local ? r.node ? `on ${r.node}${r.queue !== undefined ? `, queue ${r.queue}` : ''}` : '' : r.local && hook === '' ? `sent by ${r.node || 'the node'}` : '');
        callers = [];
      }
      const name = `${chain.table} ${chain.chain}`, known = callers.indexOf(name);
      if (known >= 0) callers.length = known + 1;
      else callers = before?.outcome === 'jump' && chain.hook === hook ? [...callers, name] : [name];
      const depth = callers.length - 1;
      hook = chain.hook;
      const x = 0.5 + Math.min(depth, this.wide ? 4 : 2) * (this.wide ? INDENT : 10);
      const b = new ChainBox(chain, { x, y: this.at, room: this.main - x, record: r, open: this.open, taken: this.taken, toggle: (key) => this.toggle(key) });
      this.link(x + PAD + 8, this.at);
      this.boxes.append(b.element);
      before = b.last;
      this.from = { x: x + PAD + 8, y: this.at + b.height };
      this.at += b.height + GAP;
    }
  }

  hook(name, where) {
    const label = [name, where].filter(Boolean).join(' · ');
    const wide = width(label, 'label') + 22;
    this.link(PAD + 8.5, this.at);
    this.boxes.append(s('g', { class: 'hook' }, s('rect', { x: 0.5, y: this.at, width: wide, height: 22, rx: 11 }), text(11.5, this.at + 11, label, 'label')));
    this.from = { x: PAD + 8.5, y: this.at + 22 };
    this.at += 22 + GAP - 6;
  }

  tuples(t) {
    const { main } = this;
    const columns = main > 520 ? [PAD + 70, PAD + 70 + (main - 2 * PAD - 70) / 2] : null;
    const note = t.masquerade ? block(PAD, 0, t.masquerade, main - 2 * PAD, 'small', 'accent') : null;
    const rows = columns ? 2 : 4;
    const height = 34 + rows * 20 + 8 + (note ? note.height + 4 : 0);
    const g = this.next(height, 'tuple', 'Translation', `translation: ${t.before.source} to ${t.before.destination} becomes ${t.after.source} to ${t.after.destination}`);
    const y = g.y + 34;
    const changed = (a, b) => (a === b ? '' : 'changed');
    const cells = [['before', t.before, false], ['after', t.after, true]];
    cells.forEach(([name, tuple, after], i) => {
      const row = y + (columns ? i * 20 : i * 40) + 10;
      g.append(text(PAD, row, name, 'small', 'dim'));
      const show = (value, other, x, line, arrow) => g.append(text(x, line, arrow + value, 'code', after ? changed(value, other) : changed(value, other) && 'was'));
      show(tuple.source, after ? t.before.source : t.after.source, columns ? columns[0] : PAD + 56, row, '');
      show(tuple.destination, after ? t.before.destination : t.after.destination, columns ? columns[1] : PAD + 56, columns ? row : row + 20, '→ ');
    });
    if (note) { note.element.setAttribute('transform', `translate(0 ${y + rows * 20 + 2})`); g.append(note.element); }
    return g;
  }

  /** next adds a card at the end of the path. */
  next(height, name, title, label) {
    const y = this.at;
    this.link(PAD + 8.5, y);
    const g = this.box(0.5, y, this.main, height, name, { role: 'group', 'aria-label': label });
    if (title) g.append(text(PAD, y + 18, title, 'title'));
    g.y = y;
    this.endBox = { y, height };
    this.from = { x: PAD + 8.5, y: y + height };
    this.at = y + height + GAP;
    return g;
  }

  entry(e) {
    const { main } = this;
    const count = (what, c) => (c ? `${what} ${plural(c.packets, 'packet')}, ${bytes(c.bytes)}` : '');
    const lines = [[`original  ${e.original}`, 'code'], [`reply     ${e.reply}`, 'code']];
    const last = [e.state, count('sent', e.sent), count('received', e.received)].filter(Boolean).join('  ·  ');
    if (last) lines.push([last, 'small']);
    if (e.failed) lines.push([e.failed, 'small']);
    const g = this.next(34 + lines.length * 19 + 6, `entry${e.failed ? ' bad' : ''}`, 'Conntrack entry', `conntrack entry: original ${e.original}, reply ${e.reply}`);
    const used = width('Conntrack entry', 'title') + PAD + 10;
    g.append(text(used, g.y + 18, cut(e.title, main - used - PAD, 'small'), 'small', 'dim'));
    lines.forEach(([what, font], i) => g.append(text(PAD, g.y + 42 + i * 19, cut(what, main - 2 * PAD, font), font, font === 'small' ? 'dim' : '', { 'xml:space': 'preserve' })));
    return g;
  }

  endpoint(r) {
    const g = this.next(r.endpointNode ? 72 : 56, 'endpoint', '', `endpoint ${r.pod || r.endpoint}`);
    this.party(g, PAD, g.y + 10, this.main - 2 * PAD, { name: r.pod || r.endpoint, kind: 'pod' }, [[r.endpoint, 'code'], [r.endpointNode ? `on ${r.endpointNode}${r.endpointNode === r.node ? ', the deciding node' : ''}` : '', 'small']].filter(([w]) => w));
    return g;
  }

  stop(e) {
    const words = block(PAD, 0, e.text, this.main - 2 * PAD, 'body', 'dim');
    const g = this.next(36 + words.height + 8, `stop ${e.tone}`, e.title, e.title);
    words.element.setAttribute('transform', `translate(0 ${g.y + 32})`);
    g.append(words.element);
    return g;
  }

  /** back draws the reply path: a lane on the right that leads up or, on a narrow page, a list below. */
  back(steps, first, last, bottom, room, over) {
    const beside = this.wide;
    const x = beside ? this.main + 44 : 0.5;
    const wide = (beside ? LANE : this.main) - 1;
    const texts = steps.map((what) => block(0, 0, what, wide - 2 * PAD - 22, 'small'));
    const heights = texts.map((t) => t.height + 14);
    const lane = s('g', { class: `back ${this.toneOfBack}${over ? ' ahead' : ''}`, role: 'group', 'aria-label': 'Reply path' });
    this.boxes.append(lane);
    const put = (i, y) => {
      const g = s('g', { transform: `translate(${x} ${y})` }, s('rect', { class: 'box', width: wide, height: heights[i], rx: 8 }), s('circle', { class: 'number', cx: PAD + 6, cy: heights[i] / 2, r: 8 }), text(PAD + 6, heights[i] / 2, String(i + 1), 'label', '', { 'text-anchor': 'middle' }));
      texts[i].element.setAttribute('transform', `translate(${PAD + 22} 7)`);
      g.append(texts[i].element);
      lane.append(g);
    };
    const needed = heights.reduce((sum, one) => sum + one + 14, 30);
    if (beside) {
      const top = first.y + first.height + 14;
      const low = Math.max(last.y + last.height / 2, top + needed);
      const spare = (low - top - needed) / (steps.length + 1);
      let y = low - 16 - spare;
      const mid = x + wide / 2;
      this.lines.append(
        s('path', { class: `back-line ${this.toneOfBack}${over ? ' ahead' : ''}`, d: `M${this.main + 1} ${last.y + last.height / 2}H${mid - 6}Q${mid} ${last.y + last.height / 2} ${mid} ${last.y + last.height / 2 - 6}V${first.y + first.height / 2 + 6}Q${mid} ${first.y + first.height / 2} ${mid - 6} ${first.y + first.height / 2}H${this.main + 8}` }),
        s('path', { class: `back-head ${this.toneOfBack}${over ? ' ahead' : ''}`, d: `M${this.main + 8} ${first.y + first.height / 2 - 4}L${this.main + 2} ${first.y + first.height / 2}L${this.main + 8} ${first.y + first.height / 2 + 4}Z` }));
      steps.forEach((_, i) => { y -= heights[i]; put(i, y); y -= 14 + spare; });
      const title = 'REPLY PATH';
      lane.append(text(x + wide, first.y + first.height / 2 - 12, title, 'label', 'dim', { 'text-anchor': 'end' }));
      this.at = Math.max(this.at, low + 10);
      return;
    }
    let y = bottom + 4;
    lane.append(text(PAD, y + 4, 'REPLY PATH', 'label', 'dim'));
    y += fonts.label.line + 6;
    steps.forEach((_, i) => { put(i, y); y += heights[i] + 8; });
    this.at = y;
  }
}
