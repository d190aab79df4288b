// One chain of the picture: its name, and a row for each evaluated rule.

import { podAt } from './api.js';
import { s } from './dom.js';
import { percent, split } from './format.js';
import { block, cut, fonts, text, width } from './letters.js';
import { shares } from './walk.js';

const PAD = 12, ICON = 26;

const glyphs = { jump: 'M-3 -3l3 3-3 3M-4.500 0h4', mark: 'M0 -3.500v7M-3 -1h6M-3 1.500h6', match: 'M-3.500 0l2.500 2.500 4.500-5', 'no-match': 'M-2 0h4', policy: 'M-3 0h6M0 -3v6', route: 'M-3 3l6-6M0 -3h3v3', track: 'M-3 -1.500h6M-3 1.500h6', refuse: 'M-2.800 -2.800l5.600 5.600M2.800 -2.800l-5.600 5.600', unknown: 'M-1 -2a1.500 1.500 0 1 1 2 1.500c-.7.3-1 .7-1 1.300M0 3h.01' };

/** mark is the round symbol before a rule. */
const mark = (x, y, outcome) => s('g', { class: `mark of-${outcome}`, transform: `translate(${x} ${y})` }, s('circle', { r: 8 }), s('path', { d: glyphs[outcome] ?? glyphs.unknown }));

/** drawBar shows the candidates' probabilities and, if it is known, the random number. */
function drawBar(x, y, room, r) {
  const bar = s('g', { class: 'draw', role: 'img', 'aria-label': `${r.draw === undefined ? 'a draw' : `draw ${r.draw.toFixed(4)}`} among ${r.candidates.length} candidates` });
  for (const share of shares(r)) {
    const from = x + share.from * room, wide = (share.to - share.from) * room;
    bar.append(s('rect', { x: from + 0.75, y: y + 14, width: Math.max(0.5, wide - 1.5), height: 20, rx: 3, class: share.taken ? 'share taken' : 'share' }));
    const name = split(podAt(share.endpoint))[1] || share.endpoint;
    const label = `${name} · ${percent(share.to - share.from)}`;
    const shown = width(label, 'small') < wide - 14 ? label : wide > 60 ? cut(name, wide - 14, 'small') : '';
    if (shown) bar.append(text(from + 7, y + 24, shown, 'small', share.taken ? 'on' : 'dim'));
  }
  if (r.draw === undefined) return { element: bar, height: 44 };
  const at = x + r.draw * room;
  const label = `draw ${r.draw.toFixed(4)}`;
  const half = width(label, 'label') / 2;
  bar.append(
    s('path', { class: 'needle', d: `M${at} ${y + 11}V${y + 38}` }), s('circle', { class: 'needle', cx: at, cy: y + 11, r: 2.5 }),
    text(Math.min(x + room - half, Math.max(x + half, at)), y + 3, label, 'label', 'accent', { 'text-anchor': 'middle' }));
  return { element: bar, height: 44 };
}

/** ChainBox lays out one chain at (x, y). */
export class ChainBox {
  constructor(chain, { x, y, room, record, open, taken, toggle }) {
    Object.assign(this, { chain, x, y, room, record, open, taken, toggle });
    this.last = null; // {x, y} of the last rule that matched: the path continues from there
    this.frame = s('rect', { class: 'box', x, y, width: room, rx: 8 });
    this.element = s('g', { class: 'chain', 'data-chain': chain.chain, role: 'group', 'aria-label': `chain ${chain.chain}, table ${chain.table}` }, this.frame);
    let at = y + 8;
    const place = chain.table;
    const wide = width(place, 'label');
    this.element.append(text(x + PAD, at + 9, cut(chain.chain || place || 'kernel', room - 2 * PAD - wide - 12, 'code'), 'code', 'name'));
    if (chain.chain) this.element.append(text(x + room - PAD, at + 9, place, 'label', 'dim', { 'text-anchor': 'end' }));
    at += 24;
    this.element.append(s('path', { class: 'rule-line', d: `M${x + 1} ${at - 3}H${x + room - 1}` }));
    for (const rule of chain.rules) at = rule.run ? this.addRun(rule.run, at) : this.addRule(rule, at);
    this.height = at + 6 - y;
    this.frame.setAttribute('height', this.height);
    if (taken !== undefined && chain.rules.every((rule) => (rule.run ? rule.run[0].index : rule.index) > taken)) this.element.classList.add('ahead');
  }

  addRun(run, y) {
    const key = `run ${run[0].index}`;
    const isOpen = this.open.has(key);
    const row = this.row(key, y, isOpen ? `${run.length} rules did not match: hide them` : `${run.length} rules did not match`, isOpen, 'no-match', 'dim');
    this.element.append(row.element);
    let at = y + row.height;
    if (isOpen) for (const rule of run) at = this.addRule(rule, at);
    return at;
  }

  addRule(rule, y) {
    const { step } = rule;
    const key = `rule ${rule.index}`;
    const isOpen = this.open.has(key) && step.rule;
    const dim = step.outcome === 'no-match';
    const refuses = step.outcome === 'match' && /-j (DROP|REJECT)\b|(^| )(drop|reject)\b/.test(step.rule.replace(/"[^"]*"/g, ''));
    // A record without a draw is of rules in a kernel or a dump, whose steps do not name it.
    const what = step.chance && this.record.draw === undefined ? `${percent(step.chance)}: ${step.text}` : step.text;
    const row = this.row(key, y, what, isOpen, refuses ? 'refuse' : step.outcome, dim ? 'dim' : '', step.rule);
    row.element.dataset.index = rule.index;
    const next = this.taken === rule.index;
    if (next) row.element.classList.add('next');
    if (this.taken !== undefined && rule.index > this.taken) row.element.classList.add('ahead');
    this.element.append(row.element);
    let at = y + row.height;
    if (next) {
      this.element.append(text(this.x + PAD + ICON, at + 10, 'NEXT', 'label', 'accent'));
      at += 22;
    }
    if (isOpen) at += this.addText(step.handle ? `${step.rule} # handle ${step.handle}` : step.rule, at);
    if (rule.draws) {
      const bar = drawBar(this.x + PAD + ICON, at + 6, this.room - 2 * PAD - ICON, this.record);
      this.element.append(bar.element);
      at += bar.height + 8;
    }
    if (!dim) this.last = { x: this.x + PAD + 8, y: y + row.height / 2, outcome: step.outcome };
    return at;
  }

  /** addText shows the rule as iptables-save or nft -a prints it. */
  addText(rule, y) {
    const inner = block(this.x + PAD + ICON + 8, y + 6, rule, this.room - 2 * PAD - ICON - 16, 'code', 'text');
    this.element.append(s('rect', { class: 'inset', x: this.x + PAD + ICON, y: y + 1, width: this.room - 2 * PAD - ICON, height: inner.height + 10, rx: 5 }), inner.element);
    return inner.height + 16;
  }

  row(key, y, what, isOpen, outcome, extra, rule = ' ') {
    const { x, room } = this;
    const words = block(x + PAD + ICON, y + 4, what, room - 2 * PAD - ICON - 16, 'body', extra);
    const height = words.height + 8;
    const press = (e) => {
      if (e.type === 'keydown' && e.key !== 'Enter' && e.key !== ' ') return;
      e.preventDefault();
      e.stopPropagation();
      this.toggle(key);
    };
    const can = rule ? { role: 'button', tabindex: 0, 'aria-expanded': String(Boolean(isOpen)), onclick: press, onkeydown: press } : {};
    const element = s('g', { class: `rule of-${outcome}`, 'data-key': key, ...can, 'aria-label': what },
      s('rect', { class: 'hit', x: x + 4, y, width: room - 8, height, rx: 5 }),
      mark(x + PAD + 8, y + 4 + fonts.body.line / 2, outcome), words.element,
      rule ? s('path', { class: 'more', d: isOpen ? 'M-4 -2l4 4 4-4' : 'M-2 -4l4 4-4 4', transform: `translate(${x + room - PAD - 4} ${y + 4 + fonts.body.line / 2})` }) : null);
    return { element, height };
  }
}
