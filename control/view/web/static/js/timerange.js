// The time of the flows in the list: the present or, with a history, a time of the past.

import { topology } from './api.js';
import { h, icon } from './dom.js';
import { past, withTime } from './filter.js';

const HOUR = 3600000; // milliseconds
const BETWEEN = 'between';
const ranges = [['', 'Live'], ['15m', 'Last 15 min'], ['1h', 'Last hour'], ['3h', 'Last 3 h'], ['24h', 'Last 24 h'], [BETWEEN, 'From … to …']];

/** local is a time as datetime-local has it; '' for what is none. */
function local(time) {
  const t = new Date(time);
  return Number.isNaN(t.getTime()) ? '' : new Date(t - t.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

const iso = (value) => (value ? new Date(value).toISOString() : '');

export class TimeRange {
  /** changed is called with the next filters, again to read the same time once more. */
  constructor(changed, again) {
    this.changed = changed;
    this.select = h('select', { id: 'time', 'aria-label': 'Time of the flows', onchange: () => this.choose(this.select.value) }, ranges.map(([value, text]) => h('option', { value }, text)));
    const input = (label) => h('input', { type: 'datetime-local', step: 1, 'aria-label': label, onchange: () => this.set(iso(this.from.value), iso(this.to.value)) });
    this.from = input('From');
    this.to = input('To');
    this.between = h('span', { class: 'between' }, this.from, this.to);
    this.again = h('button', { type: 'button', class: 'button', title: 'Read the history again', onclick: again }, icon('again'), h('span', { class: 'unseen' }, 'Read the history again'));
    this.element = h('div', { class: 'timerange', hidden: true }, this.select, this.between, this.again);
    topology().then((t) => { this.offered = t.hasHistory; this.show(this.filters); }).catch(() => { /* the present only */ });
  }

  /** show shows the time of the filters. */
  show(filters) {
    this.filters = filters;
    const is = past(filters), since = filters.get('since') ?? '', until = filters.get('until') ?? '';
    this.element.hidden = !this.offered && !is;
    this.select.value = until === '' && ranges.some(([value]) => value === since) ? since : BETWEEN;
    this.between.hidden = this.select.value !== BETWEEN;
    this.again.hidden = !is;
    this.from.value = local(since);
    this.to.value = local(until);
  }

  choose(range) {
    if (range !== BETWEEN) this.set(range, '');
    else this.set(new Date(Date.now() - HOUR).toISOString(), new Date().toISOString());
  }

  set(since, until) { this.changed(withTime(this.filters, since, until)); }
}
